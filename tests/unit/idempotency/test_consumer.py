"""The programming interface: handlers, functions and blocks over the same operation."""

import contextlib
import functools
import threading
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from idempotency import (
    TRANSPORT_ID,
    ConfigurationError,
    Consumer,
    MemoryStore,
    Observation,
    Operation,
    Policy,
    lambda_deadline,
)
from idempotency.dead_letters import CONTRACT
from idempotency.errors import OutOfTimeError, PayloadMismatchError, ResultOmittedError, StoreUnavailableError
from idempotency.heartbeat import Heartbeat
from idempotency.policy import DAY
from idempotency.sources import SNS
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.unit.idempotency.samples import event

DEADLINE_S = 10
"""How long a test waits for other threads before it fails."""


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves."""
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    """Records in memory."""
    return MemoryStore(clock=clock, apply=lambda effects: None)


@pytest.fixture
def box() -> DeadLetterBox:
    """A dead-letter queue."""
    return DeadLetterBox()


@pytest.fixture
def seen() -> list[Observation]:
    """What was observed."""
    return []


@pytest.fixture
def consumer(
    store: MemoryStore, clock: ManualClock, box: DeadLetterBox, seen: list[Observation]
) -> Callable[..., Consumer]:
    """Make a consumer; keyword arguments go to it."""

    def make(name: str = "history", **settings: Any) -> Consumer:
        defaults: dict[str, Any] = {"key": "detail.idempotencyid", "dead_letters": box}
        settings = defaults | settings
        return Consumer(
            name, store, observe=seen.append, region="eu-west-1", clock=clock, sleep=clock.sleep, **settings
        )

    return make


class TestEventHandler:
    """A handler of single events."""

    def test_parsed_event_is_what_the_handler_takes(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """Key and payload are read off the parsed event, and the handler gets that very object."""
        parsed: list[object] = []
        history = consumer(
            parse=lambda raw: (raw["detail"]["idempotencyid"], raw["detail"]["data"]),
            key=lambda ride: ride[0],
            payload=lambda ride: ride[1],
        )
        history.event_handler(lambda ride, operation: parsed.append(ride))(event(), Invocation(clock))

        assert parsed == [("k1", {"orderID": "order_01"})]
        assert history.record("k1") is not None

    def test_event_that_breaks_the_contract_goes_to_the_dead_letter_queue(
        self, consumer: Callable[..., Consumer], clock: ManualClock, box: DeadLetterBox
    ) -> None:
        """An event that cannot be parsed is not retried: the dead-letter queue gets it with the reason."""

        def parse(raw: object) -> object:
            raise ValueError("no type")

        handler = consumer(parse=parse, payload=lambda ride: ride).event_handler(lambda ride, operation: None)

        assert handler(event(), Invocation(clock))["outcome"] == "DeadLettered"
        assert (box.letters[0].reason, box.letters[0].event) == (CONTRACT, event())
        assert "no type" in box.letters[0].message

    def test_context_is_lambdas(self, consumer: Callable[..., Consumer], clock: ManualClock) -> None:
        """A handler sees Lambda's context; without one it says what to pass."""
        seen: list[object] = []
        handler = consumer().event_handler(lambda event, operation: seen.append(operation.context))
        invocation = Invocation(clock)
        handler(event(), invocation)

        assert seen == [invocation]
        with pytest.raises(ConfigurationError, match="Invocation"):
            handler(event("k2"), cast("Any", None))

    def test_without_a_key_a_policy_may_run_it_unprotected_and_count_it(
        self, consumer: Callable[..., Consumer], clock: ManualClock, seen: list[Observation], box: DeadLetterBox
    ) -> None:
        """Each delivery of an event without a key is run, with its effects, and observed as such."""
        runs: list[str] = []
        unprotected = consumer(policy=Policy(missing_key="run"))
        handler = unprotected.event_handler(lambda event, operation: runs.append(operation.key))
        handler(event(None), Invocation(clock))
        handler(event(None), Invocation(clock))
        unprotected.function(key="order_id", name="charge")(lambda order_id: runs.append("charged"))(None)

        assert len(set(runs)) == 3
        assert [one.outcome for one in seen] == ["Unprotected"] * 3
        assert box.letters == []

    def test_without_a_dead_letter_queue_a_broken_event_raises(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """The transport's own dead-letter queue takes what no other is configured for."""
        handler = consumer(dead_letters=None).event_handler(lambda ride, operation: None)

        with pytest.raises(Exception, match="idempotency key is missing"):
            handler(event(None), Invocation(clock))

    def test_two_consumers_of_one_event_each_have_their_effect(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """In a fan-out the first consumer's record does not silence the second."""
        runs = []
        for name in ("history", "payment"):
            consumer(name).event_handler(lambda ride, operation: runs.append(operation.key))(event(), Invocation(clock))

        assert runs == ["history#k1", "payment#k1"]

    def test_labels_of_the_event_come_with_every_observation(
        self, consumer: Callable[..., Consumer], clock: ManualClock, seen: list[Observation]
    ) -> None:
        """Whoever observes can tell which request an event follows from, for a new event and for its duplicate."""
        handler = consumer(labels=lambda event: {"ride": event["detail"]["data"]["orderID"]}).event_handler(
            lambda event, operation: None
        )
        for request_id in ("r1", "r2"):
            handler(event(), Invocation(clock, request_id=request_id))

        assert [(each.outcome, dict(each.labels)) for each in seen] == [
            ("New", {"ride": "order_01"}),
            ("Duplicate", {"ride": "order_01"}),
        ]

    def test_other_sources_are_read_in_their_own_way(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """An SNS notification's message is what key and handler see."""
        received: list[object] = []
        notification = {
            "Records": [
                {"Sns": {"Message": '{"id": "k1"}', "MessageId": "m1", "Timestamp": "2027-01-15T08:00:00.000Z"}}
            ]
        }
        partner = consumer(key="id", source=SNS)
        partner.event_handler(lambda message, operation: received.append(message))(notification, Invocation(clock))

        assert received == [{"id": "k1"}]
        assert partner.record("k1") is not None

    def test_transport_id_is_the_key_only_where_asked_for(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """With TRANSPORT_ID the transport's own id names the operation."""
        history = consumer(key=TRANSPORT_ID)
        history.event_handler(lambda event, operation: None)(event(), Invocation(clock))

        assert history.record(event()["id"]) is not None


class TestExpiry:
    """An event that is no longer worth processing."""

    @pytest.fixture
    def expiring(self, consumer: Callable[..., Consumer], clock: ManualClock) -> Consumer:
        """A consumer of events that expire a minute after the clock's start."""
        end = datetime.fromtimestamp(clock() / 1000, UTC) + timedelta(minutes=1)
        return consumer(expires=lambda ride: end, policy=Policy(warm_cache=0))

    def test_expired_event_is_dropped_and_counted(
        self, expiring: Consumer, clock: ManualClock, seen: list[Observation]
    ) -> None:
        """Past its expiry a new event is acknowledged without a run or a record."""
        clock.advance(120)
        handler = expiring.event_handler(lambda ride, operation: pytest.fail("was run"))

        assert handler(event(), Invocation(clock))["outcome"] == "Expired"
        assert (seen[-1].outcome, expiring.record("k1")) == ("Expired", None)

    def test_half_done_event_is_finished_though_it_expired(self, expiring: Consumer, clock: ManualClock) -> None:
        """An attempt that failed before the expiry is retried after it: half an effect is worse than a late one."""

        def fail(ride: object, operation: Operation) -> None:
            raise KeyError("pickup")

        with pytest.raises(KeyError):
            expiring.event_handler(fail)(event(), Invocation(clock))
        clock.advance(120)

        answer = expiring.event_handler(lambda ride, operation: None)(event(), Invocation(clock))
        assert answer["outcome"] == "Retried"


class TestFunction:
    """Any function, with a named key argument."""

    def test_call_with_a_known_key_returns_the_stored_result(self, consumer: Callable[..., Consumer]) -> None:
        """However the argument is passed, the second call is the first one's result."""
        runs = []

        @consumer().function(key="order_id")
        def book(order_id: str, seats: int = 1) -> dict[str, object]:
            runs.append(order_id)
            return {"order": order_id, "seats": seats}

        assert [book("order_01"), book(order_id="order_01", seats=1)] == [{"order": "order_01", "seats": 1}] * 2
        assert runs == ["order_01"]

    def test_caller_gets_a_result_that_cannot_be_stored(self, consumer: Callable[..., Consumer]) -> None:
        """The call that does the work returns its result; only later calls miss what has no stored form."""
        connection = object()

        @consumer().function(key="order_id")
        def connect(order_id: str) -> object:
            return connection

        assert connect("order_01") is connection
        with pytest.raises(ResultOmittedError):
            connect("order_01")

    def test_function_may_take_the_operation(self, consumer: Callable[..., Consumer]) -> None:
        """An argument named operation is given the running attempt."""

        @consumer().function(key="order_id")
        def book(order_id: str, operation: Operation | None = None) -> str:
            assert operation is not None
            return operation.key

        assert book("order_01") == "history/book#order_01"

    def test_functions_of_one_consumer_share_no_keys(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """A function's name belongs to its keys: another function, or the handler around it, is another operation."""
        history = consumer()
        done: list[tuple[str, str]] = []

        @history.function(key="order_id")
        def charge(order_id: str, operation: Operation | None = None) -> None:
            assert operation is not None
            done.append(("charge", operation.downstream_key))

        @history.function(key="order_id", name="pay-back")
        def refund(order_id: str, operation: Operation | None = None) -> None:
            assert operation is not None
            done.append(("refund", operation.downstream_key))

        @history.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            done.append(("handler", operation.downstream_key))
            charge("k1")
            refund("k1")
            with history.operation("k1", name="block") as block:
                done.append(("block", block.operation.downstream_key))

        handler(event(), Invocation(clock))
        handler(event(), Invocation(clock))

        assert [name for name, _ in done] == ["handler", "charge", "refund", "block"]
        assert len({key for _, key in done}) == 4
        assert [bool(history.record("k1", name)) for name in (None, "charge", "pay-back", "block")] == [True] * 4

    def test_functions_of_one_name_are_told_apart(self, consumer: Callable[..., Consumer]) -> None:
        """A second function of the same name, or one without a name, has to be given one."""
        history = consumer()
        decorate = history.function(key="order_id")

        def named(order_id: str) -> None: ...

        decorate(named)
        decorate(named)
        other = types.FunctionType(named.__code__, {}, "named")
        other.__qualname__, other.__module__ = "named", "elsewhere"
        for work in (other, lambda order_id: None, functools.partial(named)):
            with pytest.raises(ConfigurationError, match="name="):
                decorate(work)

    def test_argument_that_equals_its_default_counts_as_not_given(self, consumer: Callable[..., Consumer]) -> None:
        """A parameter that a later version adds with a default changes no fingerprint of an old call."""
        history = consumer()

        def book(order_id: str, price: int) -> int:
            return price

        def book_later(order_id: str, price: int, currency: str = "EUR", note: object = None) -> int:
            return -1

        history.function(key="order_id", name="book")(book)("order_01", 10)
        later = history.function(key="order_id", name="book")(book_later)

        assert later("order_01", 10) == later("order_01", 10, "EUR") == later("order_01", price=10, note=None) == 10
        with pytest.raises(PayloadMismatchError):
            later("order_01", 10, "USD")

    def test_payload_names_what_is_fingerprinted(self, consumer: Callable[..., Consumer]) -> None:
        """Arguments that are no part of what is asked for, such as a trace, may differ between calls."""

        @consumer().function(key="order_id", payload="price")
        def book(order_id: str, price: int, trace: str) -> str:
            return trace

        assert book("order_01", 10, "first") == book("order_01", 10, "second") == "first"
        with pytest.raises(PayloadMismatchError):
            book("order_01", 11, "third")
        with pytest.raises(ConfigurationError, match="prize"):
            consumer().function(key="order_id", name="book", payload=["prize"])(lambda order_id: None)

    def test_functions_inside_a_handler_know_its_deadline(
        self, consumer: Callable[..., Consumer], clock: ManualClock
    ) -> None:
        """A function that is called near the end of an invocation is not started."""

        @consumer("billing").function(key="order_id")
        def book(order_id: str) -> str:
            return order_id

        with lambda_deadline(Invocation(clock, timeout_s=0.5), clock), pytest.raises(OutOfTimeError):
            book("order_01")
        assert book("order_01") == "order_01"

    def test_threads_do_not_mix_their_keys(self, consumer: Callable[..., Consumer]) -> None:
        """Calls of one decorated function in many threads each complete their own record."""
        together = threading.Barrier(8, timeout=DEADLINE_S)
        history = consumer()

        @history.function(key="number")
        def square(number: int) -> int:
            together.wait()
            return number * number

        threads = [threading.Thread(target=square, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)

        assert [record and record.result for record in (history.record(number, "square") for number in range(8))] == [
            str(number * number) for number in range(8)
        ]


class TestBlock:
    """One operation in a with block."""

    def test_loser_gets_the_result_of_the_winner(self, consumer: Callable[..., Consumer], clock: ManualClock) -> None:
        """A block that was overtaken ends with the committed result, not with its own."""
        history = consumer()
        with history.operation("k1") as slow:
            clock.advance(60)
            with history.operation("k1") as fast:
                fast.complete("the committed one")
            slow.complete("a late one")

        assert (slow.result, fast.result) == ("the committed one",) * 2

    def test_block_completes_with_its_result_and_is_done_the_second_time(
        self, consumer: Callable[..., Consumer]
    ) -> None:
        """What complete was given is what the next block finds."""
        history = consumer()
        with history.operation("k1", {"price": 1}) as first:
            first.complete({"charged": 1})
        with history.operation("k1", {"price": 1}) as second:
            assert (first.done, second.done, second.result) == (False, True, {"charged": 1})

    def test_error_that_leaves_the_block_fails_the_operation(
        self, consumer: Callable[..., Consumer], seen: list[Observation]
    ) -> None:
        """The block's own error goes on, and the record says FAILED."""
        history = consumer()
        with pytest.raises(KeyError, match="pickup"), history.operation("k1"):
            raise KeyError("pickup")

        record = history.record("k1")
        assert record is not None
        assert (record.status, seen[-1].outcome) == ("FAILED", "Failed")

    def test_downstream_key_is_stable_over_attempts_and_differs_between_consumers(
        self, consumer: Callable[..., Consumer]
    ) -> None:
        """An external system gets one key for all attempts at an operation, and another for another consumer's."""
        keys = []
        for name in ("payment", "payment", "refund"):
            with contextlib.suppress(KeyError), consumer(name).operation("k1") as block:
                keys.append(block.operation.downstream_key)
                raise KeyError("gateway")

        assert keys[0] == keys[1] != keys[2]


class TestOperation:
    """The immutable operation."""

    def test_operation_cannot_be_changed(self, consumer: Callable[..., Consumer]) -> None:
        """Nothing that runs can give an operation another key."""
        with consumer().operation("k1") as block, pytest.raises(AttributeError, match="immutable"):
            block.operation.key = "other"

    def test_write_needs_a_store_with_transactions(self, clock: ManualClock) -> None:
        """Effects are refused at once by a store that could not commit them with the record."""
        bare = Consumer("history", MemoryStore(clock=clock), clock=clock)
        with pytest.raises(ConfigurationError, match="no transactions"), bare.operation("k1") as block:
            block.operation.write()


class TestConfiguration:
    """Settings that cannot work are refused where they are made."""

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"name": ""}, "name"),
            ({"name": "a#b"}, "'#'"),
            ({"key": "detail.["}, "JMESPath"),
            ({"parse": dict}, "payload="),
        ],
    )
    def test_consumer_is_checked_when_it_is_built(
        self, consumer: Callable[..., Consumer], settings: dict[str, Any], says: str
    ) -> None:
        """Each mistake is named by the error."""
        with pytest.raises(ConfigurationError, match=says):
            consumer(**settings)

    def test_atomic_needs_a_transactional_store(self, clock: ManualClock) -> None:
        """Effects and completion in one transaction need a store that has transactions."""
        with pytest.raises(ConfigurationError, match="transactions"):
            Consumer("history", MemoryStore(clock=clock), key="id", policy=Policy(atomic=True))

    def test_handler_needs_a_key(self, consumer: Callable[..., Consumer]) -> None:
        """A consumer without key= cannot decorate a handler."""
        with pytest.raises(ConfigurationError, match="key="):
            consumer(key=None).event_handler(lambda ride, operation: None)

    def test_function_needs_the_argument_that_it_names(self, consumer: Callable[..., Consumer]) -> None:
        """A misspelt key argument is found when the function is decorated."""
        with pytest.raises(ConfigurationError, match=r"no argument 'orderid'"):

            @consumer().function(key="orderid")
            def book(order_id: str) -> str:
                return order_id

    def test_block_cannot_be_atomic(self, consumer: Callable[..., Consumer]) -> None:
        """A block has no function that could be run without a claim."""
        with pytest.raises(ConfigurationError, match="atomic"):
            consumer(policy=Policy(atomic=True)).operation("k1")

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"window": 0}, "window"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"lease": 1}, "lease"),
            ({"margin": -1}, "margin"),
            ({"window": 2, "clock_skew": 3}, "clock_skew"),
            ({"busy": "ignore"}, "busy"),
            ({"wait_limit": 0}, "wait_limit"),
            ({"conflict_reruns": -1}, "conflict_reruns"),
            ({"concurrency": 0}, "concurrency"),
            ({"max_result_bytes": 400_000}, "max_result_bytes"),
            ({"warm_cache": -1}, "warm_cache"),
            ({"warm_seconds": 301}, "warm_seconds"),
            ({"atomic": True, "same_delivery_takes_over": True}, "atomic"),
        ],
    )
    def test_policy_is_checked_when_it_is_built(self, settings: dict[str, Any], says: str) -> None:
        """Each mistake is named by the error."""
        with pytest.raises(ConfigurationError, match=says):
            Policy(**settings)

    def test_default_window_outlasts_every_road_back(self) -> None:
        """EventBridge's day, Lambda's six hours, two weeks in a dead-letter queue and a week's archive fit into it."""
        assert Policy().window > 1 * DAY + DAY // 4 + 14 * DAY + 7 * DAY


