"""Takes steps of the protocol in threads, for code that runs in an event loop.

A store's request blocks its thread, so none is sent from the thread of a loop. The threads are this
module's own: jobs of the application, however slow, hold up no heartbeat and no commit. Nor do
claims, however many a burst brings and however slow the store is::

    a step of a run     heartbeat, intent, commit, failure     as it comes, before any claim
    a claim             also of a key that is waited for       when no step waits for a thread, and
                                                               at most MOST_CLAIMS at the same time

A claim that waits holds no thread: its task waits in the loop. So a process claims no more keys
than it can renew and complete.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from threading import Lock
from typing import Any, Final, NamedTuple

from carride_idempotency.forks import renew_in_children
from carride_idempotency.stores.transport import MOST_CONNECTIONS

MOST_CLAIMS: Final = 20
"""Claims that are made at the same time. The other threads are for steps of runs."""
MOST_THREADS: Final = MOST_CONNECTIONS
"""A thread sends one request at a time, so each has a connection of botocore's client."""


class _Job(NamedTuple):
    """A step to take."""

    future: Future[Any]
    context: Context
    step: Callable[[], Any]
    claims: bool


class _Turn:
    """The turn of a further thread to take jobs. It is void if the process could have none."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_void = False


class StepThreads:
    """The threads of this process, and what waits for them.

    No job waits for another one or for a loop, so a bounded number of threads is enough.
    """

    def __init__(self) -> None:
        self._begin()
        renew_in_children(self, StepThreads._begin)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="idempotency-store")
        self._lock = Lock()
        self._steps: deque[_Job] = deque()
        self._claims: deque[_Job] = deque()
        self._claiming = 0
        self._working = 0

    def take(self, job: _Job) -> None:
        """Have a thread take a job when it is its turn."""
        with self._lock:
            (self._claims if job.claims else self._steps).append(job)
            if self._working == MOST_THREADS:
                return
            self._working += 1
        turn = _Turn()
        try:
            self._pool.submit(self._work, turn)
        except RuntimeError:  # the interpreter ends, or the process may have no more threads
            if self._is_left_over(turn):
                self._take_all()

    def _is_left_over(self, turn: _Turn) -> bool:
        """Return whether no thread takes jobs in place of one that could not be had.

        The pool keeps a turn that it has no thread for, and another of its threads may find it.
        """
        with self._lock:
            if turn.has_begun:
                return False
            turn.is_void = True
            if self._working == 1:  # which counts this one
                return True
            self._working -= 1
            return False

    def _work(self, turn: _Turn) -> None:
        with self._lock:
            if turn.is_void:
                return
            turn.has_begun = True
        self._take_all()

    def _take_all(self) -> None:
        """Take jobs until it is no job's turn."""
        job = self._next(None)
        while job is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    result = job.context.run(job.step)
                except BaseException as error:  # noqa: BLE001 - raised where the step is awaited
                    job.future.set_exception(error)
                else:
                    job.future.set_result(result)
            job = self._next(job)

    def _next(self, ended: _Job | None) -> _Job | None:
        """Return the job whose turn it is. A claim that has ended makes room for another."""
        with self._lock:
            if ended is not None and ended.claims:
                self._claiming -= 1
            if self._steps:
                return self._steps.popleft()
            if self._claims and self._claiming < MOST_CLAIMS:
                self._claiming += 1
                return self._claims.popleft()
            self._working -= 1
            return None


_threads: Final = StepThreads()


def submit[T](
    step: Callable[[], T], *, claims: bool = False, after: Future[Any] | None = None
) -> Future[T]:
    """Begin a step in a thread, with the context variables of the caller.

    It begins ``after`` another job has ended, if that is given; no thread waits for it.
    """
    job = _Job(Future(), copy_context(), step, claims)
    if after is None:
        _threads.take(job)
    else:
        after.add_done_callback(lambda _: _threads.take(job))
    return job.future


async def end_of(job: Future[Any]) -> None:
    """Wait for the end of a step. If the task that waits is cancelled, the step goes on."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()

    def tell_loop(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(_set_done, end)

    job.add_done_callback(tell_loop)
    await end


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def in_thread[T](
    step: Callable[[], T], *, claims: bool = False, after: Future[Any] | None = None
) -> T:
    """Take a step in a thread as `submit` does, and return what it returns.

    A task that is cancelled meanwhile still waits for the end of the step, so that nothing
    overtakes it. A second cancellation ends the wait, but not the step.
    """
    job = submit(step, claims=claims, after=after)
    try:
        await end_of(job)
    except asyncio.CancelledError:
        await end_of(job)
        raise
    return job.result()
