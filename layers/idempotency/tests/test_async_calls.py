"""``async with`` in an event loop: steps run in threads, and cancelled work is not completed."""

import asyncio
import functools
import gc
import inspect
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

import pytest

from carride_idempotency import (
    NOT_DONE,
    AsyncOperation,
    ConfigurationError,
    Consumer,
    Done,
    Effect,
    EffectConflictError,
    MemoryStore,
    Observation,
    PayloadMismatchError,
    Policy,
    Put,
    RetryableError,
    StoreUnavailableError,
)
from carride_idempotency.aio import calls as async_calls
from carride_idempotency.aio import steps as async_steps
from carride_idempotency.aio.calls import AsyncBlock, LoopRun
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.record import Record
from carride_idempotency.testing import START_MS, ManualClock
from tests.samples import consumer_of

COLOUR: Final = ContextVar("colour", default="none")
EFFECT: Final = Put("Rides", {"id": "order_01"})
PATIENCE_S: Final = 60

type Body = Callable[[AsyncOperation], Awaitable[object]]


async def nothing(_: object) -> None:
    await asyncio.sleep(0)


class Desk:
    """A consumer in a loop, the steps that its store is asked for, and what they leave.

    ``before`` and ``after`` are called with the number of each step, in its thread.
    """

    def __init__(self, **settings: Any) -> None:
        self.effects: list[Effect] = []
        self.seen: list[Observation] = []
        self.colours: list[str] = []
        self.steps: list[str] = []
        self.steps_of: dict[str, list[str]] = defaultdict(list)
        """The same by the key, as it was given."""
        self.before: Callable[[int], None] = lambda _: None
        self.after: Callable[[int], None] = lambda _: None
        self.threads: set[int] = set()
        self.body: Body = nothing
        self.memory = MemoryStore(apply=self.effects.extend)
        store: Any = self
        self.consumer: Consumer[Any] = consumer_of(
            "rides", store, **({"observe": self.observe} | settings)
        )
        self.transactional = True

    def observe(self, seen: Observation) -> None:
        self.seen.append(seen)
        self.colours.append(COLOUR.get())

    def __getattr__(self, step: str) -> Callable[..., Any]:
        take = getattr(self.memory, step)

        def taken(*args: Any, **options: Any) -> Any:
            records = [each for each in args if isinstance(each, Record)]
            status = records[-1].status if records else ""
            self.threads.add(threading.get_ident())
            self.steps.append(f"{step} {status}".strip())
            key = records[-1].key if records else str(args[0])
            self.steps_of[key.removeprefix("rides#")].append(self.steps[-1])
            number = len(self.steps)
            self.before(number)
            answer = take(*args, **options)
            self.after(number)
            return answer

        return taken

    def record(self, key: str = "k1") -> Record | None:
        """Return the record of a block or of the function ``book``."""
        return self.memory.read(f"rides#{key}") or self.memory.read(f"rides/book#{key}")

    async def book(self, key: str = "k1", body: Body | None = None) -> Any:
        """Register one effect under a key, and do what else the body does."""
        async with self.consumer.operation(key) as block:
            if not block.done:
                block.operation.write(EFFECT)
                if body is not None:
                    await body(block.operation)
                block.complete("booked")
        return block.result


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, with a deadline."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


# ── One run ───────────────────────────────────────────────────────────────────────────────────────


def test_a_block_takes_effect_once() -> None:
    """A second one is done already, and has the result of the first."""
    desk = Desk()

    async def service() -> list[Any]:
        return [await desk.book(), await desk.book()]

    assert asyncio.run(service()) == ["booked", "booked"]
    assert len(desk.effects) == 1
    assert [seen.outcome for seen in desk.seen] == ["New", "Duplicate"]


def test_an_error_that_leaves_a_block_is_its_failure() -> None:
    """It is recorded, counted and raised."""
    desk = Desk()

    async def fail(_: object) -> None:
        raise KeyError("pickup")

    with pytest.raises(KeyError):
        asyncio.run(desk.book(body=fail))
    record = desk.record()
    assert record is not None
    assert (record.status, record.attempt, record.error) == ("FAILED", 1, "KeyError: 'pickup'")
    assert desk.effects == []


