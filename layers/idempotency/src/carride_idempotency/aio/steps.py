"""Takes steps of the protocol in threads, for code that runs in an event loop.

A store's request blocks its thread, so none is sent from the thread of a loop. The threads are this
module's own: jobs of the application, however slow, hold up no heartbeat and no commit.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final

from carride_idempotency.forks import renew_in_children

MOST_THREADS: Final = 20
"""As many as a client of botocore has connections."""


class _Threads:
    """The threads of this process.

    No step waits for another one or for a loop, so a bounded number of threads is enough.
    """

    def __init__(self) -> None:
        self._begin()
        renew_in_children(self, _Threads._begin)

    def _begin(self) -> None:
        self.pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="idempotency-store")


_threads: Final = _Threads()


def submit[T](step: Callable[[], T]) -> Future[T]:
    """Begin a step in a thread, with the context variables of the caller."""
    return _threads.pool.submit(copy_context().run, step)


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


async def in_thread[T](step: Callable[[], T]) -> T:
    """Take a step in a thread, and return what it returns.

    A task that is cancelled meanwhile still waits for the end of the step, so that nothing
    overtakes it. A second cancellation ends the wait, but not the step.
    """
    job = submit(step)
    try:
        await end_of(job)
    except asyncio.CancelledError:
        await end_of(job)
        raise
    return job.result()
