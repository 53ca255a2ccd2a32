"""What an operator does to a record: releases or forgets its key, settles calls nobody knows of.

`release`, `settle` and `forget` read and write the record. A tool that shows its plan first uses
the pure functions: `released`, `settled`, `forgotten`, `has_crashed` and `is_corrupt`.
`python -m carride_idempotency` is such a tool. `stored_form` writes a result as its `--done`.
"""

import os
from typing import Any

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import ConfigurationError
from carride_idempotency.policy import DAY, LONGEST_LEASE_MS
from carride_idempotency.protocol.decision import (
    has_crashed,
    is_corrupt,
    released,
)
from carride_idempotency.protocol.externals import NOT_DONE, Answer, Done, settled
from carride_idempotency.record import FAILED, IN_PROGRESS, QUARANTINED, Record, unknown_calls
from carride_idempotency.stores import Store

__all__ = [
    "LONGEST_LEASE_MS",
    "forget",
    "forgotten",
    "has_crashed",
    "is_corrupt",
    "release",
    "released",
    "settle",
    "settled",
    "stored_form",
]


def release(store: Store, key: str, *, window: int = 30 * DAY, clock: Clock = epoch_ms) -> bool:
    """Release a key that is quarantined, whose last attempt crashed, or whose record is corrupt.

    Its next delivery is attempt 1. ``key`` is the record's, as dead letters show it:
    ``<consumer>#<key>`` or ``<consumer>/<operation>#<key>``. The record is remembered for
    ``window`` more seconds. Return whether there was something to release.
    """
    seen = _read(store, key)
    now_ms = clock()
    if seen is None or not _may_be_released(seen, now_ms):
        return False
    return _write(store, seen, released(seen, new_owner(), now_ms, window))


def forget(store: Store, key: str, *, clock: Clock = epoch_ms) -> bool:
    """Forget a key, so that its next delivery runs as if it were the first.

    An effect that took place can take place again. ``key`` is the record's, as for `release`.
    Return whether there was something to forget; a claim whose attempt may be running is left.
    """
    seen = _read(store, key)
    now_ms = clock()
    if seen is None:
        return False
    if seen.status == IN_PROGRESS and not is_corrupt(seen) and not has_crashed(seen, now_ms):
        return False
    return _write(store, seen, forgotten(seen, new_owner(), now_ms))


def forgotten(seen: Record, owner: str, now_ms: int) -> Record:
    """Return a record whose window ended a day ago, and that keeps nothing of the operation.

    Every store can write it under its conditions. The store deletes it by its time to live.
    """
    return Record(
        key=seen.key,
        status=FAILED,
        owner=owner,
        attempt=0,
        lease_ms=None,
        expiry=now_ms // 1000 - DAY,
        fingerprint=None,
        delivery=None,
        region=None,
        created_ms=now_ms,
        updated_ms=now_ms,
        error="forgotten by an operator",
    )


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

    Raises:
        ConfigurationError: the answer is neither.
    """
    if not isinstance(answer, Done) and answer is not NOT_DONE:
        raise ConfigurationError(
            f"the answer about {name} is Done(result) or NOT_DONE, not {answer!r:.100}"
        )
    seen = _read(store, key)
    now_ms = clock()
    if seen is None or name not in unknown_calls(seen):
        return False
    if seen.status == IN_PROGRESS and not has_crashed(seen, now_ms):
        return False
    known = settled(seen, name, answer)
    return _write(store, seen, released(known, new_owner(), now_ms, window))


def stored_form(result: object) -> str:
    """Return the result of an external call as a record holds it, and as ``--done`` takes it.

    A dataclass's is ``{"$": ["fields", "module:Class", {...}]}``.

    Raises:
        TypeError: the result has no stored form.
    """
    from carride_idempotency.stores import codec

    return codec.encode(result)


def _read(store: Store, key: str) -> Record | None:
    """Read a record; a ConfigurationError if the arguments are not a store and a key."""
    if not hasattr(store, "update_if_owner") or not isinstance(key, str):
        raise ConfigurationError(
            f"the first argument is a store, and the second a record's key, not {store!r:.100} and "
            f'{key!r:.100}: write release(open_store("dynamodb:<table>"), "<consumer>#<key>")'
        )
    return store.read(key)


def _may_be_released(seen: Record, now_ms: int) -> bool:
    return seen.status == QUARANTINED or is_corrupt(seen) or has_crashed(seen, now_ms)


def new_owner() -> str:
    """Return an owner token for an operator's write."""
    return os.urandom(16).hex()


def _write(store: Store, seen: Record, free: Record) -> bool:
    found = store.compare_and_swap(seen, free)
    return found is not None and found.owner == free.owner
