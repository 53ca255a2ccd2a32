"""A process's memory of completed records, whose duplicates then cost no round trip."""

import threading
from collections import OrderedDict
from typing import Final

from carride_idempotency.record import Record

_LARGEST_RESULT: Final = 4_096
"""Larger results are not kept, so that the cache stays within about a megabyte."""


class WarmCache:
    """A bounded map of COMPLETED records, from which the least recently used is dropped."""

    def __init__(self, capacity: int, longest_ms: int) -> None:
        self._capacity = capacity
        self._longest_ms = longest_ms
        self._lock = threading.Lock()
        self._records: OrderedDict[str, tuple[int, Record]] = OrderedDict()

    def get(self, key: str, now_ms: int) -> Record | None:
        """Return the completed record of ``key`` if it is fresh."""
        with self._lock:
            kept = self._records.get(key)
            if kept is None:
                return None
            since_ms, record = kept
            if not 0 <= now_ms - since_ms <= self._longest_ms:
                del self._records[key]
                return None
            self._records.move_to_end(key)
            return record

    def keep(self, record: Record, now_ms: int) -> None:
        """Keep a record that was just found COMPLETED."""
        if not self._capacity:
            return
        if record.result is not None and len(record.result) > _LARGEST_RESULT:
            return
        with self._lock:
            self._records[record.key] = (now_ms, record)
            self._records.move_to_end(record.key)
            if len(self._records) > self._capacity:
                self._records.popitem(last=False)
