"""A bounded queue whose items can come back after a delay."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_logger = logging.getLogger("local.engine")
_clock = asyncio.new_event_loop()  # one thread that waits for every delayed item
threading.Thread(target=_clock.run_forever, name="delays", daemon=True).start()


class QueueFullError(Exception):
    """The queue is at its limit; the sender has to try again."""


class DelayedQueue[T]:
    """Hands items to one function on a bounded number of threads.

    Args:
        name: Name of the threads.
        handle: Called with each item. Returns the seconds until the item is handled again, or ``None`` when it is
            done. An error that escapes is logged and ends the item.
        workers: Largest number of threads.
        limit: Largest number of items queued, waiting or in hand.

    Attributes:
        pending: Number of items queued, waiting or in hand.
    """

    def __init__(self, name: str, handle: Callable[[T], float | None], *, workers: int, limit: int) -> None:
        self.pending = 0
        self._name = name
        self._handle = handle
        self._limit = limit
        self._lock = threading.Lock()
        self._open = True
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=name)

    def put(self, item: T, delay: float = 0.0) -> None:
        """Queue an item, to be handled after so many seconds.

        Raises:
            QueueFullError: The queue is at its limit.
        """
        with self._lock:
            if self.pending >= self._limit:
                raise QueueFullError(self._name)
            self.pending += 1
        self._schedule(item, delay)

    def close(self) -> None:
        """Drop every item. An item in hand is finished and does not come back."""
        with self._lock:
            self._open = False
            self.pending = 0
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _schedule(self, item: T, delay: float) -> None:
        if delay:
            _clock.call_soon_threadsafe(_clock.call_later, delay, self._schedule, item, 0.0)
            return
        with self._lock:
            if self._open:
                self._threads.submit(self._run, item)

    def _run(self, item: T) -> None:
        try:
            delay = self._handle(item)
        except Exception:  # the thread goes on to serve others
            _logger.exception("%s: an item was given up", self._name)
            delay = None
        if delay is not None:
            self._schedule(item, delay)
            return
        with self._lock:
            self.pending -= self._open
