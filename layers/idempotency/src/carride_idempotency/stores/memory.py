"""Records in the memory of one process: for tests, and for the simplest application."""

import threading
from collections.abc import Callable, Sequence

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.effects import Effect
from carride_idempotency.errors import ConfigurationError, StoreRefusedError
from carride_idempotency.forks import renew_in_children, renew_lock
from carride_idempotency.record import COMPLETED, FAILED, Record
from carride_idempotency.stores import may_compare_and_swap, may_put_if_absent, may_update_if_owner


class MemoryStore:
    """A bounded dictionary under a lock.

    Args:
        capacity: how many records are kept. A full store drops the finished record that was written
            longest ago, even within its window. It never drops claims and quarantined keys.
        apply: performs the effects of a commit, under the same lock as the record, and raises
            EffectConflictError to refuse them. Without it the store is not transactional.
        clock: epoch milliseconds, by which windows end.
    """

    def __init__(
        self,
        *,
        capacity: int = 100_000,
        apply: Callable[[Sequence[Effect]], None] | None = None,
        clock: Clock = epoch_ms,
    ) -> None:
        if capacity < 1:
            raise ConfigurationError("capacity must be at least 1 record")
        self.transactional = apply is not None
        self._apply = apply
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}
        renew_in_children(self, renew_lock)

    def put_if_absent(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record:
        """Write ``record`` if its key is absent."""
        with self._lock:
            found = self._find(record.key)
            return (
                self._write(record, effects) if found is None or may_put_if_absent(found) else found
            )

    def compare_and_swap(
        self,
        seen: Record,
        record: Record,
        effects: Sequence[Effect] = (),
        *,
        until_ms: int | None = None,
    ) -> Record | None:
        """Write ``record`` if the record under its key is still as ``seen``."""
        with self._lock:
            found = self._find(record.key)
            return self._write(record, effects) if may_compare_and_swap(found, seen) else found

    def update_if_owner(
        self, record: Record, effects: Sequence[Effect] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if its owner still holds the key, with no later lease."""
        with self._lock:
            found = self._find(record.key)
            return self._write(record, effects) if may_update_if_owner(found, record) else found

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``."""
        with self._lock:
            return self._find(key)

    def _find(self, key: str) -> Record | None:
        found = self._records.get(key)
        if found is not None and found.expiry is not None and found.expiry * 1000 < self._clock():
            del self._records[key]
            return None
        return found

    def _write(self, record: Record, effects: Sequence[Effect]) -> Record:
        if record.key not in self._records and len(self._records) >= self._capacity:
            self._make_room()
        if effects:
            if self._apply is None:
                raise ConfigurationError(
                    "this MemoryStore was built without apply= and cannot take effects"
                )
            self._apply(effects)
        self._records.pop(record.key, None)  # written last, evicted last
        self._records[record.key] = record
        return record

    def _make_room(self) -> None:
        for key, record in self._records.items():
            if record.status in (COMPLETED, FAILED):
                del self._records[key]
                return
        raise StoreRefusedError(
            f"all {self._capacity} records are claims or quarantined: raise the capacity"
        )
