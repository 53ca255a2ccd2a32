"""Event loops whose time is a world's.

A loop that has nothing to do until a timer is due moves the clock there, as soon as every other
thread of the invocation waits as well. While another thread works, or the loop waits for a
connection, time passes as it does in reality: nobody can know what will come.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple
from unittest.mock import patch

from carride_idempotency.aio import loops
from carride_idempotency.testing.turns import InvocationThreads

_RESOLUTION_S: Final = 0.001
"""The clock of a world counts milliseconds."""
_OWN_CONNECTIONS: Final = 1
"""A loop waits for what other threads tell it through a connection of its own."""


class LoopTime(NamedTuple):
    """The time of the loops of a world."""

    clock: Callable[[], int]
    """Returns the time in epoch milliseconds."""
    wait: Callable[[float], object]
    """Moves the clock by so many seconds."""
    invocation_of: Callable[[threading.Thread], InvocationThreads | None]
    """Returns the invocation in which a thread works."""


class WorldLoop(asyncio.SelectorEventLoop):
    """An event loop that takes its time from a world."""

    def __init__(self, time: LoopTime) -> None:
        super().__init__(_Selector(time))
        self._world_time = time
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        """Return the world's time in seconds."""
        return self._world_time.clock() / 1000


type _Ready = list[tuple[selectors.SelectorKey, int]]


class _Selector(selectors.DefaultSelector):
    """Waits for timers by moving the clock."""

    def __init__(self, time: LoopTime) -> None:
        super().__init__()
        self._time = time

    def select(self, timeout: float | None = None) -> _Ready:
        """Return the connections that are ready, or nothing when the time has come."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if ready:
            return ready
        invocation = self._time.invocation_of(threading.current_thread())
        if invocation is None or len(self.get_map()) > _OWN_CONNECTIONS:
            ready = super().select(timeout)
        else:
            when_ms = self._time.clock() + timeout * 1000
            ready = list(invocation.pass_time(when_ms, timeout, super().select))
        if not ready:
            self._time.wait(timeout)
        return ready


@contextmanager
def loops_of(time: LoopTime) -> Generator[None]:
    """Have every event loop that is made inside the context be a world's."""

    def new_event_loop() -> WorldLoop:
        return WorldLoop(time)

    idle = loops.IdleLoops()
    with ExitStack() as stack:
        for module in (asyncio, asyncio.events):
            stack.enter_context(patch.object(module, "new_event_loop", new_event_loop))
        stack.enter_context(patch.object(loops, "_idle", idle))
        try:
            yield
        finally:
            idle.close()
