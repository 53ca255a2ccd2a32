"""One thread, one seed, virtual time: greenlets stand for whatever runs at the same time.

A `Task` runs until it sleeps or waits; the agenda then decides who goes on, and moves time there. Nothing else in a run
may depend on the outside: draws come from `Simulation.roll`, and while a run lasts `time.time` and `os.urandom` too.
"""

import contextvars
import hashlib
import heapq
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple
from unittest.mock import patch

from greenlet import getcurrent, greenlet

EPOCH_MS: Final = 1_800_000_000_000
_LONGEST_MS: Final = 90 * 86_400_000.0
_MOST_STEPS: Final = 400_000


class Killed(BaseException):
    """Raised in each task of a machine that has died, wherever the task is: nothing but an unwinding may follow."""


class RestlessError(Exception):
    """Raised when a world does not come to rest."""


class Line(NamedTuple):
    """One line of the timeline."""

    at_ms: float
    who: str
    message: int | None
    """Whose line it is; None: of interest to every message."""
    text: str


class Machine:
    """One process with a clock of its own. It dies as a whole."""

    def __init__(self, name: str, clock_ms: float = 0.0, on_death: Callable[[str], None] | None = None) -> None:
        self.name = name
        self.clock_ms = clock_ms
        """By how much its clock is ahead."""
        self.alive = True
        self.frozen_until_ms = 0.0
        self.tasks: list[Task] = []
        self.on_death = on_death


class Task(greenlet):
    """One thread of a machine."""

    def __init__(self, simulation: "Simulation", machine: Machine, work: Callable[[], object]) -> None:
        super().__init__(parent=simulation.hub)
        self.gr_context = contextvars.copy_context()
        self.machine = machine
        self.ticket = 0
        """Changes with each wait, so that a wake-up for an earlier one is known."""
        self._simulation = simulation
        self._work = work
        self._waiting: Task | None = None
        machine.tasks.append(self)

    def run(self) -> None:
        """Work until done or killed."""
        try:
            if self.machine.alive:
                self._work()
        except Killed:
            pass
        finally:
            self.machine.tasks.remove(self)
            if self._waiting is not None:
                self._simulation.wake(self._waiting)

    def join(self) -> None:
        """Wait for its end."""
        while not self.dead:
            self._waiting = current()
            self._simulation.wait()


def current() -> Task:
    """Return the task that is running."""
    task = getcurrent()
    assert isinstance(task, Task), "only a task can do this"
    return task


class Simulation:
    """Time, chance and order. It is a consumer's clock, sleep, jitter and `Concurrency`."""

    def __init__(self, seed: int) -> None:
        self.hub = getcurrent()
        self.now_ms = 0.0
        self.timeline: list[Line] = []
        self._seed = seed
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._rolls: Counter[str] = Counter()

    # ── Chance ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def roll(self, label: str = "") -> float:
        """Draw from 0 to 1. Each label has a row of draws of its own, which other labels do not disturb."""
        self._rolls[label] += 1
        text = f"{self._seed}/{label}/{self._rolls[label]}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()) / 2**56

    def bytes(self, count: int) -> bytes:
        """Draw what stands for the operating system's randomness."""
        return b"".join(int(self.roll("bytes") * 256).to_bytes() for _ in range(count))

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Have libraries take their time and randomness from here."""
        with (
            patch.object(time, "time", lambda: (EPOCH_MS + self.now_ms) / 1000),
            patch.object(os, "urandom", self.bytes),
        ):
            yield

    # ── Time and order ────────────────────────────────────────────────────────────────────────────────────────────────

    def clock(self) -> int:
        """Epoch milliseconds by the clock of the machine that asks."""
        task = getcurrent()
        ahead_ms = task.machine.clock_ms if isinstance(task, Task) else 0.0
        return int(EPOCH_MS + self.now_ms + ahead_ms)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Have something happen later."""
        heapq.heappush(self._agenda, (self.now_ms + max(seconds, 0.0) * 1000, next(self._numbers), call))

    def spawn(self, machine: Machine, work: Callable[[], object]) -> Task:
        """Start a thread of a machine."""
        task = Task(self, machine, work)
        self.wake(task)
        return task

    def wake(self, task: Task, after_s: float = 0.0) -> None:
        """Let a task go on, if it still waits as it does now."""
        self.after(after_s, partial(self._resume, task, task.ticket))

    def wait(self) -> None:
        """Give way until woken."""
        task = current()
        if not task.machine.alive:
            raise Killed
        self.hub.switch()
        if not task.machine.alive:
            raise Killed

    def sleep(self, seconds: float) -> None:
        """Give way for some time, or until woken."""
        self.wake(current(), seconds)
        self.wait()

    def _resume(self, task: Task, ticket: int) -> None:
        if task.dead or task.ticket != ticket:
            return
        machine = task.machine
        if machine.alive and self.now_ms < machine.frozen_until_ms:
            self.wake(task, (machine.frozen_until_ms - self.now_ms) / 1000)
            return
        task.ticket += 1
        task.switch()

    def kill(self, machine: Machine, why: str) -> None:
        """End a machine with all of its tasks, which can do nothing any more."""
        if machine.alive:
            machine.alive = False
            for task in machine.tasks:
                self.wake(task)
            if machine.on_death is not None:
                machine.on_death(why)

    def run(self) -> None:
        """Let everything happen, until nothing is left that could.

        Raises:
            RestlessError: there is no end of it.
        """
        end_ms = self.now_ms + _LONGEST_MS
        for _ in range(_MOST_STEPS):
            if not self._agenda:
                return
            when_ms, _, call = heapq.heappop(self._agenda)
            self.now_ms = max(self.now_ms, when_ms)
            if self.now_ms > end_ms:
                break
            call()
        raise RestlessError("the world does not come to rest: something is delivered again and again")

    def say(self, who: str, message: int | None, text: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append(Line(self.now_ms, who, message, text))

    # ── What the layer runs at the same time ──────────────────────────────────────────────────────────────────────────

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run every task, at most ``limit`` at once."""
        rest = iter(tasks)

        def work() -> None:
            for task in rest:
                contextvars.copy_context().run(task)

        for child in [self.spawn(current().machine, work) for _ in range(min(limit, len(tasks)))]:
            child.join()

    @contextmanager
    def repeat(self, beat: Callable[[], bool], interval_s: float) -> Generator[None]:
        """Call ``beat`` every so often beside the caller."""
        stopped = sleeping = False

        def work() -> None:
            nonlocal sleeping
            while True:
                sleeping = True
                self.sleep(interval_s)
                sleeping = False
                if stopped:
                    return
                with suppress(Exception):
                    if not beat():
                        return

        task = self.spawn(current().machine, work)
        try:
            yield
        finally:
            stopped = True
            if sleeping:
                self.wake(task)
            task.join()
