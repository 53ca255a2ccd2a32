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

MOST_THREADS: Final = 20
"""As many as a client of botocore has connections."""

_threads: Final = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="idempotency-store")
"""A step waits for no other step and for no loop, so a bounded number of threads takes them all."""


def submitted[T](step: Callable[[], T]) -> Future[T]:
    """Begin a step in a thread, with the context variables of the caller."""
    return _threads.submit(copy_context().run, step)


async def ended(job: Future[Any]) -> None:
    """Wait for the end of a step. It goes on if the task that waits is cancelled."""
    loop = asyncio.get_running_loop()
    waits: asyncio.Future[None] = loop.create_future()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(_wake, waits)

    job.add_done_callback(tell)
    await waits


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def taken[T](step: Callable[[], T]) -> T:
    """Take a step in a thread, and return what it returns.

    A task that is cancelled meanwhile waits for its end: what follows must not overtake it. A
    second cancellation ends the wait, and not the step.
    """
    job = submitted(step)
    try:
        await ended(job)
    except asyncio.CancelledError:
        await ended(job)
        raise
    return job.result()
