"""Observers ready to use: metrics in CloudWatch's embedded format, and log lines.

A consumer takes one, or several in a list: ``observe=[emf("Billing"), logged(logger)]``.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final, Protocol

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import ConfigurationError
from carride_idempotency.observation import (
    BUSY,
    DUPLICATE,
    EXPIRED,
    NEW,
    RETRIED,
    Observation,
    Observer,
)

_AS_EXPECTED: Final = frozenset({NEW, RETRIED, DUPLICATE, BUSY, EXPIRED})
"""The outcomes that need nobody's attention; the others are logged as warnings."""


class OutcomeLog(Protocol):
    """What `logged` needs of a logger: Python's and Powertools' have it."""

    def info(self, msg: object, /, *args: object, extra: Mapping[str, object]) -> None:
        """Log an outcome that is expected."""

    def warning(self, msg: object, /, *args: object, extra: Mapping[str, object]) -> None:
        """Log an outcome that may need attention."""


def emf(namespace: str, *, clock: Clock = epoch_ms) -> Observer:
    """Return an observer that counts outcomes in CloudWatch, without a request.

    It prints a line in the embedded metric format, from which CloudWatch makes a metric for each
    outcome (``New``, ``Duplicate``, ...) with the dimension ``consumer``. The line also has what
    the observation says, for queries.

    Raises:
        ConfigurationError: it is not the name of a namespace.
    """
    if not isinstance(namespace, str) or not namespace:
        raise ConfigurationError(
            f"emf takes the name of a namespace: write emf('Billing'), not emf({namespace!r:.50})"
        )

    def observe(seen: Observation) -> None:
        counted = {"Name": seen.outcome, "Unit": "Count"}
        directive = {
            "Namespace": namespace,
            "Dimensions": [["consumer"]],
            "Metrics": [counted],
        }
        metadata = {"Timestamp": clock(), "CloudWatchMetrics": [directive]}
        line = {"_aws": metadata, seen.outcome: 1, **_fields(seen)}
        sys.stdout.write(f"{json.dumps(line)}\n")  # in one piece: a batch counts in several threads
        sys.stdout.flush()

    return observe


def logged(logger: OutcomeLog) -> Observer:
    """Return an observer that logs each outcome: information, or a warning if it needs attention.

    ``extra`` of the log record has the observation as ``idempotency``.

    Raises:
        ConfigurationError: it is not a logger.
    """
    if not hasattr(logger, "warning"):
        raise ConfigurationError(
            f"logged takes a logger: write logged(logging.getLogger('billing')), "
            f"not logged({logger!r:.50})"
        )

    def observe(seen: Observation) -> None:
        log = logger.info if seen.outcome in _AS_EXPECTED else logger.warning
        log("%s: %s", seen.consumer, seen.outcome, extra={"idempotency": _fields(seen)})

    return observe


def _fields(seen: Observation) -> dict[str, Any]:
    """Return what an observation says; labels are together, and what is unknown is left out."""
    fields = seen._asdict() | {"labels": dict(seen.labels)}
    return {name: value for name, value in fields.items() if value not in (None, {})}
