"""Effects over a store that has no transactions: committed by themselves, while the claim holds, before the record."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fakeredis
import pytest

from idempotency import (
    ConfigurationError,
    Consumer,
    EffectConflictError,
    MemoryStore,
    Observation,
    Operation,
    Policy,
    Put,
    Update,
)
from idempotency.effects import Effect
from idempotency.errors import EffectsRejectedError, LostLeaseError, OutOfTimeError, StoreUnavailableError
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, Record
from idempotency.stores.dynamodb_effects import DynamoDBEffects
from idempotency.stores.transport import botocore_transport
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import FaultyTransport, Invocation, ManualClock
from tests.unit.idempotency.samples import event

EVENT = event()
KEY = "history#k1"
PAID = Update(
    "Rides",
    {"id": "order_01"},
    "SET #e = :e ADD paid :one",
    values={":e": "done", ":one": 1},
    names={"#e": "event#k1"},
)
MARKED = PAID._replace(mark="event#k1")


class KilledError(BaseException):
    """What a killed process looks like to the code that it was running."""


class Writer:
    """Writes effects, and has happen what the test says just before or after it."""

    def __init__(self, effects: DynamoDBEffects) -> None:
        self.longest_try_s = effects.longest_try_s
        self.then: list[Callable[[], object]] = []
        self.written = 0
        self._effects = effects

    def write(self, effects: Sequence[Effect], *, until_ms: int | None = None) -> None:
        """Write the effects."""
        self._effects.write(effects, until_ms=until_ms)
        self.written += 1
        if self.then:
            self.then.pop(0)()


@pytest.fixture
def writer(transport: FaultyTransport, clock: ManualClock) -> Writer:
    """Effects in the tables of the test."""
    return Writer(DynamoDBEffects(transport=transport, clock=clock, sleep=clock.sleep, jitter=lambda: 0.5))


@pytest.fixture
def store(writer: Writer, clock: ManualClock) -> Iterator[ValkeyStore]:
    """Records in a server of this process."""
    with fakeredis.FakeValkey(socket_timeout=1) as client:
        yield ValkeyStore(client, effect_writer=writer, clock=clock, sleep=clock.sleep, jitter=lambda: 0.5)


type Handler = Callable[[dict[str, Any], Invocation], Any]


@pytest.fixture
def handler(store: ValkeyStore, clock: ManualClock, seen: list[Observation]) -> Callable[..., Handler]:
    """Make a handler that registers effects; keyword arguments are those of its policy."""

    def make(*effects: Effect, work: Callable[[Operation], object] = lambda operation: None, **policy: Any) -> Handler:
        consumer = Consumer(
            "history",
            store,
            key="detail.idempotencyid",
            policy=Policy(**({"warm_cache": 0} | policy)),
            observe=seen.append,
            region="eu-west-1",
            clock=clock,
            sleep=clock.sleep,
            jitter=lambda: 0.5,
        )

        @consumer.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> str:
            operation.write(*effects)
            work(operation)
            return "done"

        return handler

    return make


def paid(dynamodb: Any) -> int:
    """How often the effect took place."""
    item = dynamodb.get_item(TableName="Rides", Key={"id": {"S": "order_01"}}, ConsistentRead=True).get("Item", {})
    return int(item.get("paid", {"N": "0"})["N"])


def let_lease_end(store: ValkeyStore) -> None:
    """Move the claim into the past: the server has a clock of its own."""
    seen = store.read(KEY)
    assert seen is not None
    assert seen.lease_ms is not None
    assert store.compare_and_swap(seen, seen._replace(lease_ms=seen.lease_ms - 3_600_000)) is not None


def status(store: ValkeyStore) -> str | None:
    """The status of the record."""
    record = store.read(KEY)
    return None if record is None else record.status


class TestOrder:
    """First the claim, then the effects in one transaction, then the completion."""

    def test_effects_are_written_once_and_the_record_completed(
        self, handler: Any, invocation: Any, transport: FaultyTransport, dynamodb: Any, store: ValkeyStore, seen: Any
    ) -> None:
        """A new event costs one call to DynamoDB, a duplicate none."""
        handle = handler(PAID)
        assert handle(EVENT, invocation())["outcome"] == "New"
        assert handle(EVENT, invocation("request-2"))["outcome"] == "Duplicate"
        assert (paid(dynamodb), status(store), transport.requests) == (1, COMPLETED, ["TransactWriteItems"])

    def test_claim_still_holds_while_effects_are_written(
        self, handler: Any, invocation: Any, writer: Writer, store: ValkeyStore
    ) -> None:
        """The record is completed after its effects, never before: else a crash would lose them."""
        found: list[str | None] = []
        writer.then = [lambda: found.append(status(store))]
        handler(PAID)(EVENT, invocation())
        assert found == [IN_PROGRESS]

    def test_operation_without_effects_asks_nothing_of_dynamodb(
        self, handler: Any, invocation: Any, transport: FaultyTransport
    ) -> None:
        """The claim is not renewed either: nothing is there to be overtaken."""
        assert handler()(EVENT, invocation())["outcome"] == "New"
        assert transport.requests == []

    def test_atomic_policy_is_claimed(
        self, handler: Any, invocation: Any, writer: Writer, store: ValkeyStore, dynamodb: Any
    ) -> None:
        """Where there is no transaction with the record, atomic mode has nothing to do without a claim."""
        found: list[str | None] = []
        handle = handler(MARKED, work=lambda operation: found.append(status(store)), atomic=True)
        assert handle(EVENT, invocation())["outcome"] == "New"
        assert (found, paid(dynamodb)) == ([IN_PROGRESS], 1)

    def test_store_with_nothing_to_write_effects_with_takes_none(self, clock: ManualClock, invocation: Any) -> None:
        """The handler is told when it registers one, and an atomic policy when the consumer is built."""
        consumer = Consumer("history", MemoryStore(clock=clock), key="detail.idempotencyid", clock=clock)
        handle = consumer.event_handler(lambda event, operation: operation.write(PAID))
        with pytest.raises(ConfigurationError, match="effect_writer"):
            handle(EVENT, invocation())
        with pytest.raises(ConfigurationError, match="transactions, or an effect_writer"):
            Consumer("history", MemoryStore(clock=clock), policy=Policy(atomic=True))


class TestCrash:
    """A process that dies between the effects and the completion leaves a claim; the operation is run again."""

    def crash(self, handle: Handler, writer: Writer, invocation: Any) -> None:
        """Deliver the event to a process that dies when its effects are written."""

        def die() -> None:
            raise KilledError

        writer.then = [die]
        with pytest.raises(KilledError):
            handle(EVENT, invocation())

    def test_marked_effects_take_place_once(
        self, handler: Any, invocation: Any, writer: Writer, store: ValkeyStore, dynamodb: Any
    ) -> None:
        """The item bears the mark of the first run, so that the second has only its record to complete."""
        handle = handler(MARKED)
        self.crash(handle, writer, invocation)
        assert (paid(dynamodb), status(store)) == (1, IN_PROGRESS)
        let_lease_end(store)
        assert handle(EVENT, invocation("request-2"))["outcome"] == "Takeover"
        assert (paid(dynamodb), status(store)) == (1, COMPLETED)

    def test_one_mark_stands_for_all_effects_of_an_operation(
        self, handler: Any, invocation: Any, writer: Writer, dynamodb: Any
    ) -> None:
        """What another effect's condition says by then is of no matter."""
        taken = Put("Rides", {"id": "car_01", "ride": "order_01"}, condition="attribute_not_exists(id)")
        handle = handler(taken, MARKED, same_delivery_takes_over=True)
        self.crash(handle, writer, invocation)
        assert handle(EVENT, invocation())["outcome"] == "Takeover"
        assert paid(dynamodb) == 1

    def test_effects_without_a_mark_take_place_again(
        self, handler: Any, invocation: Any, writer: Writer, dynamodb: Any
    ) -> None:
        """At least once is all that can be said of them."""
        handle = handler(PAID, same_delivery_takes_over=True)
        self.crash(handle, writer, invocation)
        handle(EVENT, invocation())
        assert paid(dynamodb) == 2

    def test_claim_that_the_server_forgot_repeats_no_marked_effect(
        self, handler: Any, invocation: Any, store: ValkeyStore, dynamodb: Any
    ) -> None:
        """After a failover to a replica that never heard of the record, the mark is still there."""
        handle = handler(MARKED)
        handle(EVENT, invocation())
        store._client.flushall()  # type: ignore[attr-defined]  # noqa: SLF001 - what a failover may do
        assert handle(EVENT, invocation("request-2"))["outcome"] == "New"
        assert paid(dynamodb) == 1


