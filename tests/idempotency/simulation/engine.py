"""Concurrent tasks as greenlets, in one thread, in virtual time, from one seed.

A `Task` runs until it sleeps or waits. The agenda then moves time on and resumes the next task. `Simulation` also
replaces `time.time` and `os.urandom`, so that a run depends on its seed alone.
"""

import contextvars
import hashlib
import heapq
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple
from unittest.mock import patch

from greenlet import getcurrent, greenlet

EPOCH_MS: Final = 1_800_000_000_000
_LONGEST_MS: Final = 90 * 86_400_000.0
_MOST_STEPS: Final = 400_000


class Killed(BaseException):
    """Raised in each task of a dead machine."""


class RestlessError(Exception):
    """A world does not come to rest."""


class Line(NamedTuple):
    """One line of the timeline; without a message, it concerns every message."""

    at_ms: float
    who: str
    message: int | None
    text: str


class Machine:
    """One process, with a clock that is ``ahead_ms`` ahead. It dies as a whole."""

    def __init__(self, name: str, ahead_ms: float = 0.0) -> None:
        self.name = name
        self.ahead_ms = ahead_ms
        self.on_death: Callable[[str], None] = lambda why: None
        self.alive = True
        self.tasks: list[Task] = []


class Task(greenlet):  # type: ignore[misc] # greenlet is published without types
    """One thread of a machine."""

    def __init__(self, simulation: "Simulation", machine: Machine, work: Callable[[], object]) -> None:
        super().__init__(parent=simulation.hub)
        self.gr_context = contextvars.copy_context()
        self.machine = machine
        self.ticket = 0
        """Changes with each wait, so that a wake-up for an earlier one is ignored."""
        self.waiting: Task | None = None
        self._simulation = simulation
        self._work = work
        machine.tasks.append(self)
        simulation.unfinished[self] = None

    def run(self) -> None:
        with suppress(Killed):
            if self.machine.alive:
                self._work()
        self.machine.tasks.remove(self)
        del self._simulation.unfinished[self]
        if self.waiting is not None:
            self._simulation.wake(self.waiting)


def current() -> Task | None:
    task = getcurrent()
    return task if isinstance(task, Task) else None


def running() -> Task:
    task = current()
    assert task is not None
    return task


class Simulation:
    """Time, chance and order. It is a consumer's clock, sleep, jitter and `Concurrency`."""

    def __init__(self, seed: int) -> None:
        self.hub = getcurrent()
        self.now_ms = 0.0
        self.timeline: list[Line] = []
        self.unfinished: dict[Task, None] = {}
        self._seed = seed
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._rolls: Counter[str] = Counter()

    def roll(self, label: str = "") -> float:
        """Draw from 0 to 1. Each label has a row of draws of its own, which other labels do not disturb."""
        self._rolls[label] += 1
        text = f"{self._seed}/{label}/{self._rolls[label]}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()) / 2**56

    def hexadecimal(self, label: str) -> str:
        return f"{int(self.roll(label) * 16**8):08x}"

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Make libraries use the simulated time and randomness; end all tasks in the end."""

        def draw(count: int) -> bytes:
            return b"".join(int(self.roll("bytes") * 256).to_bytes() for _ in range(count))

        now = patch.object(time, "time", lambda: (EPOCH_MS + self.now_ms) / 1000)
        with now, patch.object(os, "urandom", draw):
            yield
            for task in list(self.unfinished):
                task.machine.alive = False
                task.throw(Killed)

    def say(self, who: str, message: int | None, text: str) -> None:
        self.timeline.append(Line(self.now_ms, who, message, text))

    # ── Time and order ────────────────────────────────────────────────────────────────────────────────────────────────

    def clock(self) -> int:
        """Return epoch milliseconds by the clock of the machine that asks."""
        task = current()
        return int(EPOCH_MS + self.now_ms + (0.0 if task is None else task.machine.ahead_ms))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (self.now_ms + max(seconds, 0.0) * 1000, next(self._numbers), call))

    def spawn(self, machine: Machine, work: Callable[[], object]) -> Task:
        task = Task(self, machine, work)
        self.wake(task)
        return task

    def wake(self, task: Task, after_s: float = 0.0) -> None:
        """Let a task continue, if it still waits as it does now."""
        self.after(after_s, partial(self._resume, task, task.ticket))

    def _resume(self, task: Task, ticket: int) -> None:
        if task.dead or task.ticket != ticket:
            return
        task.ticket += 1
        task.switch()

    def sleep(self, seconds: float | None) -> None:
        """Give way for some time, or until woken."""
        task = running()
        if task.machine.alive:
            if seconds is not None:
                self.wake(task, seconds)
            self.hub.switch()
        if not task.machine.alive:
            raise Killed

    def join(self, task: Task) -> None:
        while not task.dead:
            task.waiting = current()
            self.sleep(None)

    def kill(self, machine: Machine, why: str) -> None:
        if machine.alive:
            machine.alive = False
            for task in machine.tasks:
                self.wake(task)
            machine.on_death(why)

    def run(self) -> None:
        """Run until the agenda is empty.

        Raises:
            RestlessError: the agenda does not become empty.
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

    # ── What the layer runs at the same time ──────────────────────────────────────────────────────────────────────────

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run every task, at most ``limit`` at once."""
        rest = iter(tasks)

        def work() -> None:
            for task in rest:
                contextvars.copy_context().run(task)

        for child in [self.spawn(running().machine, work) for _ in range(min(limit, len(tasks)))]:
            self.join(child)

    @contextmanager
    def repeat(self, beat: Callable[[], bool], interval_s: float) -> Iterator[None]:
        """Call ``beat`` every so often beside the caller; one that raises is followed by the next."""
        stopped = sleeping = False

        def work() -> None:
            nonlocal sleeping
            holds = True
            while holds:
                sleeping = True
                self.sleep(interval_s)
                sleeping = False
                if stopped:
                    return
                with suppress(Exception):
                    holds = beat()

        task = self.spawn(running().machine, work)
        try:
            yield
        finally:
            stopped = True
            if sleeping:
                self.wake(task)
            self.join(task)