class TestHeartbeat:
    """The background thread that renews a lease."""

    def test_beats_until_the_work_ends_and_is_joined(self) -> None:
        """Long work is renewed again and again, and when it ends the thread has ended too."""
        beats = threading.Semaphore(0)

        def renew() -> bool:
            beats.release()
            return True

        before = set(threading.enumerate())
        with Heartbeat(renew, 0.001):
            assert all(beats.acquire(timeout=DEADLINE_S) for _ in range(3))
        assert set(threading.enumerate()) == before

    def test_survives_a_store_that_is_down_for_a_moment(self) -> None:
        """A heartbeat without an answer is followed by another."""
        beats = threading.Semaphore(0)

        def renew() -> bool:
            beats.release()
            raise StoreUnavailableError("down")

        with Heartbeat(renew, 0.001):
            assert all(beats.acquire(timeout=DEADLINE_S) for _ in range(3))

    def test_stops_when_the_lease_is_lost(self) -> None:
        """A lease that another attempt holds is not asked for again."""
        beats: list[bool] = []

        def renew() -> bool:
            beats.append(False)
            return False

        heartbeat = Heartbeat(renew, 0.001)
        with heartbeat:
            heartbeat._thread.join(DEADLINE_S)  # noqa: SLF001 - it has to end by itself
        assert beats == [False]

    def test_work_without_a_deadline_is_renewed_in_the_background(self, clock: ManualClock) -> None:
        """An operation outside Lambda, whose lease is short, has a heartbeat; one under a short deadline needs none."""
        slow = Consumer("report", MemoryStore(clock=clock), clock=clock)
        with slow.operation("k1"):
            names = {thread.name for thread in threading.enumerate()}
        with lambda_deadline(Invocation(clock), clock), slow.operation("k2"):
            names_in_lambda = {thread.name for thread in threading.enumerate()}

        assert "idempotency-heartbeat" in names
        assert "idempotency-heartbeat" not in names_in_lambda
