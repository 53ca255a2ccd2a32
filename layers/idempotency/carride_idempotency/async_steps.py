"""Takes steps of the protocol in threads, for code that runs in an event loop.

A store's request blocks its thread, so none is sent from the thread of a loop. The threads are this
module's own: jobs of the application, however slow, hold up no heartbeat and no commit.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final

_MOST_THREADS: Final = 20
"""As many as a client of botocore has connections."""

_threads: Final = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="idempotency-store")
"""A step waits for no other step and for no loop, so a bounded number of threads takes them all."""


def submitted[T](step: Callable[[], T]) -> asyncio.Future[T]:
    """Begin a step in a thread, with the context variables of the caller.

    Once it has been submitted it is taken, also if nobody waits for it any more.
    """
    future = asyncio.wrap_future(_threads.submit(copy_context().run, step))
    future.add_done_callback(_heard)
    return future


async def taken[T](step: Callable[[], T]) -> T:
    """Take a step in a thread, and return what it returns.

    A task that is cancelled meanwhile waits for its end: what follows must not overtake it. A
    second cancellation ends the wait, and not the step.
    """
    future = submitted(step)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not future.done():
            await asyncio.wait([future])
        raise


def _heard[T](future: asyncio.Future[T]) -> None:
    """Mark the error of a step as seen: whoever waited for it may have been cancelled."""
    if not future.cancelled():
        future.exception()