def test_no_step_is_taken_in_the_thread_of_the_loop() -> None:
    """Claim, intent, heartbeat, commit, failure and wait: none blocks the loop."""
    desk = Desk(policy=Policy(busy="wait", wait_limit=1))
    loop_threads = set[int]()

    async def work(operation: AsyncOperation) -> None:
        loop_threads.add(threading.get_ident())
        await operation.external("charge", nothing)
        await operation.heartbeat()
        await until(lambda: "read" in desk.steps)  # the other task waits for the key

    async def fail(_: object) -> None:
        raise KeyError("pickup")

    async def service() -> None:
        with suppress(KeyError):
            await desk.book("k2", fail)
        await asyncio.gather(desk.book(body=work), desk.book(body=work))

    asyncio.run(service())
    assert set(desk.steps) == {
        "put_if_absent IN_PROGRESS",
        "update_if_owner FAILED",
        "update_if_owner IN_PROGRESS",
        "update_if_owner COMPLETED",
        "read",
    }
    assert loop_threads.isdisjoint(desk.threads)


def test_an_observer_sees_the_variables_of_the_caller() -> None:
    """Such as the span of a trace."""
    desk = Desk()

    async def service() -> None:
        COLOUR.set("red")
        await desk.book()

    asyncio.run(service())
    assert desk.colours == ["red"]


def test_work_in_a_block_that_was_done_is_refused() -> None:
    """It has forgotten to ask, so a duplicate would take effect again."""
    desk = Desk()

    async def service() -> None:
        await desk.book()
        async with desk.consumer.operation("k1") as block:
            with pytest.raises(RuntimeError, match=r"if not block\.done"):
                assert block.operation
            with pytest.raises(RuntimeError, match=r"if not block\.done"):
                block.complete("again")

    asyncio.run(service())


def test_a_block_is_entered_once() -> None:
    """Another operation needs another block."""
    desk = Desk()

    async def service() -> None:
        context = desk.consumer.operation("k1")
        async with context as block:
            assert isinstance(block, AsyncBlock)
            assert isinstance(block.operation, AsyncOperation)
        with pytest.raises(RuntimeError, match="entered once"):
            await context.__aenter__()

    asyncio.run(service())


def test_a_plain_block_in_a_running_loop_says_what_to_do() -> None:
    """It would stall every other task, and could wait for one of them; nothing is claimed."""
    desk = Desk()

    def plain() -> None:
        with desk.consumer.operation("k1"):
            pass

    async def service() -> None:
        with pytest.raises(ConfigurationError, match=r"async with consumer\.operation"):
            plain()
        assert desk.steps == []
        await asyncio.to_thread(plain)

    asyncio.run(service())
    record = desk.record()
    assert record is not None
    assert record.status == "COMPLETED"


# ── Functions ─────────────────────────────────────────────────────────────────────────────────────


def booking(desk: Desk, **options: Any) -> Any:
    """Return a function that registers an effect, does what the desk's body does, and counts."""
    runs: list[int] = []

    @desk.consumer.function(key="ride", name="book", **options)
    async def book(ride: str, seats: int, operation: AsyncOperation | None = None) -> list[int]:
        assert operation is not None
        runs.append(seats)
        operation.write(EFFECT)
        await desk.body(operation)
        return runs

    return book


def test_a_function_takes_effect_once() -> None:
    """It stays a coroutine function, and a second call gets an equal result."""
    desk = Desk()
    book = booking(desk)

    async def service() -> list[Any]:
        return [await book("k1", 2), await book("k1", seats=2)]

    assert inspect.iscoroutinefunction(book)
    assert asyncio.run(service()) == [[2], [2]]
    assert len(desk.effects) == 1
    assert [seen.outcome for seen in desk.seen] == ["New", "Duplicate"]


