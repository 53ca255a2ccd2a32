"""A process's memory of what it has completed, for redeliveries of the same message.

A transport may deliver a message again that this process has just completed: the answer came too
late, or never arrived. Such a redelivery has the same delivery id, and is answered without a round
trip.

All other deliveries ask the store: an operator may have removed the record, so that the next
replay, redrive or call runs again. Those have other ids, or none. Messages of a log (a stream, a
Kafka topic) are not remembered: their ids are positions, and a log can be read again.
"""

import threading
from collections import OrderedDict
from typing import Final

from carride_idempotency.forks import renew_in_children, renew_lock
from carride_idempotency.record import Record

_LARGEST_RESULT: Final = 4_096
"""Larger results are not kept, so that the cache stays within about a megabyte."""


class WarmCache:
    """A bounded map of records that this process completed; the least recently used is dropped."""

    def __init__(self, capacity: int, longest_ms: int) -> None:
        self._capacity = capacity
        self._longest_ms = longest_ms
        self._lock = threading.Lock()
        self._records: OrderedDict[tuple[str, str], tuple[int, Record]] = OrderedDict()
        """By key and delivery id, with the time of completion."""
        renew_in_children(self, renew_lock)

    def get(self, key: str, delivery_id: str, now_ms: int) -> Record | None:
        """Return the record that this delivery completed here, if it is fresh."""
        with self._lock:
            kept = self._records.get((key, delivery_id))
            if kept is None:
                return None
            since_ms, record = kept
            if not 0 <= now_ms - since_ms <= self._longest_ms:
                del self._records[key, delivery_id]
                return None
            self._records.move_to_end((key, delivery_id))
            return record

    def keep(self, record: Record, delivery_id: str, now_ms: int) -> None:
        """Keep a record that this process has just completed for a delivery."""
        if not self._capacity:
            return
        if record.result is not None and len(record.result) > _LARGEST_RESULT:
            return
        with self._lock:
            self._records[record.key, delivery_id] = (now_ms, record)
            self._records.move_to_end((record.key, delivery_id))
            if len(self._records) > self._capacity:
                self._records.popitem(last=False)
