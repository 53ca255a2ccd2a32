"""The programming interface: handlers, functions and blocks over the same operation."""

import contextlib
import functools
import threading
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from carride_idempotency import (
    ConfigurationError,
    Consumer,
    MemoryStore,
    Operation,
    Policy,
    Put,
    lambda_deadline,
)
from carride_idempotency.dead_letters import CONTRACT
from carride_idempotency.errors import (
    PayloadMismatchError,
    RetryableError,
    StoreUnavailableError,
)
from carride_idempotency.protocol.concurrency import Threads
from carride_idempotency.testing import Invocation, ManualClock, sqs_event
from tests.samples import World, consumer_of, event

DEADLINE_S = 60
"""How long a test waits for other threads before it fails."""


def popped_from(results: list[Any]) -> Callable[[Any, Operation], object]:
    return lambda message, operation: results.pop()


class TestEventHandler:
    def test_parsed_event_is_what_the_handler_takes(self, world: World) -> None:
        """Key and payload come from the parsed event, which is also the handler's argument."""
        parsed: list[object] = []
        history = world.consumer(
            parse=lambda raw: (raw["detail"]["idempotencyid"], raw["detail"]["data"]),
            key=lambda ride: ride[0],
            payload=lambda ride: ride[1],
        )
        history.event_handler(lambda ride, operation: parsed.append(ride))(
            event(), world.invocation()
        )
        assert parsed == [("k1", {"orderID": "order_01"})]
        assert history.record("k1") is not None

    def test_event_that_breaks_the_contract_goes_to_the_dead_letter_queue(
        self, world: World
    ) -> None:
        """The consumer's queue gets it, with the reason; without one the error is raised.

        The transport has its own.
        """
        settings: Any = {"parse": lambda raw: int("no type"), "payload": lambda ride: ride}
        handler = world.consumer(**settings).event_handler(world.work)
        bare = world.consumer(**settings, dead_letters=None).event_handler(world.work)
        assert handler(event(), world.invocation())["outcome"] == "DeadLettered"
        (letter,) = world.box.letters
        assert (letter.reason, letter.event) == (CONTRACT, event())
        assert "no type" in letter.message
        with pytest.raises(ValueError, match="no type"):
            bare(event(), world.invocation())

    def test_context_is_lambdas(self, world: World) -> None:
        """A handler sees Lambda's context; without one it says what to pass."""
        handler = world.consumer().event_handler(world.work)
        invocation = world.invocation()
        handler(event(), invocation)
        assert world.work.runs[0].context is invocation
        with pytest.raises(ConfigurationError, match="Invocation"):
            handler(event("k2"), None)  # type: ignore[arg-type] # as a hasty test calls it

    def test_a_caller_that_waits_is_told_once_that_it_gets_no_result(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One warning says what to decorate; a transport that does not wait leaves none."""
        returned: list[Any] = [{"paid": True}, 0, "", [], None]
        tasks = [{"detail": {"idempotencyid": f"task-{each!r}"}} for each in returned]
        for waits, warnings in ((False, 0), (True, 1)):
            results = list(reversed(returned))
            handler = world.consumer().event_handler(popped_from(results))
            caplog.clear()
            for number, task in enumerate(tasks):
                answer = handler(task if waits else event(f"k{number}"), world.invocation())
                assert answer["outcome"] == "New"
            assert len(caplog.records) == warnings
        assert "history: the handler returned a value" in caplog.text
        silent = world.consumer("silent").event_handler(lambda message, operation: None)
        caplog.clear()
        assert silent(tasks[0], world.invocation())["outcome"] == "New"
        assert caplog.records == []

    def test_without_a_key_a_policy_may_run_it_unprotected_and_count_it(self, world: World) -> None:
        """With missing_key="run", events without a key run each time, as Unprotected."""
        unprotected = world.consumer(policy={"missing_key": "run"})
        handler = unprotected.event_handler(world.work)
        charge = unprotected.function(key="order_id", name="charge")(
            lambda order_id, operation=None: world.work(None, operation)
        )
        for _ in range(2):
            handler(event(None), world.invocation())
        charge(None)
        assert len({operation.key for operation in world.work.runs}) == 3
        assert [one.outcome for one in world.seen] == ["Unprotected"] * 3
        assert world.reasons == []

    def test_two_consumers_of_one_event_each_have_their_effect(self, world: World) -> None:
        """Each consumer has its own record of an event."""
        for name in ("history", "payment"):
            world.consumer(name).event_handler(world.work)(event(), world.invocation())
        assert [operation.key for operation in world.work.runs] == ["history#k1", "payment#k1"]


class TestObserver:
    """An observer that raises costs nobody a delivery."""

    @staticmethod
    def observe(_: object) -> None:
        """Fail as a metrics client does whose endpoint is gone."""
        raise OSError("no route to the metrics")

    def test_what_is_done_stays_done(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        """Events, batches, functions and unreadable messages end as without it.

        It is logged once a minute.
        """
        consumer = world.consumer(observe=self.observe)
        handler = consumer.event_handler(world.work)
        assert handler(event(), world.invocation())["outcome"] == "New"
        assert handler(event(None), world.invocation())["outcome"] == "DeadLettered"

        @consumer.function(key="order")
        def ship(order: str) -> str:
            return f"{order} is shipped"

        assert ship("order_01") == ship("order_01") == "order_01 is shipped"
        records = consumer.batch_handler(world.work)
        batch = sqs_event(event("k2"), clock=world.clock)
        assert records(batch, world.invocation()) == {"batchItemFailures": []}
        assert len(caplog.records) == 1
        world.clock.advance(60)
        handler(event("k3"), world.invocation())
        assert len(caplog.records) == 2
        assert "mend the observer" in caplog.text


class TestExpiry:
    @pytest.fixture
    def expiring(self, world: World) -> Consumer[Any]:
        """A consumer of events that expire a minute after the clock's start."""
        end = datetime.fromtimestamp(world.clock() / 1000, UTC) + timedelta(minutes=1)
        return world.consumer(expires=lambda ride: end)

    def test_expired_event_is_dropped_and_counted(
        self, expiring: Consumer[Any], world: World
    ) -> None:
        """A new event past its expiry is acknowledged without a run or a record."""
        world.clock.advance(120)
        outcome = expiring.event_handler(world.work)(event(), world.invocation())["outcome"]
        assert outcome == world.seen[-1].outcome == "Expired"
        assert (world.work.runs, expiring.record("k1")) == ([], None)

    def test_half_done_event_is_finished_though_it_expired(
        self, expiring: Consumer[Any], world: World
    ) -> None:
        """An attempt that failed before the expiry is still retried after it."""
        world.fail(KeyError("pickup"))
        world.clock.advance(120)
        assert (
            expiring.event_handler(world.work)(event(), world.invocation())["outcome"] == "Retried"
        )


class TestFunction:
    @pytest.mark.parametrize("result", [None, False, 0, "", [], {}], ids=type)
    def test_empty_result_is_a_result(self, world: World, result: object) -> None:
        """It is stored, and the second call gets it without a run."""
        work = Mock(return_value=result)
        book = world.consumer().function(key="order_id", name="book")(lambda order_id: work())
        assert [book("order_01"), book("order_01")] == [result] * 2
        work.assert_called_once()

    def test_functions_of_one_consumer_share_no_keys(self, world: World) -> None:
        """Keys contain the function's name.

        Another function, or the handler around it, is another operation.
        """
        history = world.consumer()
        done: list[Operation] = []

        def charge(order_id: str, operation: Any = None) -> None:
            done.append(operation)

        inner = [history.function(key="order_id", name=name)(charge) for name in (None, "pay-back")]

        @history.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            done.append(operation)
            for each in inner:
                each("k1")
            with history.operation("k1", name="block") as block:
                done.append(block.operation)

        for _ in range(2):
            handler(event(), world.invocation())
        keys = ["history#k1", "history/charge#k1", "history/pay-back#k1", "history/block#k1"]
        assert [operation.key for operation in done] == keys
        assert len({operation.downstream_key for operation in done}) == 4
        assert all(history.record("k1", name) for name in (None, "charge", "pay-back", "block"))

    def test_functions_of_one_name_are_told_apart(self, world: World) -> None:
        """A second function of the same name, or one without a name, needs ``name=``."""
        decorate = world.consumer().function(key="order_id")

        def named(order_id: str) -> None: ...

        kept = [decorate(named), decorate(named)]
        other = types.FunctionType(named.__code__, {}, "named")
        other.__qualname__ = "named"
        other.__module__ = "elsewhere"
        for work in (other, lambda order_id: None, functools.partial(named)):
            with pytest.raises(ConfigurationError, match="name="):
                decorate(work)
        assert len(kept) == 2, "a function that is gone shares no keys"

    def test_functions_of_two_consumers_of_one_name_are_told_apart(self, world: World) -> None:
        """Otherwise one would return the result of the other."""

        @world.consumer("shop").function(key="order")
        def process(order: str) -> str:
            return f"{order} is billed"

        def other() -> None:
            @world.consumer("shop").function(key="order")
            def process(order: str) -> str:
                return f"{order} is shipped"

        with pytest.raises(ConfigurationError, match="name="):
            other()
        assert process("o1") == "o1 is billed"

    def test_functions_of_one_factory_are_told_apart(self, world: World) -> None:
        """They have one name and one place, and do different things, unless one is gone."""
        consumer = world.consumer("shop")

        def function_that(does: str) -> Callable[[str], str]:
            @consumer.function(key="order")
            def process(order: str) -> str:
                return f"{order} is {does}"

            return process

        billed = function_that("billed")
        with pytest.raises(ConfigurationError, match="name="):
            function_that("shipped")
        assert billed("o1") == "o1 is billed"
        del billed
        function_that("shipped")

    def test_argument_that_equals_its_default_counts_as_not_given(self, world: World) -> None:
        """A parameter that a later version adds with a default keeps old calls' fingerprints."""
        decorate = world.consumer().function(key="order_id", name="book")

        def book_later(
            order_id: str, price: int, currency: str = "EUR", note: object = None
        ) -> int:
            return -1

        decorate(lambda order_id, price: price)("order_01", 10)
        later = decorate(book_later)
        assert (
            later("order_01", 10)
            == later("order_01", 10, "EUR")
            == later("order_01", price=10, note=None)
            == 10
        )
        with pytest.raises(PayloadMismatchError):
            later("order_01", 10, "USD")

    def test_payload_names_what_is_fingerprinted(self, world: World) -> None:
        """Only the arguments in ``payload=`` are compared between calls."""

        @world.consumer().function(key="order_id", payload="price")
        def book(order_id: str, price: int, trace: str) -> str:
            return trace

        assert book("order_01", 10, "first") == book("order_01", 10, "second") == "first"
        with pytest.raises(PayloadMismatchError):
            book("order_01", 11, "third")

    @pytest.mark.parametrize(
        "named", [{"key": "orderid"}, {"key": "order_id", "payload": ["prize"]}]
    )
    def test_function_needs_the_arguments_that_it_names(
        self, world: World, named: dict[str, Any]
    ) -> None:
        """A misspelt argument is found when the function is decorated."""
        with pytest.raises(ConfigurationError, match=r"no argument '(orderid|prize)'"):
            world.consumer().function(name="book", **named)(lambda order_id: order_id)


class TestBlock:
    def test_loser_gets_the_result_of_the_winner(self, world: World) -> None:
        """A block that was overtaken ends with the committed result, not with its own."""
        history = world.consumer()
        with history.operation("k1") as slow:
            world.clock.advance(60)
            with history.operation("k1") as fast:
                fast.complete("the committed one")
            slow.complete("a late one")
        assert (slow.result, fast.result) == ("the committed one",) * 2

    def test_block_completes_with_its_result_and_is_done_the_second_time(
        self, world: World
    ) -> None:
        """The next block has the completed result and runs nothing.

        An operation's attributes cannot be set.
        """
        history = world.consumer()
        with history.operation("k1", {"price": 1}) as first:
            first.complete({"charged": 1})
            with pytest.raises(AttributeError, match="immutable"):
                first.operation.key = "other"
        with history.operation("k1", {"price": 1}) as second:
            assert (first.done, second.done, second.result) == (False, True, {"charged": 1})
            with pytest.raises(RuntimeError):
                assert second.operation

    def test_downstream_key_is_stable_over_attempts_and_differs_between_consumers(
        self, world: World
    ) -> None:
        """An external system gets one key for all attempts at a step, and another elsewhere."""
        keys = []
        for name in ("payment", "payment", "refund"):
            with contextlib.suppress(KeyError), world.consumer(name).operation("k1") as block:
                steps = [block.operation.downstream_key_for(step) for step in ("charge", "mail")]
                keys.append([block.operation.downstream_key, *steps])
                raise KeyError("gateway")
        assert keys[0] == keys[1]
        assert len({*keys[0], *keys[2]}) == 6


class TestConfiguration:
    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"name": ""}, "name"),
            ({"name": "a#b"}, "'#'"),
            ({"key": "detail.["}, "JMESPath"),
            ({"parse": dict}, "payload="),
            ({"key": None}, "key="),
            ({"policy": {"atomic": True}}, "atomic: decorate a function with @consumer.function"),
        ],
    )
    def test_consumer_is_checked_when_it_is_used(
        self, world: World, settings: dict[str, Any], says: str
    ) -> None:
        """The error names each mistake.

        Of the consumer, of a handler without a key, of an atomic block.
        """

        def use(consumer: Consumer[Any]) -> None:
            consumer.event_handler(world.work)
            consumer.operation("k1")

        with pytest.raises(ConfigurationError, match=says):
            use(world.consumer(**settings))

    def test_store_without_transactions_refuses_effects(self, clock: ManualClock) -> None:
        """A store without transactions refuses effects on a write, an atomic policy at once."""
        store = MemoryStore(clock=clock)
        with pytest.raises(ConfigurationError, match="transactions"):
            Consumer("history", store, key="id", policy=Policy(atomic=True))
        bare = consumer_of("history", store, clock=clock)
        with (
            pytest.raises(ConfigurationError, match="no transactions"),
            bare.operation("k1") as block,
        ):
            block.operation.write(Put("Rides", {"id": "order_01"}))