class TestLease:
    """Effects are only begun under a claim that outlasts the request."""

    def test_lost_lease_writes_nothing(
        self, handler: Any, invocation: Any, store: ValkeyStore, dynamodb: Any, seen: list[Observation]
    ) -> None:
        """A run that was overtaken and outrun is refused when it renews its claim for the effects."""
        other = handler(PAID)

        def overtake(operation: Operation) -> None:
            let_lease_end(store)
            assert other(EVENT, invocation("request-2"))["outcome"] == "Takeover"

        assert handler(PAID, work=overtake)(EVENT, invocation())["outcome"] == "LostLease"
        assert paid(dynamodb) == 1

        def taken(operation: Operation) -> None:
            held = store.read("history#k2")
            assert held is not None
            store.compare_and_swap(held, held._replace(owner="another's"))

        with pytest.raises(LostLeaseError):
            handler(PAID, work=taken)(event("k2"), invocation())
        assert paid(dynamodb) == 1

    def test_lease_lost_after_the_effects_repeats_none(
        self, handler: Any, invocation: Any, writer: Writer, store: ValkeyStore, dynamodb: Any
    ) -> None:
        """Whoever takes the key over finds the mark and completes; the first run's completion is refused."""
        other = handler(MARKED)

        def overtake() -> None:
            let_lease_end(store)
            assert other(EVENT, invocation("request-2"))["outcome"] == "Takeover"

        writer.then = [overtake]
        assert handler(MARKED)(EVENT, invocation())["outcome"] == "LostLease"
        assert (paid(dynamodb), status(store)) == (1, COMPLETED)

    def test_lease_is_renewed_for_the_effects(
        self, handler: Any, invocation: Any, writer: Writer, store: ValkeyStore, clock: ManualClock
    ) -> None:
        """Work that took most of a short lease does not leave the effects the rest of it."""
        leases: list[int] = []

        def note() -> None:
            record = store.read(KEY)
            assert record is not None
            assert record.lease_ms is not None
            leases.append(record.lease_ms - clock())

        writer.then = [note]
        handle = handler(PAID, work=lambda operation: clock.advance(2.5), lease=3.0)
        handle(EVENT, invocation(timeout_s=3600))
        assert leases[0] > 2_000

    def test_lease_too_short_for_the_effects_writes_nothing(
        self, handler: Any, invocation: Any, writer: Writer, dynamodb: Any, store: ValkeyStore, clock: ManualClock
    ) -> None:
        """Near the end of an invocation a request could come after its lease: it is left to the next delivery."""
        handle = handler(PAID, work=lambda operation: clock.advance(29.5), margin=0.0, clock_skew=0.0)
        with pytest.raises(OutOfTimeError, match="lease"):
            handle(EVENT, invocation(timeout_s=30))
        assert (paid(dynamodb), writer.written, status(store)) == (0, 0, FAILED)


