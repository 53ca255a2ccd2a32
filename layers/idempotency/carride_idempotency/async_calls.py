"""Blocks and functions in an event loop: the protocol's steps are taken in threads.

A task can be cancelled wherever it waits. What is left then, by what it waited for::

    its turn in a thread, a claim     nothing, or a claim that is given up at once
    a pause, for a busy key           nothing
    the work                          an attempt that is recorded as failed, and uses up none
    the commit                        what the commit makes of it: it was begun, and goes on

Where the loop itself ends, the next delivery takes the attempt over, as after a crash.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, Final

from carride_idempotency.async_operation import AsyncOperation
from carride_idempotency.async_steps import ended, submitted, taken
from carride_idempotency.call_steps import AnyBlock, Asked, failed_run, reported
from carride_idempotency.delivery import Delivery, DeliveryAnswer
from carride_idempotency.errors import RetryableError
from carride_idempotency.observation import COMMITTED
from carride_idempotency.policy import HEARTBEATS_PER_LEASE
from carride_idempotency.runner import Runner, Started, Waiting
from carride_idempotency.unfinished import finished

type _Begun = Started | Waiting | DeliveryAnswer

_CANCELLED: Final = "its task was cancelled"
"""The failure of a cancelled attempt. It is nobody's fault, so it is a RetryableError."""


class AsyncBlock(AnyBlock):
    """What ``async with`` gives: the operation is ``done`` already, or worked on in this block.

    If the task is cancelled inside, the attempt has failed.
    """

    @property
    def operation(self) -> AsyncOperation:
        """The attempt that is running; a RuntimeError if the operation was done before."""
        return AsyncOperation(self._running())


class AsyncClaim:
    """The claim of a delivery's key for a block in an event loop."""

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self._delivery = delivery
        self._block: AsyncBlock | None = None
        self._run: Run | None = None

    async def enter(self) -> AsyncBlock:
        """Claim the key, or find that the operation was done before."""
        given = await begin(self._runner, self._delivery)
        if isinstance(given, DeliveryAnswer):
            self._block = AsyncBlock(None, given)
        else:
            self._block = AsyncBlock(given, None)
            self._run = Run(self._runner, given)
        return self._block

    async def leave(self, error: BaseException | None) -> None:
        """Complete the operation, or record what has ended the block."""
        block = self._block
        run = self._run
        if block is None or run is None:
            return
        if error is None:
            finish = partial(self._runner.finish, run.started, block._result)
            block._answer = await run.end(finish)
        else:
            await run.end_with(error)


class Run:
    """One run in the loop under a claim, which is renewed at intervals if the work may outlast it.

    A loop that is blocked sends no heartbeat.
    """

    def __init__(self, runner: Runner, started: Started) -> None:
        self.started = started
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._interval_s = runner.policy.lease / HEARTBEATS_PER_LEASE
        self._timer: asyncio.TimerHandle | None = None
        self._beat: Future[bool] | None = None
        if started.renewed:
            self._wait()

    async def end[T](self, step: Callable[[], T | DeliveryAnswer]) -> T | DeliveryAnswer:
        """Take the last step of the run, and report it; no heartbeat follows it."""
        self._stop()
        last = partial(self._after_the_beat, step)
        return await taken(partial(reported, self._runner, self.started.delivery, last))

    async def end_with(self, error: BaseException) -> None:
        """Record what has ended the work: an error, or a cancellation.

        Anything else stops the process, or the loop: for the record that is a crash.
        """
        self._stop()
        failure = RetryableError(_CANCELLED) if isinstance(error, asyncio.CancelledError) else error
        if isinstance(failure, Exception):
            fail = partial(failed_run, self._runner, self.started, failure)
            await taken(partial(self._after_the_beat, fail))

    def _after_the_beat[T](self, step: Callable[[], T]) -> T:
        if self._beat is not None:
            self._beat.exception()  # waits for it: it was submitted before, so it is under way
        return step()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._send)

    def _send(self) -> None:
        self._beat = submitted(self.started.operation._held.renew)
        self._beat.add_done_callback(self._sent)

    def _sent(self, _: object) -> None:
        # The lease outlasts two missed beats, so the next beat is the retry.
        with suppress(RuntimeError):  # the loop is closed, and the work has ended with it
            self._loop.call_soon_threadsafe(self._wait_again)

    def _wait_again(self) -> None:
        if self._timer is not None:
            self._wait()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


async def begin(runner: Runner, delivery: Delivery) -> Started | DeliveryAnswer:
    """Claim the delivery's key, or answer if there is nothing to run; wait for it by policy."""
    claim: Callable[[], _Begun] = partial(runner.claim_key, delivery)
    while True:
        given = await _claimed(runner, delivery, claim)
        if not isinstance(given, Waiting):
            return given
        await _pause(runner, given.pause_ms / 1000)
        claim = partial(runner.claim_again, given)


async def _claimed(runner: Runner, delivery: Delivery, claim: Callable[[], _Begun]) -> _Begun:
    """Take a claim's step in a thread. If the task is cancelled, no claim is left."""

    def step() -> _Begun:
        return reported(runner, delivery, claim)

    job = submitted(step)
    try:
        await ended(job)
    except asyncio.CancelledError:
        if not job.cancel():
            await taken(partial(_give_up, runner, job))
        raise
    return job.result()


def _give_up(runner: Runner, job: Future[_Begun]) -> None:
    """Record that a claim is not wanted any more, as soon as it has been made."""
    if job.exception() is None:
        given = job.result()
        if isinstance(given, Started) and given.claimed:
            failed_run(runner, given, RetryableError(_CANCELLED))


async def _pause(runner: Runner, seconds: float) -> None:
    """Let the loop go on for some time. A consumer's own ``sleep`` takes its time in a thread."""
    if runner.sleep is time.sleep:
        await asyncio.sleep(seconds)
    else:
        await taken(partial(runner.sleep, seconds))


# ── Functions ─────────────────────────────────────────────────────────────────────────────────────


def async_function(
    runner: Runner, work: Callable[..., Any], asked: Callable[..., Asked], *, takes_operation: bool
) -> Callable[..., Any]:
    """Return a decorated ``async def`` function: `Consumer.function` explains it."""

    @wraps(work)
    async def call(*args: Any, **kwargs: Any) -> Any:
        bound, delivery = asked(args, kwargs)
        returned: list[Any] = []  # by the latest run: after a conflict there may be another one

        async def run(operation: AsyncOperation) -> object:
            if takes_operation:
                bound.arguments["operation"] = operation
            begun = work(*bound.args, **bound.kwargs)
            returned[:] = [finished(await begun if isawaitable(begun) else begun)]
            return returned[0]

        answer = await run_delivery(runner, delivery, run)
        return returned[0] if answer.outcome in COMMITTED else answer.value()

    return call


async def run_delivery(
    runner: Runner, delivery: Delivery, work: Callable[[AsyncOperation], Awaitable[object]]
) -> DeliveryAnswer:
    """Run ``work`` once for the delivery's key, as `Runner.run_delivery` does."""
    given = await begin(runner, delivery)
    while isinstance(given, Started):
        given = await _run(runner, given, work)
    return given


async def _run(
    runner: Runner, started: Started, work: Callable[[AsyncOperation], Awaitable[object]]
) -> Started | DeliveryAnswer:
    run = Run(runner, started)
    try:
        value = await work(AsyncOperation(started.operation))
    except Exception as error:  # noqa: BLE001 - recorded, then raised with the answer
        return await run.end(partial(runner.end_failed, started, error))
    except BaseException as error:
        await run.end_with(error)
        raise
    return await run.end(partial(runner.end, started, value))