def test_another_payload_is_an_error() -> None:
    """As it is for a plain function."""
    book = booking(Desk())

    async def service() -> None:
        await book("k1", 2)
        with pytest.raises(PayloadMismatchError):
            await book("k1", 3)

    asyncio.run(service())


def test_an_error_of_a_function_is_its_failure() -> None:
    """It is recorded and raised, and the next call runs again."""
    desk = Desk()
    book = booking(desk)

    async def fail(_: object) -> None:
        raise KeyError("pickup")

    async def service() -> None:
        desk.body = fail
        with pytest.raises(KeyError):
            await book("k1", 2)
        record = desk.record()
        assert record is not None
        assert (record.status, record.attempt) == ("FAILED", 1)
        desk.body = nothing
        assert await book("k1", 2) == [2, 2]

    asyncio.run(service())
    assert [seen.outcome for seen in desk.seen] == ["Failed", "Retried"]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_function_runs_again_after_a_conflict(*, atomic: bool) -> None:
    """Under its claim or without one, as often as the policy says."""
    desk = Desk(policy=Policy(conflict_reruns=1, atomic=atomic))
    conflicts = [1, 2]

    def apply(effects: Sequence[Effect]) -> None:
        if conflicts:
            conflicts.pop()
            raise EffectConflictError(0)
        desk.effects.extend(effects)

    desk.memory = MemoryStore(apply=apply)
    book = booking(desk)

    async def service() -> list[int]:
        with pytest.raises(EffectConflictError):
            await book("k1", 2)
        result: list[int] = await book("k1", 2)
        return result

    assert asyncio.run(service()) == [2, 2, 2]
    assert len(desk.effects) == 1


def test_an_atomic_function_makes_no_claim() -> None:
    """One that is cancelled while its run begins leaves nothing."""
    begins = threading.Event()
    is_cancelled = threading.Event()

    def clock() -> int:
        if threading.current_thread() is not threading.main_thread():
            begins.set()
            assert is_cancelled.wait(PATIENCE_S)
        return START_MS

    desk = Desk()
    desk.consumer = consumer_of("rides", desk, policy=Policy(atomic=True), clock=clock)
    book = booking(desk)

    async def service() -> None:
        task = asyncio.create_task(book("k1", 2))
        await asyncio.to_thread(begins.wait, PATIENCE_S)
        task.cancel()
        await asyncio.sleep(0)
        is_cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert desk.steps == []
        await book("k1", 2)

    asyncio.run(service())
    assert desk.steps == ["put_if_absent COMPLETED"]


def test_a_result_that_is_unfinished_work_is_a_failure() -> None:
    """Nobody would await it."""
    desk = Desk()

    @desk.consumer.function(key="ride", name="book")
    async def book(ride: str) -> list[Any]:
        return [nothing(None)]

    with pytest.raises(UnfinishedWorkError):
        asyncio.run(book("k1"))


def test_a_wrapper_of_an_async_function_may_answer_itself() -> None:
    """Such as one that has cached the answer."""
    desk = Desk()

    async def book(ride: str) -> str:
        return "booked"

    @functools.wraps(book)
    def cached(ride: str) -> Any:
        return "cached" if ride == "k1" else book(ride)

    call = desk.consumer.function(key="ride", name="book")(cached)

    async def service() -> list[Any]:
        return [await call("k1"), await call("k2")]

    assert asyncio.run(service()) == ["cached", "booked"]


def test_a_run_that_was_overtaken_returns_the_result_of_the_other() -> None:
    """Its own effect is not committed."""
    desk = Desk()
    book = booking(desk)

    async def overtake(_: object) -> None:
        held = desk.record()
        assert held is not None
        ended = held._replace(owner="another", attempt=2, status="COMPLETED", result="[7]")
        desk.memory.compare_and_swap(held, ended)

    desk.body = overtake
    assert asyncio.run(book("k1", 2)) == [7]
    assert desk.effects == []


