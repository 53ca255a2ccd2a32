"""Observations: the outcome of each delivery, for logs and metrics."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

NEW: Final = "New"
RETRIED: Final = "Retried"
TAKEOVER: Final = "Takeover"
DUPLICATE: Final = "Duplicate"
BUSY: Final = "Busy"
FAILED: Final = "Failed"
LOST_LEASE: Final = "LostLease"
EXPIRED: Final = "Expired"
QUARANTINED: Final = "Quarantined"
DEAD_LETTERED: Final = "DeadLettered"
UNPROTECTED: Final = "Unprotected"

COMMITTED: Final = frozenset({NEW, RETRIED, TAKEOVER})
"""The outcomes of a committed run."""
PROTECTED: Final = COMMITTED | {
    DUPLICATE,
    BUSY,
    FAILED,
    LOST_LEASE,
    EXPIRED,
    QUARANTINED,
    DEAD_LETTERED,
}
"""All outcomes of a delivery with an idempotency key."""

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class Observation(NamedTuple):
    """One delivery and its outcome. Every delivery that does not crash makes exactly one.

    ``New``, ``Retried`` (after a failure) and ``Takeover`` (after a crash) are the outcomes of a
    committed run; ``Duplicate`` was answered from the record, or replayed a message whose letter is
    in the dead-letter queue; ``Busy`` was acknowledged because another delivery holds the key;
    ``Failed`` raised and comes again; ``LostLease`` ran, and another attempt had taken over;
    ``Expired`` was dropped by age; ``Quarantined`` met a key that is quarantined: it was
    acknowledged, because its event is in the dead-letter queue already, or raised to its caller, or
    because there is no queue to take it; ``DeadLettered`` was handed to the dead-letter queue now;
    ``Unprotected`` was run without an idempotency key.
    """

    consumer: str
    outcome: str
    key: str | None
    attempt: int
    delivery: str | None
    reason: str | None = None
    """Why: the error, the dead letter's code, or ``warm`` for a duplicate that cost no round
    trip."""
    labels: Mapping[str, str] = NO_LABELS
    """What the consumer's ``labels`` return for the event; empty if it could not be read."""
    event_id: str | None = None
    """EventBridge's id of an event that was rejected, so that it has no key; None for others."""


type Observer = Callable[[Observation], None]
type Observers = Observer | Sequence[Observer]
"""One observer, or several that all hear of each delivery."""


def ignore(observation: Observation) -> None:
    """Observe nothing."""


def observers_in(observe: Observers) -> tuple[Observer, ...]:
    """Return the observers of a consumer's setting, which may be one or several."""
    if callable(observe):
        return () if observe is ignore else (observe,)
    return tuple(observe)