class TestRefusal:
    """What DynamoDB does not take."""

    def test_lost_answer_is_asked_for_again(
        self, handler: Any, invocation: Any, transport: FaultyTransport, dynamodb: Any
    ) -> None:
        """The mark that is found then is this attempt's own."""
        transport.lose_answer()
        assert handler(MARKED)(EVENT, invocation())["outcome"] == "New"
        assert (paid(dynamodb), len(transport.requests)) == (1, 2)

    def test_no_answer_leaves_the_claim(
        self, handler: Any, invocation: Any, transport: FaultyTransport, store: ValkeyStore
    ) -> None:
        """Whether the effects took place is not known: neither completed nor failed, the next run finds out."""
        for _ in range(6):
            transport.lose_request()
        with pytest.raises(StoreUnavailableError):
            handler(MARKED)(EVENT, invocation())
        assert status(store) == IN_PROGRESS

    def test_condition_that_does_not_hold_is_a_conflict(
        self, handler: Any, invocation: Any, dynamodb: Any, store: ValkeyStore
    ) -> None:
        """The handler is run again as often as its policy says, and what it decides then is committed."""
        once = MARKED._replace(condition="attribute_not_exists(rival)")
        dynamodb.put_item(TableName="Rides", Item={"id": {"S": "order_01"}, "rival": {"S": "was faster"}})
        runs: list[int] = []

        def leave(operation: Operation) -> None:
            runs.append(1)
            if len(runs) == 2:
                dynamodb.delete_item(TableName="Rides", Key={"id": {"S": "order_01"}})

        assert handler(once, work=leave, conflict_reruns=1)(EVENT, invocation())["outcome"] == "New"
        assert (paid(dynamodb), len(runs)) == (1, 2)

    def test_conflict_that_stays_is_a_failure(self, handler: Any, invocation: Any, dynamodb: Any) -> None:
        """It is recorded with the effect that was refused, and the delivery comes again."""
        refused = MARKED._replace(condition="attribute_exists(id)")
        with pytest.raises(EffectConflictError) as raised:
            handler(refused)(EVENT, invocation())
        assert raised.value.index == 0

    def test_too_many_effects_are_rejected_for_good(
        self, writer: Writer, transport: FaultyTransport, store: ValkeyStore
    ) -> None:
        """No retry could make them fewer."""
        with pytest.raises(EffectsRejectedError, match="101"):
            writer.write([PAID] * 101)
        assert transport.requests == []

    def test_marks_of_put_are_attributes_of_the_item(self, writer: Writer, dynamodb: Any) -> None:
        """An item that is put once is its own mark, by its key."""
        first, second = (Put("Rides", {"id": "receipt_01", "run": run}, mark="id") for run in (1, 2))
        writer.write([first])
        writer.write([second])
        item = dynamodb.get_item(TableName="Rides", Key={"id": {"S": "receipt_01"}})["Item"]
        assert item["run"] == {"N": "1"}


def test_record_is_not_touched_by_a_store_without_transactions(store: ValkeyStore, clock: ManualClock) -> None:
    """Effects that are handed to the store itself are refused: only the protocol knows when they may be written."""
    record = Record(KEY, IN_PROGRESS, "o", 1, clock() + 30_000, None, None, None, None, clock(), clock())
    with pytest.raises(ConfigurationError):
        store.put_if_absent(record, [PAID])
    assert botocore_transport().longest_try_s == DynamoDBEffects().longest_try_s