def test_a_plain_function_in_a_running_loop_says_what_to_do() -> None:
    """It would stall every other task; nothing is claimed. In a thread it runs."""
    desk = Desk()

    @desk.consumer.function(key="ride", name="book")
    def book(ride: str) -> str:
        return "booked"

    async def service() -> str:
        with pytest.raises(ConfigurationError, match=r"await asyncio\.to_thread\(book, \.\.\.\)"):
            book("k1")
        assert desk.steps == []
        return await asyncio.to_thread(book, "k1")

    assert asyncio.run(service()) == "booked"


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────


def test_more_tasks_than_threads_can_wait_for_one_key() -> None:
    """A waiter holds no thread during its pauses, so the holder can commit."""
    desk = Desk(policy=Policy(busy="wait", wait_limit=PATIENCE_S), jitter=lambda: 0.0)
    waiters = 2 * async_steps.MOST_THREADS
    begun = 0

    async def work(_: object) -> None:
        await until(lambda: begun == waiters)

    async def wait() -> Any:
        nonlocal begun
        begun += 1
        return await desk.book()

    async def service() -> list[Any]:
        holder = asyncio.create_task(desk.book(body=work))
        await until(lambda: bool(desk.steps))
        return await asyncio.gather(holder, *[wait() for _ in range(waiters)])

    assert asyncio.run(service()) == ["booked"] * (waiters + 1)
    assert len(desk.effects) == 1


def test_more_nested_blocks_than_threads_make_progress() -> None:
    """Work that runs holds no thread either."""
    desk = Desk()
    blocks = 2 * async_steps.MOST_THREADS
    begun = 0

    async def nest(number: int) -> None:
        async def work(_: object) -> None:
            nonlocal begun
            begun += 1
            await until(lambda: begun == blocks)
            await desk.book(f"inner-{number}")

        await desk.book(f"outer-{number}", work)

    async def service() -> None:
        await asyncio.gather(*[nest(number) for number in range(blocks)])

    asyncio.run(service())
    assert len(desk.effects) == 2 * blocks


def test_the_sleep_of_a_consumer_takes_its_time_in_a_thread() -> None:
    """A test's clock moves in it; in the loop it would stall all tasks."""
    clock = ManualClock()
    threads: list[int] = []

    def sleep(seconds: float) -> None:
        threads.append(threading.get_ident())
        clock.sleep(seconds)

    desk = Desk(policy=Policy(busy="wait", wait_limit=2), clock=clock, sleep=sleep)

    async def work(_: object) -> None:
        with pytest.raises(RetryableError):
            await desk.book()
        assert threads
        assert threading.get_ident() not in threads

    asyncio.run(desk.book(body=work))


# ── Heartbeats ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send heartbeats every few milliseconds."""
    monkeypatch.setattr(async_calls, "HEARTBEATS_PER_LEASE", 10_000)


def some_beats(desk: Desk, key: str) -> Body:
    """Work until some heartbeats have been sent for its key."""
    return lambda _: until(lambda: desk.steps_of[key].count("update_if_owner IN_PROGRESS") > 3)


def runs_of(loop: asyncio.AbstractEventLoop) -> list[LoopRun]:
    """Return the runs that something in an event loop still refers to."""
    gc.collect()
    runs = [each for each in gc.get_objects() if isinstance(each, LoopRun)]
    return [run for run in runs if run._loop is loop]  # noqa: SLF001 - told apart from other tests'


@pytest.mark.usefixtures("soon")
def test_work_that_may_outlast_its_lease_is_renewed() -> None:
    """A beat that raises is followed by the next; none follows the commit."""
    desk = Desk()

    def fail_once(number: int) -> None:
        if number == 2:
            raise StoreUnavailableError("no answer")

    desk.before = fail_once

    async def work(operation: AsyncOperation) -> None:
        await until(lambda: desk.steps.count("update_if_owner IN_PROGRESS") > 3)
        assert not operation.lost

    asyncio.run(desk.book(body=work))
    assert desk.steps[-1] == "update_if_owner COMPLETED"


