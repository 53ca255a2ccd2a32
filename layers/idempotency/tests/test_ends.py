"""Threads and tasks of a handler that go on when its run ends: no step of theirs begins then.

Each seed draws deliveries of one key, what their runs and threads do, when a process dies, what an
operator does, and the order of it all, between the statements of the library.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final

import pytest
from greenlet import getcurrent

from carride_idempotency import (
    NOT_DONE,
    AsyncOperation,
    BusyError,
    Consumer,
    Done,
    Effect,
    IdempotencyError,
    MemoryStore,
    NotDoneError,
    Operation,
    PermanentError,
    Policy,
    Put,
    StoreUnavailableError,
    release,
    settle,
)
from carride_idempotency.aio import operation as async_operation
from carride_idempotency.errors import UnfinishedWorkError
from carride_idempotency.protocol import claims, externals, operation
from carride_idempotency.protocol import run as runner
from carride_idempotency.record import COMPLETED, IN_PROGRESS, QUARANTINED, Record
from carride_idempotency.testing import Inline, ManualClock
from tests.interleaving import Turns, giving_way
from tests.samples import consumer_of

KEY: Final = "shop/pay#k1"
LEASE_S: Final = 30.0
PATIENCE_S: Final = 60
SEEDS: Final = 1_200
SEEDS_EACH: Final = 400

type Setter = Callable[[Turns], None]


class HandlerError(Exception):
    """A handler's own failure."""


class Calls:
    """The other system: it recognises no keys, and takes its time for each call."""

    def __init__(self, turns: Turns, broken: list[str]) -> None:
        self.made = 0
        self.broken = broken
        self._turns = turns
        self._under_way = 0
        self._chance = turns.chance

    def charge(self, _: str) -> str:
        """Charge once, before or after a wait; or not at all."""
        self._under_way += 1
        if self._under_way > 1:
            self.broken.append("two calls are under way")
        try:
            return self._charge()
        finally:
            self._under_way -= 1

    def _charge(self) -> str:
        self._turns.sleep(self._chance.uniform(0, 2))
        fate = self._chance.random()
        if fate < 0.1:
            raise NotDoneError("declined")
        self.made += 1
        if self.made > 1:
            self.broken.append("a second charge was made")
        self._turns.sleep(self._chance.uniform(0, 2))
        if fate < 0.2:
            raise TimeoutError
        return "receipt"

    def find(self, _: str) -> Any:
        """Say what has been done until now; a call that is under way is not found."""
        self._turns.sleep(self._chance.uniform(0, 1))
        return Done("receipt") if self.made else NOT_DONE


class SlowStore:
    """A store whose steps take their time, and some of whose answers are lost."""

    transactional = True

    def __init__(self, turns: Turns, apply: Callable[[Sequence[Effect]], None]) -> None:
        self.begins: Callable[[str], None] = lambda _: None
        """Is told the owner of each claim that is written again."""
        self._turns = turns
        self._memory = MemoryStore(apply=apply, clock=turns)

    def __getattr__(self, step: str) -> Callable[..., Any]:
        take = getattr(self._memory, step)

        def taken(*args: Any, **options: Any) -> Any:
            if step == "update_if_owner" and args[0].status == IN_PROGRESS:
                self.begins(args[0].owner)
            self._turns.sleep(self._turns.chance.uniform(0, 0.3))
            answer = take(*args, **options)
            self._turns.sleep(self._turns.chance.uniform(0, 0.3))
            if self._turns.chance.random() < 0.03:
                raise StoreUnavailableError("no answer")
            return answer

        return taken

    def peek(self) -> Record | None:
        return self._memory.read(KEY)


