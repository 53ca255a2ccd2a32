"""Attributes of OpenTelemetry's semantic conventions, for spans.

This module imports no telemetry library.
"""

from carride_idempotency.observation import (
    DEAD_LETTERED,
    FAILED,
    LOST_LEASE,
    QUARANTINED,
    Observation,
)

_ERRORS = (DEAD_LETTERED, FAILED, LOST_LEASE, QUARANTINED)


def span_attributes(observation: Observation) -> dict[str, str | int]:
    """Return the attributes of a span that describe one delivery and its outcome.

    Names that OpenTelemetry defines are used as its conventions for messaging spans say. The others
    begin with ``idempotency.``. An attribute without a value is left out. Labels become
    ``idempotency.label.<name>``.
    """
    attributes: dict[str, str | int | None] = {
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": observation.consumer,
        "messaging.message.id": observation.delivery,
        "error.type": observation.outcome if observation.outcome in _ERRORS else None,
        "idempotency.key": observation.key,
        "idempotency.outcome": observation.outcome,
        "idempotency.reason": observation.reason,
        "idempotency.attempt": observation.attempt,
        **{f"idempotency.label.{name}": value for name, value in observation.labels.items()},
    }
    return {name: value for name, value in attributes.items() if value is not None}
