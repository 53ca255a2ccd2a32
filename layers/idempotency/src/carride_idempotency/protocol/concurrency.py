"""Concurrency: the records of a batch, and the heartbeat of long work."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context, copy_context
from typing import Final, Protocol

from carride_idempotency.errors import RetryableError

_MOMENT_S: Final = 0.002
"""Tasks that end within this time, as duplicates may, would spend more on threads than they
gain."""


class Concurrency(Protocol):
    """How a consumer runs tasks at the same time.

    A simulation passes its own, to control the order.
    """

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run every task, at most ``limit`` at once, and return when all have ended.

        Tasks do not raise.
        """

    def repeat(self, beat: Callable[[], bool], interval_s: float) -> AbstractContextManager[object]:
        """Call ``beat`` every ``interval_s`` seconds inside the context, until it returns False.

        A beat that raises does not stop the next. Leaving the context waits for a running beat.
        """


def is_in_a_loop() -> bool:
    """Return whether an event loop is running in this thread, without importing asyncio."""
    events = sys.modules.get("asyncio.events")
    # What raises no exception where there is none; libraries may use it to detect a loop.
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001


class Threads:
    """The threads of this process. Each task sees the context variables of its caller."""

    def run_all(self, tasks: Sequence[Callable[[], None]], limit: int) -> None:
        """Run the tasks in this thread, and in further ones as soon as none ends for a moment.

        All threads end with the last task. What a task raises all the same, such as SystemExit, is
        raised then.
        """
        if len(tasks) <= 1:
            for task in tasks:
                task()
            return
        left = deque([(copy_context(), task) for task in tasks])
        threads: list[threading.Thread] = []
        raised: list[BaseException] = []
        ended = threading.Event()

        def watch() -> None:
            number = -1
            while number != len(left):
                number = len(left)
                if ended.wait(_MOMENT_S):
                    return
            threads.extend(_workers(min(limit - 1, number), left, raised))

        watcher = threading.Thread(target=watch, name="idempotency-batch-watcher")
        watches = _started(watcher)
        _work(left, raised)
        ended.set()
        if watches:
            watcher.join()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    @contextmanager
    def repeat(self, beat: Callable[[], bool], interval_s: float) -> Generator[None]:
        """Beat in a thread. It is joined, so that no heartbeat follows the commit.

        Raises:
            RetryableError: the process can have no more threads.
        """
        stop = threading.Event()

        def beat_until_stopped() -> None:
            while not stop.wait(interval_s):
                # The lease outlasts two missed beats, so the next beat is the retry.
                with suppress(Exception):
                    if not beat():
                        return

        thread = threading.Thread(
            target=beat_until_stopped, name="idempotency-heartbeat", daemon=True
        )
        if not _started(thread):
            raise RetryableError(
                "the process can have no more threads, so nothing would renew the claim of this run"
            )
        try:
            yield
        finally:
            # When the interpreter ends, it closes contexts that are still open; no other thread
            # runs any more then, and nothing would end the wait.
            if not sys.is_finalizing():
                stop.set()
                thread.join()


def _workers(
    number: int, left: deque[tuple[Context, Callable[[], None]]], raised: list[BaseException]
) -> Iterator[threading.Thread]:
    """Start threads that run tasks, as many as the process can have."""
    for _ in range(number):
        thread = threading.Thread(target=_work, args=(left, raised), name="idempotency-batch")
        if not _started(thread):
            return
        yield thread


def _started(thread: threading.Thread) -> bool:
    """Start a thread; return False if the process can have no more."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _work(left: deque[tuple[Context, Callable[[], None]]], raised: list[BaseException]) -> None:
    """Run tasks until none is left."""
    while True:
        try:
            context, task = left.popleft()
        except IndexError:
            return
        try:
            context.run(task)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            raised.append(error)
