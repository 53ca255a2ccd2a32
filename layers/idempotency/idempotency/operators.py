"""For operators: releases a key that does not run by itself any more."""

import os

from idempotency.clock import Clock, epoch_ms
from idempotency.decision import is_corrupt, released
from idempotency.policy import DAY
from idempotency.record import QUARANTINED
from idempotency.stores import Store


def release(store: Store, key: str, *, window: int = 30 * DAY, clock: Clock = epoch_ms) -> bool:
    """Release a key that is quarantined, or whose record is corrupt: its next delivery is attempt 1.

    Args:
        store: where the record is.
        key: the record's key as dead letters show it, ``<consumer>#<key>`` or ``<consumer>/<operation>#<key>``.
        window: for how many more seconds the record is remembered.
        clock: epoch milliseconds.

    Returns:
        Whether there was something to release.
    """
    seen = store.read(key)
    if seen is None or not (seen.status == QUARANTINED or is_corrupt(seen)):
        return False
    free = released(seen, os.urandom(16).hex(), clock(), window)
    found = store.compare_and_swap(seen, free)
    return found is not None and found.owner == free.owner
