"""A bounded queue whose items can come back after a delay."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger("local.engine")


class QueueFullError(Exception):
    """The queue holds as many items as it may; whoever sent the item has to try again."""


class DelayedQueue[T]:
    """Hands items to one function on a bounded number of threads.

    Args:
        name: What the threads are called.
        handle: Called with each item. Returns the seconds after which the item is to be handled again, or ``None`` when
            it is done. It handles its own errors; one that escapes is logged and ends the item.
        workers: Largest number of threads, which are started as they are needed.
        limit: Largest number of items queued, waiting or in hand.
    """

    def __init__(self, name: str, handle: Callable[[T], float | None], *, workers: int, limit: int) -> None:
        self._name = name
        self._handle = handle
        self._workers = workers
        self._limit = limit
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._due: list[tuple[float, int, T]] = []
        self._threads = 0
        self._idle = 0
        self._pending = 0
        self._closed = False

    @property
    def pending(self) -> int:
        """Items that are not done: queued, waiting for their next try, or in hand."""
        return self._pending

    def put(self, item: T, delay: float = 0.0) -> None:
        """Queue an item that is to be handled after so many seconds.

        Raises:
            QueueFullError: The queue is at its limit.
        """
        with self._changed:
            if self._pending >= self._limit:
                raise QueueFullError(self._name)
            self._pending += 1
            self._schedule(item, delay)
            if not self._idle and self._threads < self._workers:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Forget every item; what is in hand is finished but does not come back."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._pending = 0
            self._changed.notify_all()

    def _schedule(self, item: T, delay: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay, next(self._order), item))
        self._changed.notify()

    def _next(self) -> T | None:
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._idle += 1
                self._changed.wait(wait)
                self._idle -= 1
            return None

    def _work(self) -> None:
        while (item := self._next()) is not None:
            try:
                again = self._handle(item)
            except Exception:  # the thread goes on to serve others; the log line is what is left of this one
                _logger.exception("%s: an item was given up", self._name)
                again = None
            with self._changed:
                if self._closed:
                    return
                if again is None:
                    self._pending -= 1
                else:
                    self._schedule(item, again)
