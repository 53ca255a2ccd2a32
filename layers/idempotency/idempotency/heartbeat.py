"""Renews the lease of long work in the background."""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self


class Heartbeat:
    """A thread that calls ``renew`` every ``interval_s`` until the work ends or the lease is found lost.

    Leaving the context joins the thread, so that no heartbeat can follow the commit and none outlives the invocation.
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
            # Whatever went wrong, the next beat tries again: the lease outlasts two beats that are missed, after that
            # the operation says that it is lost, and the commit's own condition protects the record.
            with suppress(Exception):
                if not self._renew():
                    return