@pytest.mark.usefixtures("soon")
def test_a_claim_that_is_lost_is_not_renewed() -> None:
    """Nothing is written for it any more; the work can see it, and its effect is not committed."""
    desk = Desk()

    async def work(operation: AsyncOperation) -> None:
        held = desk.record()
        assert held is not None
        taken_over = held._replace(owner="another", attempt=2)
        desk.memory.compare_and_swap(held, taken_over)
        await until(lambda: operation.lost)
        beats = len(desk.steps_of["k1"])
        await desk.book("k2", some_beats(desk, "k2"))
        assert len(desk.steps_of["k1"]) == beats

    with pytest.raises(RetryableError):
        asyncio.run(desk.book(body=work))
    assert len(desk.effects) == 1, "that of the other key"


@pytest.mark.usefixtures("soon")
def test_no_heartbeat_follows_the_commit() -> None:
    """One that is on its way has ended before the commit is sent, and no timer keeps the run."""
    desk = Desk()
    release = threading.Event()
    ended: list[str] = []

    def hold(number: int) -> None:
        if number == 2:
            release.wait(PATIENCE_S)

    desk.before = hold
    desk.after = lambda number: ended.append(desk.steps[number - 1])

    async def work(_: object) -> None:
        await until(lambda: len(desk.steps) == 2)
        asyncio.get_running_loop().call_later(0.05, release.set)

    async def service() -> None:
        await desk.book(body=work)
        await desk.book("k2", some_beats(desk, "k2"))
        await until(lambda: not runs_of(asyncio.get_running_loop()))

    asyncio.run(service())
    assert ended[1:3] == ["update_if_owner IN_PROGRESS", "update_if_owner COMPLETED"]
    assert desk.steps_of["k1"][-1] == "update_if_owner COMPLETED"


# ── Bursts ────────────────────────────────────────────────────────────────────────────────────────

BURST: Final = 100


class Stuck:
    """Tasks of which no claim, or no wait for a key, ends before the test lets it."""

    def __init__(self) -> None:
        waits = Policy(busy="wait", wait_limit=PATIENCE_S)
        self.desk = Desk(policy=waits, sleep=self.hold)
        self.tasks: list[asyncio.Task[Any]] = []
        self.threads: set[int] = set()
        """Those that the burst has at present."""
        self._release = threading.Event()

    def hold(self, _: object = None) -> None:
        """Hold the thread of a claim or a wait."""
        self.threads.add(threading.get_ident())
        self._release.wait(PATIENCE_S)
        self.threads.discard(threading.get_ident())

    def hold_claims(self, number: int) -> None:
        if self.desk.steps[number - 1].startswith("put_if_absent"):
            self.hold()

    async def begin(self, key: Callable[[int], str]) -> None:
        """Begin the burst, and wait until it has all the threads that it gets."""
        self.tasks = [asyncio.create_task(self.desk.book(key(number))) for number in range(BURST)]
        await until(lambda: len(self.threads) == async_steps.MOST_CLAIMS)

    async def end(self) -> None:
        self._release.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def in_claims(stuck: Stuck) -> Awaitable[None]:
    stuck.desk.before = stuck.hold_claims
    return stuck.begin(lambda number: f"burst-{number}")


async def in_claims_that_are_given_up(stuck: Stuck) -> None:
    await in_claims(stuck)
    for task in stuck.tasks:
        task.cancel()
    await asyncio.sleep(0)


def in_waits_for_the_running_key(stuck: Stuck) -> Awaitable[None]:
    return stuck.begin(lambda _: "k1")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "stands_still", [in_claims, in_claims_that_are_given_up, in_waits_for_the_running_key]
)
def test_a_burst_of_claims_holds_up_no_running_key(
    stands_still: Callable[[Stuck], Awaitable[None]],
) -> None:
    """It is renewed, makes its call and commits while every thread of the claims stands still."""
    stuck = Stuck()
    desk = stuck.desk

    async def work(operation: AsyncOperation) -> None:
        await stands_still(stuck)
        beats = len(desk.steps_of["k1"])
        await until(lambda: len(desk.steps_of["k1"]) > beats + 3)
        await operation.external("charge", nothing)

    async def service() -> None:
        try:
            assert await asyncio.wait_for(desk.book(body=work), PATIENCE_S) == "booked"
            assert len(stuck.threads) == async_steps.MOST_CLAIMS
        finally:
            await stuck.end()

    asyncio.run(service())
    wait_for_threads()


