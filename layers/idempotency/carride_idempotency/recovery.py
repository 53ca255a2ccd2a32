"""What an operator does to a record: releases its key, and settles calls of which nobody knows.

`release` and `settle` read and write the record. A tool that shows its plan first uses the pure
functions: `released`, `settled`, `has_crashed` and `is_corrupt`.
"""

import os
from typing import Any

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.decision import LONGEST_LEASE_MS, has_crashed, is_corrupt, released
from carride_idempotency.externals import Answer, Done, settled
from carride_idempotency.policy import DAY
from carride_idempotency.record import IN_PROGRESS, QUARANTINED, Record, unknown_calls
from carride_idempotency.stores import Store

__all__ = [
    "LONGEST_LEASE_MS",
    "has_crashed",
    "is_corrupt",
    "release",
    "released",
    "settle",
    "settled",
]


def release(store: Store, key: str, *, window: int = 30 * DAY, clock: Clock = epoch_ms) -> bool:
    """Release a key that is quarantined, whose last attempt crashed, or whose record is corrupt.

    Its next delivery is attempt 1. ``key`` is the record's, as dead letters show it:
    ``<consumer>#<key>`` or ``<consumer>/<operation>#<key>``. The record is remembered for
    ``window`` more seconds. Return whether there was something to release.
    """
    seen = store.read(key)
    now_ms = clock()
    if seen is None or not _may_be_released(seen, now_ms):
        return False
    return _write(store, seen, released(seen, _new_owner(), now_ms, window))


def settle(
    store: Store,
    key: str,
    name: str,
    answer: Done[Any] | Answer,
    *,
    window: int = 30 * DAY,
    clock: Clock = epoch_ms,
) -> bool:
    """Settle an external call of which it is unknown whether it was made, and release its key.

    ``answer`` is ``Done(result)``, which the next attempt takes, or ``NOT_DONE``: the next attempt
    makes the call. The other arguments are those of `release`. Return whether the call was settled.
    It is not if an attempt may be running, or if nothing about it is unknown.
    """
    seen = store.read(key)
    now_ms = clock()
    if seen is None or name not in unknown_calls(seen):
        return False
    if seen.status == IN_PROGRESS and not has_crashed(seen, now_ms):
        return False
    known = settled(seen, name, answer)
    return _write(store, seen, released(known, _new_owner(), now_ms, window))


def _may_be_released(seen: Record, now_ms: int) -> bool:
    return seen.status == QUARANTINED or is_corrupt(seen) or has_crashed(seen, now_ms)


def _new_owner() -> str:
    return os.urandom(16).hex()


def _write(store: Store, seen: Record, free: Record) -> bool:
    found = store.compare_and_swap(seen, free)
    return found is not None and found.owner == free.owner
