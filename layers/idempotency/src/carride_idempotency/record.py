"""The idempotency record of one operation."""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

IN_PROGRESS: Final = "IN_PROGRESS"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
QUARANTINED: Final = "QUARANTINED"
NO_RESULT: Final = "null"
"""The result of a run that returned None, as the codec writes it."""


class UnknownStatus(NamedTuple):
    """What a store holds in place of a status. The record is corrupt."""

    text: str
    """Empty if the store holds no text there."""

    def __str__(self) -> str:
        return self.text


type Status = Literal["IN_PROGRESS", "COMPLETED", "FAILED", "QUARANTINED"] | UnknownStatus
"""The state of a key."""

STATUSES: Final[Mapping[str, Status]] = {
    IN_PROGRESS: IN_PROGRESS,
    COMPLETED: COMPLETED,
    FAILED: FAILED,
    QUARANTINED: QUARANTINED,
}


def status_of(stored: str) -> Status:
    """Return the status that a store holds as text; every store reads it with this function."""
    return STATUSES.get(stored) or UnknownStatus(stored)


class Record(NamedTuple):
    """The state of one key, as a store holds it.

    Times ending in ``_ms`` are epoch milliseconds; ``expiry`` is epoch seconds, as DynamoDB's TTL
    needs it. ``None`` means that the stored item lacks the attribute.
    """

    key: str
    """``<consumer>#<key>``. Never a function's ARN, name or region: a deployment or a failover
    changes those."""
    status: Status
    owner: str | None
    """The owner token: fresh for every claim, compared by every later write."""
    attempt: int
    lease_ms: int | None
    """When the claim ends."""
    expiry: int | None
    """When the record is deleted (the TTL). None: never, as long as an operator or another attempt
    has to find out what became of the operation."""
    fingerprint: str | None
    delivery: str | None
    """The transport's id of the delivery that wrote the record: a Lambda request id or an SQS
    message id."""
    region: str | None
    created_ms: int
    updated_ms: int
    result: str | None = None
    """The encoded result of the committed run."""
    error: str | None = None
    retry_ms: int | None = None
    """A failed key does not run again before this time."""
    dead_lettered: bool = False
    event: str | None = None
    """The raw event as JSON, for recovery by hand, if the policy keeps it with a failure."""
    externals: str | None = None
    """What is known of the operation's external calls, if it makes any: see `externals`."""
    revision: str | None = None
    """A store's own handle for compare-and-set. Never stored."""
    kept: Mapping[str, Any] | None = None
    """What the stored item holds besides, in the store's own form: see `effects.Keep`."""

    @property
    def must_outlast_its_window(self) -> bool:
        """Whether the record notes external calls that no completion has settled, or keeps data."""
        return self.externals is not None or self.kept is not None


LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the calendar. A number beyond it is damaged: no time is that late."""
_DIGITS: Final = len(str(LATEST_MS))
_DAMAGED: Final = "damaged: "
"""Begins the revision of a damaged record."""


def whole_number(stored: object) -> int | None:
    """Return a number of a record as it was written; None if what is stored is no such number.

    The layer writes whole numbers from 0 to `LATEST_MS`.
    """
    if not isinstance(stored, str):
        return None
    if stored.isdecimal() and len(stored) < _DIGITS:
        return int(stored)
    try:
        number = Decimal(stored)  # 1E+3 is a form of 1000
        in_range = 0 <= number <= LATEST_MS
        return int(number) if in_range and number == int(number) else None
    except ArithmeticError:
        return None


def is_note_of_calls(externals: str | None) -> bool:
    """Return whether a text is what a record notes about external calls, or is None."""
    if externals is None:
        return True
    try:
        noted = json.loads(externals)
    except (ValueError, RecursionError):
        return False
    if not isinstance(noted, dict):
        return False
    return all(each is None or each is False or isinstance(each, str) for each in noted.values())


def damaged(record: Record, damage: Mapping[str, object], compared: Sequence[object]) -> Record:
    """Return a record as it is read where parts of it cannot be read: as a corrupt one.

    Its status tells the status that is stored, and the damage: what stands in each of these parts.
    Notes of external calls that can be read stay: a call of unknown outcome is not made again.
    ``compared`` is stored where a store compares what it has seen: see `compared_where_damaged`.
    """
    parts = [f"{name} {stored!s:.60}" for name, stored in damage.items()]
    status = UnknownStatus(f"{str(record.status) or 'no status'}, with damaged {', '.join(parts)}")
    revision = _DAMAGED + json.dumps(compared, default=str)
    externals = None if "externals" in damage else record.externals
    return record._replace(status=status, externals=externals, revision=revision)


def compared_where_damaged(seen: Record) -> list[Any] | None:
    """Return what a store compares of a damaged record; None for any other record."""
    if seen.revision is None or not seen.revision.startswith(_DAMAGED):
        return None
    compared: list[Any] = json.loads(seen.revision.removeprefix(_DAMAGED))
    return compared


def unknown_calls(record: Record) -> list[str]:
    """Return the names of the external calls of which nobody knows whether they were made."""
    known = {} if record.externals is None else json.loads(record.externals)
    return [name for name, state in known.items() if state is None]