# ── Cancellation ──────────────────────────────────────────────────────────────────────────────────


class Cancelled:
    """A task that is cancelled at one of its moments, and once more after it if that is ``again``.

    Its moments are before and after each step of the store, and each wait of its work.
    """

    def __init__(self, moment: int, *, again: bool = False) -> None:
        self.moment = moment
        self.again = again
        self.moments = 0
        self.what = ""
        """What it was cancelled at."""
        self.desk = Desk()
        self.desk.before = lambda number: self.meet(f"before {self.desk.steps[number - 1]}")
        self.desk.after = lambda number: self.meet(f"after {self.desk.steps[number - 1]}")
        self.charges: list[str] = []

    def run(self, call: Callable[[Body], Awaitable[Any]]) -> bool:
        """Run a task; return whether it was cancelled."""

        async def service() -> bool:
            self.loop = asyncio.get_running_loop()
            self.task = asyncio.ensure_future(call(self.work))
            await asyncio.wait([self.task], timeout=PATIENCE_S)
            assert self.task.done()
            return self.task.cancelled()

        return asyncio.run(service())

    async def work(self, operation: AsyncOperation) -> None:
        await self.wait("in the work, before the call")
        await operation.external("charge", self.charge, self.find)
        await self.wait("in the work, after the call")

    async def charge(self, key: str) -> str:
        await self.wait("in the call, before it takes effect")
        self.charges.append(key)
        await self.wait("in the call, after it took effect")
        return "receipt"

    async def find(self, key: str) -> Any:
        return Done("receipt") if key in self.charges else NOT_DONE

    async def wait(self, what: str) -> None:
        self.meet(what)
        await asyncio.sleep(0)

    def meet(self, what: str) -> None:
        """Cancel the task if this is the moment; a thread goes on when the loop has done so."""
        self.moments += 1
        if self.moments != self.moment:
            return
        self.what = what
        told = threading.Event()

        def cancel() -> None:
            self.task.cancel()
            if self.again:
                self.loop.call_soon(self.task.cancel)
            self.loop.call_soon(self.loop.call_soon, told.set)

        if what.startswith("in the"):
            cancel()
        else:
            self.loop.call_soon_threadsafe(cancel)
            assert told.wait(PATIENCE_S)


def in_a_block(desk: Desk) -> Callable[[Body], Awaitable[Any]]:
    return lambda body: desk.book(body=body)


def in_a_function(desk: Desk) -> Callable[[Body], Awaitable[Any]]:
    async def book(key: str, operation: Any = None) -> str:
        operation.write(EFFECT)
        await desk.body(operation)
        return "booked"

    call = desk.consumer.function(key="key", name="book")(book)

    def start(body: Body) -> Awaitable[Any]:
        desk.body = body
        return call("k1")

    return start


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("way", [in_a_block, in_a_function])
def test_a_task_that_is_cancelled_at_any_moment_takes_effect_once(
    way: Callable[[Desk], Callable[[Body], Awaitable[Any]]], *, again: bool
) -> None:
    """Cancelled work is recorded as failed, and never completed; the next run does it once."""
    met: list[str] = []
    for moment in range(1, 100):
        cancelled = Cancelled(moment, again=again)
        desk = cancelled.desk
        was_cancelled = cancelled.run(way(desk))
        what = cancelled.what
        if not what:
            break
        met.append(what)
        if again:
            wait_for_threads()  # once cancelled, the task has waited for what is recorded
        record = desk.record()
        assert was_cancelled, what
        if what.endswith("COMPLETED"):
            assert record is not None, what
            assert record.status == "COMPLETED", what
        else:
            assert record is not None, what
            assert (record.status, record.attempt) == ("FAILED", 0), what
            assert record.error == "RetryableError: its task was cancelled"
            assert desk.effects == [], what
        cancelled.moment = 0
        assert not cancelled.run(way(desk)), what
        assert len(desk.effects) == 1, what
        assert len(set(cancelled.charges)) == 1, what
        assert len(cancelled.charges) == 1, what
    assert met == [
        "before put_if_absent IN_PROGRESS",
        "after put_if_absent IN_PROGRESS",
        "in the work, before the call",
        "in the call, before it takes effect",
        "in the call, after it took effect",
        "in the work, after the call",
        "before update_if_owner COMPLETED",
        "after update_if_owner COMPLETED",
    ]


