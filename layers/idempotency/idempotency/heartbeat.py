"""Renews the lease of long work in the background."""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self


class Heartbeat:
    """A thread that calls ``renew`` every ``interval_s`` until the work ends or the lease is found lost.

    Leaving the context joins the thread, so no heartbeat follows the commit or outlives the invocation.
    """

    def __init__(self, renew: Callable[[], bool], interval_s: float) -> None:
        self._renew = renew
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="idempotency-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._interval_s):
            # The next beat tries again: the lease outlasts two missed beats. After that the operation reports it as
            # lost, and the condition of the commit protects the record.
            with suppress(Exception):
                if not self._renew():
                    return
