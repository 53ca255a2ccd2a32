"""Concurrent tasks as greenlets, in one thread, in virtual time, from one seed."""

import contextvars
import hashlib
import heapq
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from unittest.mock import patch

from greenlet import getcurrent, greenlet

from carride_idempotency.testing import ManualClock

_LONGEST_MS: Final = 90 * 86_400_000
_MOST_STEPS: Final = 400_000


class Killed(BaseException):
    """Raised in each task of a dead machine."""


class RestlessError(Exception):
    """A world does not come to rest."""


class Machine:
    """One process, with a clock that is ``ahead_ms`` ahead. It dies as a whole."""

    def __init__(self, name: str, ahead_ms: int = 0) -> None:
        self.name = name
        self.ahead_ms = ahead_ms
        self.on_death: Callable[[str], None] = lambda why: None
        self.alive = True


OUTSIDE: Final = Machine("outside")
"""Where transports and the operator are."""


class Task(greenlet):  # type: ignore[misc] # greenlet is published without types
    """One thread of a machine: it runs until it sleeps or waits."""

    machine: Machine
    ended: Callable[[], object] | None = None
    """Is called when it has ended."""

    def resume(self) -> None:
        if not self.dead:
            self.switch()


def here() -> Machine:
    """Return the machine whose task is running."""
    task = getcurrent()
    return task.machine if isinstance(task, Task) else OUTSIDE


class Simulation(ManualClock):
    """Time, chance and order. It is a consumer's clock, sleep and `Concurrency`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._hub = getcurrent()
        self._tasks: dict[Task, None] = {}
        self._agenda: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._rolls: dict[str, int] = {}
        self._steps = 0
        """Of the present run: moves of the time, and what takes place at the same time."""
        self._end_ms = 0
        """When the present run has lasted too long."""
        self.doing: Callable[[], str] = lambda: here().name
        """Names what draws random bytes, so that others' draws do not disturb it."""

    def roll(self, label: str = "") -> float:
        """Draw from 0 to 1. Each label has draws of its own, which other labels do not disturb."""
        number = self._rolls.get(label, 0) + 1
        self._rolls[label] = number
        text = f"{self._seed}/{label}/{number}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()) / 2**56

    def hexadecimal(self, label: str) -> str:
        return f"{int(self.roll(label) * 16**8):08x}"

    @contextmanager
    def patched(self) -> Generator[None]:
        """Make libraries use the simulated time and randomness; end all tasks in the end."""

        def draw(count: int) -> bytes:
            who = f"bytes {self.doing()}"
            text = f"{who} {self.roll(who)}"
            return hashlib.blake2b(text.encode(), digest_size=count).digest()

        with (
            patch.object(time, "time", lambda: self.now_ms / 1000),
            patch.object(os, "urandom", draw),
        ):
            yield
            for task in list(self._tasks):
                task.machine.alive = False
                task.throw(Killed)

    # ── Time and order ────────────────────────────────────────────────────────────────────────────

    def __call__(self) -> int:
        """Return epoch milliseconds by the clock of the machine that asks."""
        return self.now_ms + here().ahead_ms

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        heapq.heappush(
            self._agenda, (self.now_ms + round(max(seconds, 0) * 1000), next(self._numbers), call)
        )

    def spawn(self, machine: Machine, work: Callable[[], object]) -> Task:
        def run() -> None:
            with suppress(Killed):
                if machine.alive:
                    work()
            del self._tasks[task]
            if task.ended is not None:
                self.after(0, task.ended)

        task = Task(run, self._hub)
        task.gr_context = contextvars.copy_context()
        task.machine = machine
        self._tasks[task] = None
        self.after(0, task.resume)
        return task

    def sleep(self, seconds: float | None) -> None:
        """Give way for some time, or until resumed."""
        task = getcurrent()
        if task.machine.alive and not self._passes(seconds):
            if seconds is not None:
                self.after(seconds, task.resume)
            self._hub.switch()
        if not task.machine.alive:
            raise Killed

    def _passes(self, seconds: float | None) -> bool:
        """Let some time pass if nothing else takes place in it; return whether that is so.

        The running task goes on at once, as it would after a way over the agenda.
        """
        if seconds is None or self._steps >= _MOST_STEPS:
            return False
        when_ms = self.now_ms + round(max(seconds, 0) * 1000)
        if when_ms > self._end_ms or (self._agenda and self._agenda[0][0] <= when_ms):
            return False
        self._steps += 1
        self.now_ms = when_ms
        return True

    def join(self, task: Task, timeout_s: float | None = None) -> None:
        """Wait until a task has ended, or for so many seconds."""
        if task.dead:
            return
        task.ended = self.waker()
        if timeout_s is not None:
            self.after(timeout_s, task.ended)
        self.sleep(None)

    def waker(self) -> Callable[[], None]:
        """Return what wakes the running task once.

        A later call does not disturb its next sleep.
        """
        task = getcurrent()
        woken = False

        def wake() -> None:
            nonlocal woken
            if not woken:
                woken = True
                task.resume()

        return wake

    def kill(self, machine: Machine, why: str) -> None:
        if machine.alive:
            machine.alive = False
            for task in self._tasks:
                if task.machine is machine:
                    self.after(0, task.resume)
            machine.on_death(why)

    def run(self) -> None:
        """Run until the agenda is empty.

        Raises:
            RestlessError: the agenda does not become empty.
        """
        self._end_ms = self.now_ms + _LONGEST_MS
        self._steps = 0
        while self._steps < _MOST_STEPS:
            if not self._agenda:
                return
            when_ms, _, call = heapq.heappop(self._agenda)
            self.now_ms = max(self.now_ms, when_ms)
            if self.now_ms > self._end_ms:
                break
            self._steps += 1
            call()
        raise RestlessError(
            "the world does not come to rest: something is delivered again and again"
        )

    # ── What the layer runs at the same time ──────────────────────────────────────────────────────

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run every task, at most ``limit`` at once."""
        rest = iter(tasks)

        def work() -> None:
            for task in rest:
                contextvars.copy_context().run(task)

        for child in [self.spawn(here(), work) for _ in range(min(limit, len(tasks)))]:
            self.join(child)

    @contextmanager
    def repeat(self, beat: Callable[[], bool], interval_s: float) -> Iterator[None]:
        """Call ``beat`` every so often beside the caller.

        One that raises is followed by the next.
        """
        stopped = False
        sleeping = True

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

        task = self.spawn(here(), work)
        try:
            yield
        finally:
            stopped = True
            if not sleeping:
                self.join(task)
