"""Concurrency: the records of a batch, and the heartbeat of long work."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from typing import Protocol


class Concurrency(Protocol):
    """How a consumer runs tasks at the same time. A simulation passes its own, to control the order."""

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run every task, at most ``limit`` at once, and return when all have ended. Tasks do not raise."""

    def repeat(self, beat: Callable[[], bool], interval_s: float) -> AbstractContextManager[object]:
        """Call ``beat`` every ``interval_s`` seconds inside the context, until it returns False.

        A beat that raises does not stop the next. Leaving the context waits for a running beat.
        """


class Threads:
    """The threads of this process. Each task sees the context variables of its caller."""

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run the tasks in this thread and in further ones, which end with the last task.

        What a task raises all the same, such as SystemExit, is raised when all have ended.
        """
        if len(tasks) <= 1:
            for task in tasks:
                task()
            return
        left = deque([(copy_context(), task) for task in tasks])
        raised: list[BaseException] = []

        def work() -> None:
            while True:
                try:
                    context, task = left.popleft()
                except IndexError:
                    return
                try:
                    context.run(task)
                except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                    raised.append(error)

        threads = [
            threading.Thread(target=work, name=f"idempotency-batch_{number}")
            for number in range(1, min(limit, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    @contextmanager
    def repeat(self, beat: Callable[[], bool], interval_s: float) -> Generator[None]:
        """Beat in a thread. It is joined, so that no heartbeat follows the commit or outlives the invocation."""
        stop = threading.Event()

        def beat_until_stopped() -> None:
            while not stop.wait(interval_s):
                with suppress(Exception):  # the lease outlasts two missed beats, so the next beat is the retry
                    if not beat():
                        return

        thread = threading.Thread(target=beat_until_stopped, name="idempotency-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
