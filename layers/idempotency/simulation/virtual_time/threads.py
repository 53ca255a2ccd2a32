"""Threads and locks in virtual time: a thread is a task of the machine that starts it."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from virtual_time.scheduler import Simulation, Task, here


class Thread:
    """Stands for `threading.Thread`."""

    def __init__(
        self, simulation: Simulation, *, target: Callable[[], object], **_: object
    ) -> None:
        self._simulation = simulation
        self._target = target
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._simulation.spawn(here(), self._target)

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None:
            self._simulation.join(self._task, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.dead


class Lock:
    """Stands for `threading.Lock`: who waits for it gives way."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._is_held = False
        self._waiting: deque[Callable[[], None]] = deque()

    def acquire(self, *, timeout: float | None = None) -> bool:
        end_ms = None if timeout is None else self._simulation.now_ms + round(timeout * 1000)
        while self._is_held:
            if end_ms is not None and self._simulation.now_ms >= end_ms:
                return False
            self._wait(end_ms)
        self._is_held = True
        return True

    def _wait(self, end_ms: int | None) -> None:
        wake = self._simulation.waker()
        self._waiting.append(wake)
        if end_ms is not None:
            self._simulation.after((end_ms - self._simulation.now_ms) / 1000, wake)
        try:
            self._simulation.sleep(None)
        finally:
            with suppress(ValueError):
                self._waiting.remove(wake)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._is_held = False
        if self._waiting:
            self._simulation.after(0, self._waiting[0])
