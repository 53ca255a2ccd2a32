"""Runs ``async def`` handlers of Lambda to their end: each run in an event loop of its thread.

A loop is kept for the next run, so that an HTTP session of one invocation serves the next. Records
of a batch that run at the same time have a loop each: one that blocks holds up no other.
"""

import asyncio
import atexit
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import wraps
from selectors import SelectSelector
from typing import TYPE_CHECKING, Any, Final

from carride_idempotency.aio.operation import AsyncOperation
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.forks import renew_in_children
from carride_idempotency.protocol.concurrency import is_in_a_loop

if TYPE_CHECKING:
    from carride_idempotency.protocol.operation import Operation


class IdleLoops:
    """The loops of this process in which nothing runs."""

    def __init__(self) -> None:
        self.runners: deque[asyncio.Runner] = deque()
        renew_in_children(self, IdleLoops._forget)

    def close(self) -> None:
        """Close them."""
        while self.runners:
            self.runners.pop().close()

    def _forget(self) -> None:
        """Close the parent's loops in a child, without what `close` says to their selector.

        An epoll of Linux is one for both processes: the parent's loops would not wake up any more.
        """
        while self.runners:
            loop: Any = self.runners.pop().get_loop()
            if hasattr(loop, "_selector"):
                loop._selector.close()  # noqa: SLF001 - asyncio has no other way to it
                loop._selector = SelectSelector()  # noqa: SLF001 - as above
                loop.close()


_idle: Final = IdleLoops()


def run_to_end[E](work: Callable[[E, Any], Any]) -> Callable[[E, "Operation | None"], Any]:
    """Return an ``async def`` handler as a plain function that returns when the work is done."""

    @wraps(work)
    def run(event: E, operation: "Operation | None") -> Any:
        begun = work(event, None if operation is None else AsyncOperation(operation))
        # A plain function around the handler may have run it itself.
        return _run(begun) if asyncio.iscoroutine(begun) else begun

    return run


def outside_of_loops[**P, R](handler: Callable[P, R]) -> Callable[P, R]:
    """Return a handler that says what to do where a loop is running already."""

    @wraps(handler)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_in_a_loop():
            from carride_idempotency.errors.misuse import handler_in_a_loop

            raise handler_in_a_loop(getattr(handler, "__name__", "handler"))
        return handler(*args, **kwargs)

    return call


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns.

    Raises:
        UnfinishedWorkError: it was cancelled, or tasks that it has begun have not ended.
    """
    try:
        runner = _idle.runners.pop()
    except IndexError:
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    try:
        result = runner.run(coroutine, context=copy_context())
    except asyncio.CancelledError as cancelled:
        raise UnfinishedWorkError("the handler was cancelled before its end") from cancelled
    finally:
        left = _end_tasks(runner)
        _idle.runners.append(runner)
    if left:
        raise UnfinishedWorkError(
            f"the handler returned before {', '.join(left)}, which it had begun: await its tasks"
        )
    return result


def _end_tasks(runner: asyncio.Runner) -> list[str]:
    """Cancel the tasks that a run has left, and wait for their end; return their names."""
    tasks = asyncio.all_tasks(runner.get_loop())
    if not tasks:
        return []
    runner.run(_cancelled(tasks))
    return sorted(task.get_name() for task in tasks)


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@atexit.register
def _close() -> None:
    _idle.close()