def wait_for_threads() -> None:
    """Wait until the steps that have been submitted are taken."""
    barrier = threading.Barrier(async_steps.MOST_THREADS)
    jobs = [
        async_steps.submit(lambda: barrier.wait(PATIENCE_S))
        for _ in range(async_steps.MOST_THREADS)
    ]
    for job in jobs:
        job.result(PATIENCE_S)


def test_a_cancelled_task_ends_after_the_step_that_it_has_begun() -> None:
    """What its caller does next must not overtake it."""
    desk = Desk()
    release = threading.Event()
    commits = threading.Event()

    def hold(number: int) -> None:
        if number == 2:
            commits.set()
            release.wait(PATIENCE_S)

    desk.before = hold

    async def service() -> None:
        task = asyncio.create_task(desk.book())
        await until(commits.is_set)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = desk.record()
        assert record is not None
        assert record.status == "COMPLETED"

    asyncio.run(service())


def test_a_claim_that_waits_for_a_thread_is_not_made() -> None:
    """A task that is cancelled before its turn leaves nothing."""
    desk = Desk()
    release = threading.Event()

    async def service() -> None:
        busy = [
            async_steps.submit(lambda: release.wait(PATIENCE_S))
            for _ in range(async_steps.MOST_THREADS)
        ]
        task = asyncio.create_task(desk.book())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        for job in busy:
            job.result(PATIENCE_S)

    asyncio.run(service())
    wait_for_threads()
    assert desk.steps == []


def test_a_timeout_leaves_a_key_that_can_be_taken_at_once() -> None:
    """The next call need not wait for the end of a lease."""
    desk = Desk()

    async def stall(_: object) -> None:
        await asyncio.sleep(PATIENCE_S)

    async def service() -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await desk.book(body=stall)
        return await desk.book()

    assert asyncio.run(service()) == "booked"
    assert [seen.outcome for seen in desk.seen] == ["Failed", "Retried"]


def test_work_that_ends_with_its_loop_is_a_crash() -> None:
    """Nothing can be awaited any more: the claim stays, and is taken over when its lease ends."""
    desk = Desk()

    async def service() -> None:
        working = asyncio.Event()

        async def stall(_: object) -> None:
            working.set()
            await asyncio.sleep(PATIENCE_S)

        call = desk.book(body=stall)
        task = asyncio.create_task(call)
        await working.wait()
        call.close()  # as the end of the loop does
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(service())
    wait_for_threads()
    record = desk.record()
    assert record is not None
    assert record.status == "IN_PROGRESS"


def test_a_call_whose_intent_is_cancelled_was_not_made() -> None:
    """The failure notes no intent, so the next attempt makes the call without an operator."""
    calls: list[str] = []

    async def call(key: str) -> None:
        calls.append(key)

    for again in (False, True):
        cancelled = Cancelled(5, again=again)
        desk = cancelled.desk

        async def work(operation: AsyncOperation) -> None:
            await operation.external("charge", call)

        cancelled.work = work  # type: ignore[method-assign]
        calls.clear()
        cancelled.moment = 3
        assert cancelled.run(in_a_block(desk))
        assert cancelled.what == "before update_if_owner IN_PROGRESS"
        wait_for_threads()
        assert calls == []
        assert not cancelled.run(in_a_block(desk))
        assert (len(calls), len(desk.effects)) == (1, 1)
