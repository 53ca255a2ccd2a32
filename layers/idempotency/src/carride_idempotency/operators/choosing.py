"""Chooses records by key, consumer, status, age or cause."""

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from carride_idempotency.protocol.decision import has_crashed, is_corrupt
from carride_idempotency.record import FAILED, QUARANTINED, Record, unknown_calls

_LONGEST: Final = 300
_varying = re.compile(r"(?<![\w-])[\w-]*\d(?:[\w.,:-]*\w)?")
"""Finds words with a digit: ids, numbers, times, addresses. Each word is looked at once, because an
error may be one word of a megabyte."""

_CRASHED: Final = "the attempt crashed"
CORRUPT: Final = "the record is corrupt"


class Cause(NamedTuple):
    """Why a key does not succeed: the same for all keys that fail alike."""

    id: str
    """Six digits that name it."""
    says: str
    """The error without its ids and numbers."""


def normalised(error: str) -> str:
    """Return an error without what differs between events.

    Every word with a digit becomes ``…``.
    """
    return _varying.sub("…", " ".join(error.split()))[:_LONGEST]


def short_id(*parts: str) -> str:
    """Return six digits that name what has these parts."""
    text = "\n".join(parts)
    return blake2b(text.encode(errors="replace"), digest_size=3).hexdigest()


def cause_of(record: Record, now_ms: int) -> Cause | None:
    """Return why a key does not succeed; None if nothing is wrong with it."""
    says = _wrong_with(record, now_ms)
    if says is None:
        return None
    return Cause(short_id(operation_of(record.key), says), says)


def _wrong_with(record: Record, now_ms: int) -> str | None:
    if is_corrupt(record):
        return CORRUPT
    unknown = unknown_calls(record)
    if unknown and record.status == QUARANTINED:
        return f"nobody knows whether {unknown[0]} was called"
    if record.status == QUARANTINED and record.error is None:
        return _CRASHED
    if record.status in (FAILED, QUARANTINED):
        return normalised(record.error or "it was released")
    return _CRASHED if has_crashed(record, now_ms) else None


def operation_of(key: str) -> str:
    """Return what a key begins with: a consumer, or its operation, as ``billing/charge``."""
    return key.partition("#")[0]


def consumer_of(key: str) -> str:
    """Return the consumer that a key begins with: ``billing`` of ``billing/charge#…``."""
    return operation_of(key).partition("/")[0]


def is_of_a_call(key: str) -> bool:
    """Return whether a key is of a function or a named block, whose caller calls again.

    An unnamed block looks like a handler.
    """
    return "/" in operation_of(key)


class Choice(NamedTuple):
    """Which records are meant. What is None chooses all."""

    keys: frozenset[str] = frozenset()
    consumer: str | None = None
    """A consumer with all its operations, or ``<consumer>/<operation>``."""
    status: str | None = None
    before_ms: int | None = None
    """Written before this time."""
    after_ms: int | None = None
    """Written at this time or later."""
    cause: str | None = None
    """The id of a cause, or a part of its text."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is chosen, so that every record is meant."""
        return self == Choice()

    def has(self, record: Record, now_ms: int) -> bool:
        """Return whether a record is meant."""
        if self.keys and record.key not in self.keys:
            return False
        if self.status not in (None, str(record.status)):
            return False
        if self.before_ms is not None and record.updated_ms >= self.before_ms:
            return False
        if self.after_ms is not None and record.updated_ms < self.after_ms:
            return False
        return self._is_of_consumer(record) and self._has_cause(record, now_ms)

    def _is_of_consumer(self, record: Record) -> bool:
        key = record.key
        return self.consumer in (None, operation_of(key), consumer_of(key))

    def _has_cause(self, record: Record, now_ms: int) -> bool:
        if self.cause is None:
            return True
        cause = cause_of(record, now_ms)
        if cause is None:
            return False
        return self.cause == cause.id or self.cause.casefold() in cause.says.casefold()
