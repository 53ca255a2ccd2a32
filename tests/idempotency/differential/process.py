"""One process whose threads run in virtual time: each runs alone, until it says how much time its work takes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context

from greenlet import getcurrent, greenlet

from idempotency.testing import ManualClock


class KilledError(BaseException):
    """What a killed process looks like to the code that it was running: nothing after it is executed."""


class _Thread(greenlet):  # type: ignore[misc] # greenlet is published without types
    wake_ms = 0


class Process:
    """The `Concurrency` of one process."""

    def __init__(self, time: ManualClock) -> None:
        self.deadline_ms = 0
        self._time = time
        self._dead = False

    def spend(self, seconds: float) -> None:
        """Let work take time. At the invocation's deadline, Lambda kills the process."""
        end_ms = self._time() + round(seconds * 1000)
        wake_ms = min(end_ms, self.deadline_ms)
        thread = getcurrent()
        if isinstance(thread, _Thread):
            thread.wake_ms = wake_ms
            thread.parent.switch()
        else:
            self._time.now_ms = wake_ms
        if end_ms > self.deadline_ms or self._dead:
            raise KilledError

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run the tasks, at most ``limit`` at once; when one is killed, all that are under way are."""
        waiting = list(tasks)
        asleep: list[_Thread] = []
        self._dead = False
        while (waiting and not self._dead) or asleep:
            if waiting and not self._dead and len(asleep) < limit:
                thread = _Thread(waiting.pop(0))
                thread.gr_context = copy_context()
            else:
                thread = min(asleep, key=lambda thread: thread.wake_ms)
                asleep.remove(thread)
                self._time.now_ms = max(self._time(), 0 if self._dead else thread.wake_ms)
            try:
                thread.switch()
            except KilledError:
                self._dead = True
            if not thread.dead:
                asleep.append(thread)
        if self._dead:
            raise KilledError

    def repeat(self, beat: Callable[[], bool], interval_s: float) -> AbstractContextManager[object]:
        """Never beat: a lease outlasts the invocations here."""
        return nullcontext()
