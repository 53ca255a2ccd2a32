"""Blocks and functions in an event loop: the protocol's steps are taken in threads.

A task can be cancelled wherever it waits::

    it waited for              what the cancellation leaves
    its turn to claim          nothing: the claim is not made
    its claim                  nothing: the claim is given up at once
    a busy key                 nothing
    its work                   a failure, which uses up no attempt
    its commit                 what the commit writes: it goes on

If the loop itself ends, the next delivery takes the attempt over, as after a crash.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, Final

from carride_idempotency.aio.operation import AsyncOperation
from carride_idempotency.aio.steps import end_of, in_thread, submit
from carride_idempotency.errors import RetryableError
from carride_idempotency.observation import COMMITTED
from carride_idempotency.policy import HEARTBEATS_PER_LEASE
from carride_idempotency.protocol.call_steps import AnyBlock, ReadCall, fail_run, take_step
from carride_idempotency.protocol.delivery import Delivery, DeliveryAnswer
from carride_idempotency.protocol.run import Runner, Started, Waiting
from carride_idempotency.protocol.unfinished import finished

type _Begun = Started | Waiting | DeliveryAnswer

_CANCELLED: Final = "its task was cancelled"
"""The failure of a cancelled attempt: a RetryableError, because it is not the message's fault."""


class AsyncBlock(AnyBlock):
    """An operation that is either ``done`` already, or worked on and completed in this block.

    If the task is cancelled in the block, the attempt has failed.
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
        self._run: LoopRun | None = None

    async def enter(self) -> AsyncBlock:
        """Claim the key, or find that the operation was done before."""
        begun = await begin(self._runner, self._delivery)
        if isinstance(begun, DeliveryAnswer):
            self._block = AsyncBlock(None, begun)
        else:
            self._block = AsyncBlock(begun, None)
            self._run = LoopRun(self._runner, begun)
        return self._block

    async def leave(self, error: BaseException | None) -> None:
        """Complete the operation, or record the error that has ended the block."""
        block = self._block
        run = self._run
        if block is None or run is None:
            return
        if error is None:
            finish = partial(self._runner.finish, run.started, block._result)
            block._answer = await run.end(finish)
        else:
            await run.end_with(error)


class LoopRun:
    """One run in an event loop. Heartbeats renew its claim if the work may outlast the lease.

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
            self._schedule_beat()

    async def end[T](self, step: Callable[[], T | DeliveryAnswer]) -> T | DeliveryAnswer:
        """Take the last step of the run, and report its answer. No heartbeat follows it."""
        self._stop_beats()
        last = partial(take_step, self._runner, self.started.delivery, step)
        return await in_thread(last, after=self._beat)

    async def end_with(self, error: BaseException) -> None:
        """Record the error or the cancellation that has ended the work.

        Other exceptions stop the process or the loop: for the record, that is a crash.
        """
        self._stop_beats()
        failure = RetryableError(_CANCELLED) if isinstance(error, asyncio.CancelledError) else error
        if isinstance(failure, Exception):
            await in_thread(
                partial(fail_run, self._runner, self.started, failure), after=self._beat
            )

    def _schedule_beat(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._send_beat)

    def _send_beat(self) -> None:
        self._beat = submit(self.started.operation._held.renew)
        self._beat.add_done_callback(self._beat_ended)

    def _beat_ended(self, _: object) -> None:
        # A beat may have failed. The lease outlasts two of those, so the next beat is the retry.
        with suppress(RuntimeError):  # the loop is closed, and the work has ended with it
            self._loop.call_soon_threadsafe(self._schedule_next)

    def _schedule_next(self) -> None:
        if self._timer is not None:
            self._schedule_beat()

    def _stop_beats(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


async def begin(runner: Runner, delivery: Delivery) -> Started | DeliveryAnswer:
    """Claim the delivery's key, or answer if there is nothing to run; wait for it by policy."""
    claim: Callable[[], _Begun] = partial(runner.claim_key, delivery)
    while True:
        begun = await _claimed(runner, delivery, claim)
        if not isinstance(begun, Waiting):
            return begun
        await _pause(runner, begun.pause_ms / 1000)
        claim = partial(runner.claim_again, begun)


async def _claimed(runner: Runner, delivery: Delivery, claim: Callable[[], _Begun]) -> _Begun:
    """Take a claim's step in a thread. If the task is cancelled, no claim is left."""

    def step() -> _Begun:
        return take_step(runner, delivery, claim)

    job = submit(step, claims=True)
    try:
        await end_of(job)
    except asyncio.CancelledError:
        if not job.cancel():
            await in_thread(partial(_give_up, runner, job), after=job)
        raise
    return job.result()


def _give_up(runner: Runner, job: Future[_Begun]) -> None:
    """Record a claim that has been made as failed: its task was cancelled."""
    if job.exception() is None:
        begun = job.result()
        if isinstance(begun, Started) and begun.claimed:
            fail_run(runner, begun, RetryableError(_CANCELLED))


async def _pause(runner: Runner, seconds: float) -> None:
    """Wait without stopping the loop. A consumer's own ``sleep`` runs in a thread."""
    if runner.sleep is time.sleep:
        await asyncio.sleep(seconds)
    else:
        await in_thread(partial(runner.sleep, seconds), claims=True)


# ── Functions ─────────────────────────────────────────────────────────────────────────────────────


def async_function(
    runner: Runner,
    work: Callable[..., Any],
    read_call: Callable[..., ReadCall],
    *,
    takes_operation: bool,
) -> Callable[..., Any]:
    """Return a decorated ``async def`` function: `Consumer.function` explains it."""

    @wraps(work)
    async def call(*args: Any, **kwargs: Any) -> Any:
        bound, delivery = read_call(args, kwargs)
        results: list[Any] = []  # one for each run: after a conflict there may be another one

        async def run(operation: AsyncOperation) -> object:
            if takes_operation:
                bound.arguments["operation"] = operation
            result = work(*bound.args, **bound.kwargs)
            if isawaitable(result):  # a wrapper of an async def may have awaited it
                result = await result
            results.append(finished(result))
            return results[-1]

        answer = await run_delivery(runner, delivery, run)
        return results[-1] if answer.outcome in COMMITTED else answer.value()

    return call


async def run_delivery(
    runner: Runner, delivery: Delivery, work: Callable[[AsyncOperation], Awaitable[object]]
) -> DeliveryAnswer:
    """Run ``work`` once for the delivery's key, as `Runner.run_delivery` does."""
    begun = await begin(runner, delivery)
    while isinstance(begun, Started):
        begun = await _run(runner, begun, work)
    return begun


async def _run(
    runner: Runner, started: Started, work: Callable[[AsyncOperation], Awaitable[object]]
) -> Started | DeliveryAnswer:
    run = LoopRun(runner, started)
    try:
        value = await work(AsyncOperation(started.operation))
    except Exception as error:  # noqa: BLE001 - recorded, then raised with the answer
        return await run.end(partial(runner.end_failed, started, error))
    except BaseException as error:
        await run.end_with(error)
        raise
    return await run.end(partial(runner.end, started, value))