class TestHeartbeat:
    @pytest.mark.parametrize("renews", [True, False, StoreUnavailableError("down")], ids=str)
    def test_beats_until_the_work_ends_and_is_joined(self, renews: bool | Exception) -> None:
        """Long work is renewed again and again, whatever a beat raises, until its lease is lost."""
        beats = threading.Semaphore(0)

        def renew() -> bool:
            beats.release()
            if isinstance(renews, Exception):
                raise renews
            return renews

        before = set(threading.enumerate())
        with Threads().repeat(renew, 0.001):
            assert all(beats.acquire(timeout=DEADLINE_S) for _ in range(3 if renews else 1))
            for thread in set(threading.enumerate()) - before if not renews else ():
                thread.join(DEADLINE_S)
                assert not beats.acquire(blocking=False)
        assert set(threading.enumerate()) == before

    @pytest.mark.parametrize("way", ["function", "block"])
    def test_want_of_a_thread_uses_up_no_attempt(
        self, world: World, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        """Work that nothing would renew is not begun, and comes again when there is a thread."""
        slow = world.consumer(policy={"max_attempts": 1})
        runs: list[str] = []

        def in_block() -> None:
            with slow.operation("k1") as block:
                runs.append(block.operation.key)

        @slow.function(key="order")
        def ship(order: str) -> None:
            runs.append(order)

        deliver = in_block if way == "block" else functools.partial(ship, "k1")

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(3):
                with pytest.raises(RetryableError, match="no more threads"):
                    deliver()
        assert runs == []
        deliver()
        assert len(runs) == 1

    def test_work_without_a_deadline_is_renewed_in_the_background(self, world: World) -> None:
        """An operation outside Lambda, whose lease is short, has a heartbeat.

        One under a short deadline needs none.
        """
        slow = world.consumer("report")
        with slow.operation("k1"):
            names = {thread.name for thread in threading.enumerate()}
        with lambda_deadline(Invocation(world.clock), world.clock), slow.operation("k2"):
            names_in_lambda = {thread.name for thread in threading.enumerate()}
        assert "idempotency-heartbeat" in names - names_in_lambda