class Interleaving:
    """Runs of one key, from one seed."""

    def __init__(self, seed: int) -> None:
        self.turns = Turns(seed)
        self.chance = self.turns.chance
        self.broken: list[str] = []
        self.calls = Calls(self.turns, self.broken)
        self.owners: dict[Any, str] = {}
        """The owner of the run of each thread that delivers."""
        self.ended_ms: dict[str, int] = {}
        """When the run of each owner ended."""
        self.committed: list[list[Effect]] = []
        self.registered: dict[str, list[Effect]] = {}
        """By the owner of a run: what `write` has taken."""
        self.store = SlowStore(self.turns, lambda effects: self.committed.append([*effects]))
        self.store.begins = self._require_running
        self.probes = self.chance.random() < 0.6
        self.is_asynchronous = self.chance.random() < 0.4
        store: Any = self.store
        self.consumer: Consumer[Any] = consumer_of(
            "shop",
            store,
            policy=Policy(max_attempts=self.chance.choice((2, 3)), lease=LEASE_S),
            clock=self.turns,
            sleep=self.turns.sleep,
            concurrency=Inline(),
        )
        self.pay = self.consumer.function(key="order", name="pay")(self._pay)

    def _pay(self, order: str, operation: Operation | None = None) -> None:
        assert operation is not None
        self.owners[getcurrent()] = operation.owner
        joined: list[bool] = []
        threads = self.chance.choice((1, 1, 2))
        for _ in range(threads):
            after_s = self.chance.uniform(0, self.chance.choice((0, 0, 2)))
            self.turns.start(lambda: joined.append(self._call(operation)), after_s=after_s)
        if self.chance.random() < 0.2:
            while len(joined) < threads:
                self.turns.sleep(0.1)
        else:
            self.turns.sleep(self.chance.uniform(0, self.chance.choice((0, 1, 4))))
        fate = self.chance.random()
        if fate < 0.3:
            raise HandlerError
        if fate < 0.4:
            raise PermanentError("hopeless")

    def _call(self, operation: Operation) -> bool:
        """Make the call, in a thread, and register an effect before or after it."""
        steps: list[Callable[[Operation], object]] = [self._write, self._charge]
        self.chance.shuffle(steps)
        for step in steps:
            with suppress(IdempotencyError, TimeoutError, NotDoneError):
                step(operation)
        return True

    def _write(self, operation: Operation) -> None:
        effect = Put("Receipts", {"id": f"{self.chance.random()}"})
        operation.write(effect)
        self.registered.setdefault(operation.owner, []).append(effect)

    def _charge(self, operation: Operation) -> None:
        def charge(key: str) -> str:
            self._require_running(operation.owner)
            return self.calls.charge(key)

        def find(key: str) -> Any:
            self._require_running(operation.owner)
            return self.calls.find(key)

        probe = find if self.probes else None
        if self.is_asynchronous:
            _run(
                AsyncOperation(operation).external(
                    "charge", _awaited(charge), probe and _awaited(probe)
                )
            )
        else:
            operation.external("charge", charge, probe)

    def deliver(self) -> None:
        with suppress(IdempotencyError, HandlerError, TimeoutError):
            self.pay("k1")
        if getcurrent() in self.owners:
            self.ended_ms[self.owners[getcurrent()]] = self.turns.now_ms

    def _require_running(self, owner: str) -> None:
        """Note a step of a run that ended before. One that begins as its run ends is none."""
        if self.ended_ms.get(owner, self.turns.now_ms) < self.turns.now_ms:
            self.broken.append("a step of a run begins after its end")

    def operate(self) -> None:
        """Look at the key from time to time. Settle what is quarantined by what can be seen."""
        store: Any = self.store
        for _ in range(self.chance.randint(0, 20)):
            self.turns.sleep(self.chance.uniform(0, 2))
            record = self.store.peek()
            if record is None or record.status != QUARANTINED:
                continue
            with suppress(StoreUnavailableError):
                answer = Done("receipt") if self.calls.made else NOT_DONE
                settle(store, KEY, "charge", answer, clock=self.turns)
                release(store, KEY, clock=self.turns)

    def play(self) -> list[str]:
        """Play it to its end; return what is wrong."""
        for _ in range(self.chance.randint(3, 5)):
            self.turns.start(self.deliver, after_s=self._moment())
        self.turns.start(self.operate, after_s=self._moment())
        self.turns.run()
        record = self.store.peek()
        if record is not None and record.status == COMPLETED:
            wanted = self.registered.get(str(record.owner), [])
            committed = [[_id(each) for each in effects] for effects in self.committed]
            if wanted and [_id(each) for each in wanted] not in committed:
                self.broken.append("an effect that was taken is lost")
        return self.broken

    def _moment(self) -> float:
        """Return when something happens: most of it close together, some after the lease."""
        longest_s = self.chance.choice((0, 4, 4, 8, 8, 8, 5 * LEASE_S))
        return self.chance.uniform(0, longest_s)


class Writers(Interleaving):
    """A run whose two threads register effects at the same time."""

    def _pay(self, order: str, operation: Operation | None = None) -> None:
        taken = operation
        assert taken is not None
        written: list[bool] = []

        def register() -> None:
            self._write(taken)
            written.append(True)

        self.turns.start(register)
        self.turns.start(register)
        while len(written) < 2:
            self.turns.sleep(0.1)

    def play(self) -> list[str]:
        """Run it once; return what is wrong."""
        self.turns.start(self.deliver)
        self.turns.run()
        for effects in self.committed:
            if len(effects) != 2:
                self.broken.append("an effect that was taken is lost")
        return self.broken


def _id(effect: Any) -> str:
    return str(effect.item["id"])


