"""One idempotency record: everything that the table remembers of one operation."""

from typing import Final, NamedTuple

IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
QUARANTINED: Final = "QUARANTINED"
STATUSES: Final = frozenset({IN_PROGRESS, COMPLETED, FAILED, QUARANTINED})


class Record(NamedTuple):
    """The state of one key, as a store holds it.

    Times that end with ``_ms`` are epoch milliseconds; ``expiry`` is epoch seconds, because that is the unit in which
    DynamoDB's TTL reads it. ``None`` means that the stored item lacks the attribute.
    """

    key: str
    """``<consumer>#<key>``. Never a function's ARN, name or region: those change under a deployment or a failover."""
    status: str
    owner: str | None
    """The owner token: fresh for every claim, compared by every later write."""
    attempt: int
    lease_ms: int | None
    """Until when the claim holds."""
    expiry: int | None
    """Until when the record is remembered; the TTL. A quarantined record has none."""
    fingerprint: str | None
    delivery: str | None
    """The transport's id of the delivery that wrote the record: a Lambda request id or an SQS message id."""
    region: str | None
    created_ms: int
    updated_ms: int
    result: str | None = None
    """The encoded result of the committed run."""
    error: str | None = None
    retry_ms: int | None = None
    """A failed key is not run again before this time."""
    dead_lettered: bool = False
    event: str | None = None
    """The raw event as JSON, where the policy keeps it with a failure, for recovery by hand."""
    revision: str | None = None
    """A store's own handle for compare-and-set. Never stored."""