def _run(coroutine: Any) -> None:
    """Run a coroutine that never waits for a loop: its waits are those of its thread."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for a loop")


def _awaited[T](function: Callable[[str], T]) -> Callable[[str], Awaitable[T]]:
    async def call(key: str) -> T:
        return function(key)

    return call


async def _at_once[T](step: Callable[[], T]) -> T:
    """Stand for `async_steps.in_thread`: the thread that takes the step is the caller's."""
    return step()


@pytest.fixture
def weave() -> Generator[Setter]:
    """Give way between the statements of what ends a run and of what makes a call."""
    with giving_way(claims, externals, operation, async_operation, runner) as setter:
        yield setter


def played(
    seed: int, weave: Setter, kind: Callable[[int], Interleaving] = Interleaving
) -> list[str]:
    """Play one seed; return what is wrong."""
    interleaving = kind(seed)
    weave(interleaving.turns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "Lock", interleaving.turns.lock)
        patch.setattr(async_operation, "in_thread", _at_once)
        return interleaving.play()


@pytest.mark.proof
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_EACH))
def test_at_most_one_call_of_a_key_is_under_way(first: int, weave: Setter) -> None:
    """Whatever ends first, a run or its thread: no charge is doubled, and no effect is lost."""
    seeds = range(first, first + SEEDS_EACH)
    assert {seed: broken for seed in seeds if (broken := played(seed, weave))} == {}


@pytest.mark.proof
def test_two_threads_lose_no_effect_of_each_other(weave: Setter) -> None:
    """Whatever one has registered is committed, though the other registers at the same time."""
    assert {seed: broken for seed in range(100) if (broken := played(seed, weave, Writers))} == {}


# ── One by one ────────────────────────────────────────────────────────────────────────────────────


class Thread(threading.Thread):
    """A thread of a handler, which makes a call that lasts until the test lets it end."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(daemon=True)
        self.is_called = threading.Event()
        self.may_return = threading.Event()
        self.error: Exception | None = None
        self._operation = operation

    def run(self) -> None:
        try:
            self._operation.external("charge", self._call, lambda _: Done("found"))
        except IdempotencyError as error:
            self.error = error

    def _call(self, _: str) -> str:
        self.is_called.set()
        assert self.may_return.wait(PATIENCE_S)
        return "receipt"


@pytest.mark.parametrize("error", [None, KeyError("pickup"), PermanentError("hopeless")])
@pytest.mark.parametrize("is_block", [False, True])
def test_a_call_that_outlasts_its_run_keeps_the_claim(
    error: Exception | None, *, is_block: bool
) -> None:
    """Nobody runs the key before the lease ends; the next attempt asks what became of the call."""
    clock = ManualClock()
    consumer = consumer_of("desk", MemoryStore(clock=clock), clock=clock)
    threads: list[Thread] = []

    def work(operation: Operation) -> Any:
        if threads:
            return operation.external("charge", lambda _: pytest.fail("again"), lambda _: Done(7))
        threads.append(Thread(operation))
        threads[0].start()
        assert threads[0].is_called.wait(PATIENCE_S)
        if error:
            raise error
        return None

    @consumer.function(key="order")
    def pay(order: str, operation: Any = None) -> Any:
        return work(operation)

    def pay_in_block(order: str) -> Any:
        with consumer.operation(order) as block:
            block.complete(work(block.operation))
        return block.result

    deliver = pay_in_block if is_block else pay
    with pytest.raises(type(error) if error else UnfinishedWorkError) as raised:
        deliver("k1")
    told = f"{raised.value} {getattr(raised.value, '__notes__', '')}"
    assert "external calls are under way" in told
    with pytest.raises(BusyError):
        deliver("k1")
    threads[0].may_return.set()
    threads[0].join(PATIENCE_S)
    with pytest.raises(BusyError):
        deliver("k1")
    clock.advance(2 * LEASE_S)
    assert deliver("k1") == 7


def test_a_call_of_a_task_that_outlasts_its_run_keeps_the_claim() -> None:
    """A task is not cancelled with the function that has begun it."""
    consumer: Consumer[Any] = Consumer("garage", MemoryStore())
    is_called = asyncio.Event()
    may_return = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def charge(_: str) -> None:
        is_called.set()
        await may_return.wait()

    @consumer.function(key="order")
    async def pay(order: str, operation: Any = None) -> None:
        tasks.append(asyncio.create_task(operation.external("charge", charge)))
        await is_called.wait()

    async def service() -> None:
        with pytest.raises(UnfinishedWorkError, match="external calls are under way"):
            await pay("k1")
        with pytest.raises(BusyError):
            await pay("k1")
        may_return.set()
        await tasks[0]

    asyncio.run(service())
