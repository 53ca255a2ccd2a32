"""Powertools' decorators over this package's stores, and consumers that honour Powertools' records."""

import dataclasses
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyItemNotFoundError,
    IdempotencyKeyError,
    IdempotencyPersistenceLayerError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord
from aws_lambda_powertools.utilities.idempotency.serialization.dataclass import DataclassSerializer

from idempotency import (
    BusyError,
    Consumer,
    DynamoDBStore,
    MemoryStore,
    Observation,
    Operation,
    PermanentError,
    Policy,
)
from idempotency.clock import epoch_ms
from idempotency.errors import ConfigurationError, LostLeaseError, QuarantinedError, ResultOmittedError
from idempotency.powertools import FencedPersistenceLayer, PowertoolsHistory
from idempotency.record import COMPLETED, FAILED
from idempotency.testing import DeadLetterBox, FaultyTransport, Invocation, ManualClock
from tests.unit.idempotency.samples import event

PAGE = Path(__file__).parents[3] / "docs/powertools.md"
OLD_TABLE = "Powertools"
FUNCTION = "payments"

pytestmark = pytest.mark.filterwarnings("ignore:Couldn't determine the remaining time:UserWarning")


@pytest.fixture
def clock() -> ManualClock:
    """Time that the test moves, from now on: Powertools' own records are written by the real clock."""
    return ManualClock(int(time.time() * 1000))


@pytest.fixture(autouse=True)
def function_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as the Lambda function whose name Powertools puts into its keys."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", FUNCTION)


@pytest.fixture
def layer(store: DynamoDBStore, clock: ManualClock) -> FencedPersistenceLayer:
    """The bridge, over the default store."""
    return FencedPersistenceLayer(store, "payments", clock=clock)


class Charge:
    """A function that counts its calls, and lets happen what the test wants."""

    def __init__(self, happen: Callable[[Any], object] = lambda order: {"paid": True}) -> None:
        self.calls = 0
        self.happen = happen

    def __call__(self, order: Any) -> object:
        """Count, and let it happen."""
        self.calls += 1
        return self.happen(order)


def raising(error: Exception, order: Any) -> NoReturn:
    """Fail, as a function of an order."""
    raise error


type Call = Callable[[Any], Any]


def function(
    layer: FencedPersistenceLayer,
    clock: ManualClock,
    work: Callable[[Any], object],
    *,
    name: str = "charge",
    timeout_s: float = 30.0,
    **config: Any,
) -> Call:
    """Decorate ``work`` as Powertools' users do, with the context of an invocation."""
    settings = IdempotencyConfig(**config)

    def charge(order: Any) -> object:
        return work(order)

    charge.__qualname__ = name
    once = idempotent_function(charge, data_keyword_argument="order", persistence_store=layer, config=settings)

    def call(order: Any) -> object:
        settings.register_lambda_context(Invocation(clock, timeout_s=timeout_s))  # type: ignore[arg-type] # what is used of it
        return once(order=order)

    return call


class TestFencedPersistenceLayer:
    """Powertools' decorators, as they are, over this package's store."""

    def test_coroutine_is_no_result(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A call that returns a coroutine has not done its work: it fails, and is made again."""

        async def later(order: Any) -> None: ...

        charge = function(layer, clock, work := Charge(later))
        for _ in range(2):
            with pytest.raises(Exception, match="asyncio"):
                charge("order_01")
        assert work.calls == 2

    def test_completed_call_is_answered_from_its_record(
        self, layer: FencedPersistenceLayer, clock: ManualClock, transport: FaultyTransport
    ) -> None:
        """The second call gets the first one's result at the cost of one round trip, and nothing runs."""
        charge = function(layer, clock, work := Charge())

        assert charge("order_01") == {"paid": True}
        assert transport.requests == ["PutItem", "PutItem"]
        assert charge("order_01") == {"paid": True}
        assert transport.requests == ["PutItem", "PutItem", "PutItem"]
        assert work.calls == 1

    def test_lambda_handlers_are_decorated_alike(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A handler under ``@idempotent`` runs once for its key, whatever else its event holds."""
        work = Charge()

        @idempotent(persistence_store=layer, config=IdempotencyConfig(event_key_jmespath="detail.idempotencyid"))
        def handler(event: dict[str, Any], context: Any) -> object:
            return work(event)

        context: Any = Invocation(clock)

        assert handler(event(), context) == {"paid": True}
        assert handler(event(amount=2), context) == {"paid": True}
        assert work.calls == 1

    def test_decorator_without_a_configuration_uses_the_whole_event(
        self, layer: FencedPersistenceLayer, clock: ManualClock
    ) -> None:
        """``@idempotent`` without config= makes a new configuration each time, and still recognises the event."""
        work = Charge(lambda event: 0)

        @idempotent(persistence_store=layer)
        def handler(event: dict[str, Any], context: Any) -> object:
            return work(event)

        context: Any = Invocation(clock)

        assert [handler(event(), context), handler(event(), context), handler(event("k2"), context)] == [0, 0, 0]
        assert work.calls == 2

    def test_stale_owner_changes_nothing_when_it_completes(
        self, layer: FencedPersistenceLayer, clock: ManualClock
    ) -> None:
        """An owner that was overtaken is told so, and the result of the call that counts stays."""
        successor = function(layer, clock, lambda order: "second")

        def stall(order: Any) -> object:
            clock.advance(40)
            successor(order)
            return "first"

        with pytest.raises(IdempotencyPersistenceLayerError) as told:
            function(layer, clock, stall)("order_01")

        assert isinstance(told.value.__cause__, LostLeaseError)
        assert successor("order_01") == "second"

    def test_stale_owner_changes_nothing_when_it_raises(
        self, layer: FencedPersistenceLayer, clock: ManualClock
    ) -> None:
        """The failure of an owner that was overtaken does not undo what its successor has completed."""
        successor = function(layer, clock, work := Charge())

        def stall(order: Any) -> object:
            clock.advance(40)
            successor(order)
            raise TimeoutError

        with pytest.raises(TimeoutError):
            function(layer, clock, stall)("order_01")
        successor("order_01")

        assert work.calls == 1

    def test_claim_whose_answer_was_lost_is_recognised(
        self, layer: FencedPersistenceLayer, clock: ManualClock, transport: FaultyTransport
    ) -> None:
        """A claim that took place though its answer was lost is the caller's own."""
        transport.lose_answer()

        assert function(layer, clock, Charge())("order_01") == {"paid": True}

    def test_call_in_progress_is_reported_as_such(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """While one call runs, another one of its key gets the error that Powertools' users know."""
        again: list[Call] = []

        def recurse(order: Any) -> object:
            with pytest.raises(IdempotencyAlreadyInProgressError):
                again[0](order)
            return "done"

        again.append(function(layer, clock, recurse))

        assert again[0]("order_01") == "done"

    @pytest.mark.parametrize(
        "result",
        [0, 0.0, False, "", [], {}, None, Decimal(0), (), b"", Decimal("12.50"), datetime(2027, 1, 1, tzinfo=UTC), [1]],
        ids=repr,
    )
    def test_result_comes_back_as_it_was(
        self, layer: FencedPersistenceLayer, clock: ManualClock, result: object
    ) -> None:
        """A duplicate gets an equal result of the same type, empty ones and those that JSON cannot hold among them."""
        charge = function(layer, clock, work := Charge(lambda order: result))
        charge("order_01")

        duplicate = charge("order_01")

        assert duplicate == result
        assert type(duplicate) is type(result)
        assert work.calls == 1

    def test_result_that_cannot_be_stored_is_not_computed_again(
        self, layer: FencedPersistenceLayer, clock: ManualClock
    ) -> None:
        """A call whose result has no stored form is completed; its duplicate is told that the value is not there."""
        charge = function(layer, clock, work := Charge(lambda order: object()))
        charge("order_01")

        with pytest.raises(ResultOmittedError):
            charge("order_01")
        assert work.calls == 1

    def test_response_hook_sees_the_restored_result(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A hook of the user's is called once for a duplicate, with its result and its record."""
        seen: list[tuple[object, str]] = []

        def hook(response: Any, idempotent_data: DataRecord) -> Any:
            seen.append((response, idempotent_data.status))
            return "hooked"

        charge = function(layer, clock, Charge(lambda order: []), response_hook=hook)
        charge("order_01")

        assert charge("order_01") == "hooked"
        assert seen == [([], COMPLETED)]

    def test_output_serializer_is_applied(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A serializer of Powertools' rebuilds the result that it took apart."""
        config = IdempotencyConfig(lambda_context=Invocation(clock))  # type: ignore[arg-type] # what is used of it

        def receipt(order: str) -> Receipt:
            return Receipt(order, 1250)

        charge = idempotent_function(
            receipt,
            data_keyword_argument="order",
            persistence_store=layer,
            config=config,
            output_serializer=DataclassSerializer,
        )

        assert charge(order="order_01") == charge(order="order_01") == Receipt("order_01", 1250)

    def test_nested_calls_keep_their_keys(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A function that calls another one over the same layer is completed under its own key."""
        inner = function(layer, clock, lambda order: "inner", name="inner")
        outer = function(layer, clock, work := Charge(lambda order: f"outer {inner(order)}"), name="outer")

        assert outer("order_01") == "outer inner"
        assert outer("order_01") == "outer inner"
        assert inner("order_01") == "inner"
        assert work.calls == 1

    def test_nested_call_that_was_killed_keeps_its_key(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A function that outlives the killing of one that it called completes its own key, not the other one."""
        inner = function(layer, clock, die, name="inner")

        def survive(order: Any) -> object:
            with pytest.raises(KilledError):
                inner({"id": 2})
            return "survived"

        outer = function(layer, clock, work := Charge(survive), name="outer")
        outer({"id": 1})

        assert outer({"id": 1}) == "survived"
        assert work.calls == 1

    def test_threads_keep_their_keys(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A function that runs while another thread's runs from end to end is completed under its own key."""
        began, end = threading.Event(), threading.Event()

        def wait(order: Any) -> object:
            began.set()
            end.wait(timeout=10)
            return "slow"

        slow = function(layer, clock, work := Charge(wait), name="slow")
        thread = threading.Thread(target=slow, args=("order_01",))
        thread.start()
        began.wait(timeout=10)
        function(layer, clock, lambda order: "fast", name="fast")("order_01")
        end.set()
        thread.join()

        assert slow("order_01") == "slow"
        assert work.calls == 1

    def test_functions_that_share_a_layer_keep_their_configurations(
        self, layer: FencedPersistenceLayer, clock: ManualClock
    ) -> None:
        """Each function's key is found by its own expression, whichever of them was called first."""
        by_id = function(layer, clock, ids := Charge(), name="by_id", event_key_jmespath="id")
        by_user = function(layer, clock, users := Charge(), name="by_user", event_key_jmespath="user")
        for order in ({"id": 1, "user": "a"}, {"id": 2, "user": "a"}):
            by_id(order)
            by_user(order)

        assert (ids.calls, users.calls) == (2, 1)

    def test_other_payload_is_refused(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """With payload validation, another payload under a known key raises Powertools' error; an equal one is fine."""
        settings: dict[str, Any] = {"event_key_jmespath": "id", "payload_validation_jmespath": "amount"}
        charge = function(layer, clock, work := Charge(), **settings)
        charge({"id": 1, "amount": 5})

        assert charge({"id": 1, "amount": 5, "seen": 2}) == {"paid": True}
        with pytest.raises(IdempotencyValidationError):
            charge({"id": 1, "amount": 6})
        assert work.calls == 1

    @pytest.mark.parametrize(
        "expression", ["[tenant, id]", "{tenant: tenant, id: id}", "@.[tenant, id]", "@ | [tenant, id]"]
    )
    def test_partly_missing_key_is_refused(
        self, layer: FencedPersistenceLayer, clock: ManualClock, expression: str
    ) -> None:
        """A composite key without one of its parts would be shared by strangers: nothing runs."""
        charge = function(layer, clock, work := Charge(), event_key_jmespath=expression)

        with pytest.raises(IdempotencyKeyError):
            charge({"tenant": "acr"})
        assert work.calls == 0

    def test_key_that_holds_nothing_inside_is_a_key(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A key that is a part of the payload as a whole may have empty fields."""
        charge = function(layer, clock, work := Charge(), event_key_jmespath="body")
        charge({"body": {"id": 1, "comment": None}})
        charge({"body": {"id": 1, "comment": None}})

        assert work.calls == 1

    def test_missing_key_is_what_the_configuration_says(
        self, layer: FencedPersistenceLayer, clock: ManualClock, transport: FaultyTransport
    ) -> None:
        """Without a key a call runs without a record and with a warning, or is refused where that was asked for."""
        strict = function(layer, clock, Charge(), event_key_jmespath="id", raise_on_no_idempotency_key=True)
        lenient = function(layer, clock, work := Charge(), event_key_jmespath="id")

        with pytest.raises(IdempotencyKeyError):
            strict({})
        with pytest.warns(UserWarning, match="No idempotency key"):
            assert lenient({}) == {"paid": True}
        work.happen = lambda order: 1 / 0
        with pytest.warns(UserWarning, match="No idempotency key"), pytest.raises(ZeroDivisionError):
            lenient({})
        assert transport.requests == []

    def test_failed_call_may_be_made_again(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """After a failure the next call runs, however many there were before: so it is in Powertools."""
        charge = function(layer, clock, work := Charge(lambda order: 1 / 0))
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                charge("order_01")
        work.happen = lambda order: "paid"

        assert charge("order_01") == "paid"

    def test_error_survives_a_failure_to_record_it(
        self, layer: FencedPersistenceLayer, clock: ManualClock, transport: FaultyTransport
    ) -> None:
        """The function's own error reaches the caller, with a note, though it could not be recorded."""

        def fail(order: Any) -> object:
            for _ in range(99):
                transport.lose_request()
            raise TimeoutError("the bank is slow")

        with pytest.raises(TimeoutError, match="the bank is slow") as raised:
            function(layer, clock, fail)("order_01")
        assert "could not be recorded" in raised.value.__notes__[0]

    def test_attempts_are_limited_where_that_is_asked_for(self, store: DynamoDBStore, clock: ManualClock) -> None:
        """After ``max_attempts`` failures the key is quarantined and not run again."""
        layer = FencedPersistenceLayer(store, "payments", max_attempts=2, clock=clock)
        charge = function(layer, clock, work := Charge(lambda order: 1 / 0))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                charge("order_01")

        with pytest.raises(IdempotencyPersistenceLayerError) as told:
            charge("order_01")
        assert isinstance(told.value.__cause__, QuarantinedError)
        assert work.calls == 2

    def test_window_is_the_configuration_s_or_the_layer_s(self, store: DynamoDBStore, clock: ManualClock) -> None:
        """A record is remembered as long as the configuration says, unless the layer knows better."""
        short = function(FencedPersistenceLayer(store, "short", clock=clock), clock, forgetful := Charge())
        long = function(FencedPersistenceLayer(store, "long", window=86_400, clock=clock), clock, mindful := Charge())
        for _ in range(2):
            short("order_01")
            long("order_01")
            clock.advance(2 * 3_600)

        assert (forgetful.calls, mindful.calls) == (2, 1)

    def test_local_cache_answers_without_a_round_trip(
        self, layer: FencedPersistenceLayer, clock: ManualClock, transport: FaultyTransport
    ) -> None:
        """Where the configuration asks for the local cache, a duplicate in the same process asks nobody."""
        charge = function(layer, clock, Charge(lambda order: 0), use_local_cache=True)
        charge("order_01")
        requests = len(transport.requests)

        assert charge("order_01") == 0
        assert len(transport.requests) == requests

    def test_key_outlives_the_name_of_the_lambda_function(
        self, layer: FencedPersistenceLayer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call is recognised under another function name, as after a redeployment or in another region."""
        charge = function(layer, clock, work := Charge())
        charge("order_01")
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "payments-2")
        charge("order_01")

        assert work.calls == 1

    def test_call_without_a_context_is_warned_of(self, layer: FencedPersistenceLayer) -> None:
        """Without a Lambda context a claim holds for as long as any invocation may last, and a warning says so."""

        def echo(order: str) -> object:
            return order

        charge = idempotent_function(echo, data_keyword_argument="order", persistence_store=layer)

        with pytest.warns(UserWarning, match="holds its key for 900 s"):
            charge(order="order_01")

    def test_call_without_a_context_holds_its_key_as_long_as_any_invocation(
        self, layer: FencedPersistenceLayer, clock: ManualClock
    ) -> None:
        """Nobody renews such a claim, so nobody takes it over before the longest invocation is certainly over."""
        charge = idempotent_function(die, data_keyword_argument="order", persistence_store=layer)
        with pytest.warns(UserWarning, match="holds its key"), pytest.raises(KilledError):
            charge(order="order_01")

        clock.advance(890)
        with pytest.warns(UserWarning, match="holds its key"), pytest.raises(IdempotencyAlreadyInProgressError):
            charge(order="order_01")
        clock.advance(20)
        with pytest.warns(UserWarning, match="holds its key"), pytest.raises(KilledError):
            charge(order="order_01")

    def test_call_is_made_however_little_time_is_left(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """A short timeout keeps no call from being made: so it is in Powertools."""
        assert function(layer, clock, Charge(), timeout_s=0.2)("order_01") == {"paid": True}

    def test_window_is_judged_by_the_layer_s_clock(self, store: DynamoDBStore) -> None:
        """A record that is remembered is not taken for expired by the clock of this machine."""
        early = ManualClock(1_600_000_000_000)
        charge = function(FencedPersistenceLayer(store, "payments", clock=early), early, work := Charge())
        charge("order_01")
        charge("order_01")

        assert work.calls == 1

    def test_record_can_be_asked_for(self, layer: FencedPersistenceLayer, clock: ManualClock) -> None:
        """Powertools' own question for a record is answered: absent or failed, in progress, completed, quarantined."""
        seen: list[DataRecord | None] = []
        charge = function(layer, clock, Charge(lambda order: seen.append(layer.get_record(order))), name="charge")
        layer.configure(IdempotencyConfig(), "charge", key_prefix=f"{__name__}.charge")
        with pytest.raises(IdempotencyItemNotFoundError):
            layer.get_record("order_01")
        charge("order_01")
        seen.append(layer.get_record("order_01"))

        assert [record and record.status for record in seen] == ["INPROGRESS", COMPLETED]
        assert seen[1] is not None
        assert seen[1].response_json_as_dict() is None
        for order, error, told in (
            ("order_02", KeyError(), IdempotencyItemNotFoundError),
            ("order_03", PermanentError(), QuarantinedError),
        ):
            fails = function(layer, clock, functools.partial(raising, error), name="charge")
            with pytest.raises((KeyError, PermanentError)):
                fails(order)
            with pytest.raises(told):
                layer.get_record(order)

    def test_completion_needs_a_claim_of_the_same_call(self, layer: FencedPersistenceLayer) -> None:
        """Nothing is completed that was not claimed in this context, as a durable function's replay would want."""
        layer.configure(IdempotencyConfig(), "charge")

        with pytest.raises(ConfigurationError, match="durable"):
            layer.save_success("order_01", "paid")

    def test_every_call_is_observed(self, store: DynamoDBStore, clock: ManualClock) -> None:
        """The layer's hook for logs and metrics is told what became of each call."""
        seen: list[Observation] = []
        charge = function(
            FencedPersistenceLayer(store, "payments", observe=seen.append, clock=clock), clock, work := Charge()
        )
        charge("order_01")
        charge("order_01")
        work.happen = lambda order: 1 / 0
        with pytest.raises(ZeroDivisionError):
            charge("order_02")

        assert [observation.outcome for observation in seen] == ["New", "Duplicate", "Failed"]

    def test_any_store_will_do(self, clock: ManualClock) -> None:
        """The bridge asks nothing of a store but the protocol's own steps."""
        layer = FencedPersistenceLayer(MemoryStore(clock=clock), "payments", clock=clock)
        charge = function(layer, clock, work := Charge(lambda order: Decimal(1)))

        assert charge("order_01") == charge("order_01") == Decimal(1)
        assert work.calls == 1

    def test_consumer_s_name_is_checked(self, store: DynamoDBStore) -> None:
        """A name that could run into the key is refused when the layer is built."""
        with pytest.raises(ConfigurationError):
            FencedPersistenceLayer(store, "pay#ments")


@dataclasses.dataclass
class Receipt:
    """A result that Powertools' serializer takes apart."""

    order: str
    cents: int


# ── Moving over ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def old_table(dynamodb: Any) -> Iterator[Any]:
    """The table that Powertools has used until now."""
    dynamodb.create_table(
        TableName=OLD_TABLE,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield dynamodb
    dynamodb.delete_table(TableName=OLD_TABLE)


@pytest.fixture
def old_layer(old_table: Any) -> DynamoDBPersistenceLayer:
    """Powertools' own persistence layer."""
    return DynamoDBPersistenceLayer(OLD_TABLE, boto3_client=boto3.client("dynamodb"))


def records(table: Any) -> list[dict[str, Any]]:
    """Everything that Powertools' table holds."""
    items: list[dict[str, Any]] = table.scan(TableName=OLD_TABLE)["Items"]
    return items


class KilledError(BaseException):
    """What a killed process looks like to the code that it was running."""


def die(order: Any = None) -> object:
    """Be killed: nothing after this is executed, and the record stays in progress."""
    raise KilledError


class TestReplacement:
    """The bridge, told which persistence layer it replaces."""

    @pytest.fixture
    def layer(
        self, store: DynamoDBStore, clock: ManualClock, old_layer: DynamoDBPersistenceLayer
    ) -> FencedPersistenceLayer:
        """The bridge beside the layer that was used before."""
        return FencedPersistenceLayer(store, "payments", replaces=old_layer, clock=clock)

    def test_call_that_powertools_completed_is_not_made_again(
        self, layer: FencedPersistenceLayer, clock: ManualClock, old_layer: DynamoDBPersistenceLayer, old_table: Any
    ) -> None:
        """What the old record holds becomes the new record's result; the old one stays as it was, and is asked once."""
        function(old_layer, clock, lambda order: {"receipt": 0})("order_01")  # type: ignore[arg-type] # the old layer
        before = records(old_table)
        charge = function(layer, clock, work := Charge())

        assert charge("order_01") == {"receipt": 0}
        assert records(old_table) == before
        old_table.delete_item(TableName=OLD_TABLE, Key={"id": before[0]["id"]})
        assert charge("order_01") == {"receipt": 0}
        assert work.calls == 0

    def test_call_that_powertools_does_not_know_is_made(
        self, layer: FencedPersistenceLayer, clock: ManualClock, old_table: Any
    ) -> None:
        """A call without an old record runs, and writes none."""
        charge = function(layer, clock, work := Charge())
        charge("order_01")

        assert work.calls == 1
        assert records(old_table) == []

    def test_call_that_is_still_in_progress_under_powertools_is_refused(
        self, layer: FencedPersistenceLayer, clock: ManualClock, old_layer: DynamoDBPersistenceLayer
    ) -> None:
        """While the version before this one is at it, the caller is told so; when its time is up, the call is made."""
        old = function(old_layer, clock, die, timeout_s=30)  # type: ignore[arg-type] # the old layer
        with pytest.raises(KilledError):
            old("order_01")
        charge = function(layer, clock, work := Charge(), timeout_s=120)

        with pytest.raises(IdempotencyAlreadyInProgressError):
            charge("order_01")
        clock.advance(40)  # nor does the refused call hold the key for its own two minutes
        assert charge("order_01") == {"paid": True}
        assert work.calls == 1

    def test_record_that_powertools_would_forget_is_forgotten(
        self, layer: FencedPersistenceLayer, clock: ManualClock, old_layer: DynamoDBPersistenceLayer, old_table: Any
    ) -> None:
        """An old record whose window has ended answers nothing."""
        function(old_layer, clock, lambda order: "old")("order_01")  # type: ignore[arg-type] # the old layer
        [item] = records(old_table)
        old_table.put_item(TableName=OLD_TABLE, Item=item | {"expiration": {"N": "1000000000"}})

        assert function(layer, clock, Charge(lambda order: "new"))("order_01") == "new"

    def test_other_payload_than_powertools_saw_is_refused(
        self, layer: FencedPersistenceLayer, clock: ManualClock, old_layer: DynamoDBPersistenceLayer
    ) -> None:
        """The old record's payload is compared where the configuration says so."""
        settings: dict[str, Any] = {"event_key_jmespath": "id", "payload_validation_jmespath": "amount"}
        function(old_layer, clock, lambda order: "old", **settings)({"id": 1, "amount": 5})  # type: ignore[arg-type] # the old layer
        charge = function(layer, clock, work := Charge(), **settings)

        with pytest.raises(IdempotencyValidationError):
            charge({"id": 1, "amount": 6})
        assert work.calls == 0


class TestPowertoolsHistory:
    """Consumers that honour what Powertools' records remember."""

    @pytest.fixture
    def history(self, old_layer: DynamoDBPersistenceLayer, clock: ManualClock) -> PowertoolsHistory:
        """What the handler that was decorated before has done."""
        config = IdempotencyConfig(event_key_jmespath="detail.idempotencyid", payload_validation_jmespath="detail.data")
        return PowertoolsHistory(old_layer, config, prefix=f"{FUNCTION}.{__name__}.old_handler", clock=clock)

    @pytest.fixture
    def old_handler(self, old_layer: DynamoDBPersistenceLayer, clock: ManualClock) -> Callable[..., Any]:
        """The handler as it was under Powertools; ``work`` decides what happens in it."""

        def handle(event: dict[str, Any], work: Callable[[], object] = lambda: {"paid": "then"}) -> object:
            def old_handler(event: dict[str, Any], context: Any) -> object:
                return work()

            old_handler.__qualname__ = "old_handler"
            config = IdempotencyConfig(
                event_key_jmespath="detail.idempotencyid", payload_validation_jmespath="detail.data"
            )
            context: Any = Invocation(clock)
            return idempotent(persistence_store=old_layer, config=config)(old_handler)(event, context)

        return handle

    @pytest.mark.parametrize("atomic", [False, True])
    def test_event_that_powertools_completed_is_not_run_again(
        self,
        consumer: Callable[..., Consumer],
        history: PowertoolsHistory,
        old_handler: Callable[..., Any],
        clock: ManualClock,
        atomic: bool,
    ) -> None:
        """The consumer's own record is completed with the old result, with a claim or without one."""
        runs: list[Operation] = []
        old_handler(event())
        new = consumer(atomic=atomic)

        @new.event_handler
        @history.first
        def handler(event: dict[str, Any], operation: Operation) -> object:
            runs.append(operation)
            return None

        handler(event(), Invocation(clock))
        handler(event("k2"), Invocation(clock, request_id="request-2"))

        assert [operation.key for operation in runs] == ["history#k2"]
        record = new.record("k1")
        assert record is not None
        assert record.status == COMPLETED

    def test_event_that_is_in_progress_under_powertools_comes_again(
        self,
        consumer: Callable[..., Consumer],
        history: PowertoolsHistory,
        old_handler: Callable[..., Any],
        clock: ManualClock,
    ) -> None:
        """While the version before this one is at an event, its delivery fails and is retried; it is not run twice."""
        with pytest.raises(KilledError):
            old_handler(event(), die)
        new = consumer()
        handler = new.event_handler(history.first(lambda event, operation: "now"))

        with pytest.raises(BusyError):
            handler(event(), Invocation(clock))
        record = new.record("k1")
        assert record is not None
        assert record.status == FAILED
        clock.advance(60)
        assert handler(event(), Invocation(clock))["outcome"] == "Retried"

    def test_event_with_another_payload_is_set_aside(
        self,
        consumer: Callable[..., Consumer],
        history: PowertoolsHistory,
        old_handler: Callable[..., Any],
        clock: ManualClock,
        box: DeadLetterBox,
    ) -> None:
        """A key that Powertools knows with another payload goes to the dead-letter queue."""
        old_handler(event(amount=1))
        handler = consumer().event_handler(history.first(lambda event, operation: "now"))

        assert handler(event(amount=2), Invocation(clock))["outcome"] == "DeadLettered"
        assert "PayloadMismatchError" in box.letters[0].message

    def test_parsed_event_says_what_powertools_saw(
        self,
        store: DynamoDBStore,
        old_layer: DynamoDBPersistenceLayer,
        old_handler: Callable[..., Any],
        clock: ManualClock,
    ) -> None:
        """A handler of parsed events gives back the part of the raw event that the expressions look at."""
        old_handler(event())
        history = PowertoolsHistory(
            old_layer,
            IdempotencyConfig(event_key_jmespath="detail.idempotencyid"),
            prefix=f"{FUNCTION}.{__name__}.old_handler",
            data=lambda key, operation: {"detail": {"idempotencyid": key}},
            clock=clock,
        )
        runs: list[str] = []
        consumer = Consumer(
            "history",
            store,
            parse=lambda raw: str(raw["detail"]["idempotencyid"]),
            key=lambda key: key,
            payload=lambda key: None,
            policy=Policy(),
            clock=clock,
        )
        handler = consumer.event_handler(history.first(lambda key, operation: runs.append(key)))
        handler(event(), Invocation(clock))

        assert runs == []

    @pytest.mark.parametrize("amount", [1, 2], ids=["the same payload", "another payload"])
    def test_bridge_s_records_are_honoured_too(
        self, layer: FencedPersistenceLayer, consumer: Callable[..., Consumer], clock: ManualClock, amount: int
    ) -> None:
        """Who went to the bridge first can move on to a consumer without forgetting keys, nor their payloads."""
        config = IdempotencyConfig(event_key_jmespath="detail.idempotencyid", payload_validation_jmespath="detail.data")
        context: Any = Invocation(clock)
        idempotent(persistence_store=layer, config=config, key_prefix="handler")(
            lambda event, context: {"paid": "then"}
        )(event(amount=1), context)
        history = PowertoolsHistory(layer, config, prefix="handler", clock=clock)
        new = consumer()
        outcome = new.event_handler(history.first(lambda event, operation: "now"))(
            event(amount=amount), Invocation(clock)
        )["outcome"]

        assert outcome == ("New" if amount == 1 else "DeadLettered")

    def test_event_without_a_key_under_powertools_is_run(
        self, old_layer: DynamoDBPersistenceLayer, clock: ManualClock
    ) -> None:
        """Where Powertools made no record for want of a key, there is nothing to honour."""
        history = PowertoolsHistory(
            old_layer, IdempotencyConfig(event_key_jmespath="detail.other"), prefix="payments", clock=clock
        )

        with pytest.warns(UserWarning, match="No idempotency key"):
            assert history.find(event()) is None


class TestDocument:
    """The page for users of Powertools."""

    @pytest.fixture
    def tables(self, dynamodb: Any) -> Iterator[Any]:
        """The tables that the page names."""
        names = {"IdempotencyTable": "idempotencyKey", "powertools-idempotency": "id"}
        for table, key in names.items():
            dynamodb.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        yield dynamodb
        for table in names:
            dynamodb.delete_table(TableName=table)

    def test_code_runs(self, tables: Any) -> None:
        """The decorated function, the layer beside its predecessor and the consumer with its history do their work."""
        before, beside, after = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        namespace: dict[str, Any] = {}
        order = {"order_id": "order_01", "cents": 1250}
        exec(compile(before, str(PAGE), "exec"), namespace)  # noqa: S102 - the page's own code
        namespace["config"].register_lambda_context(Invocation(epoch_ms))
        assert namespace["charge"](order=order) == namespace["charge"](order=order) == {"charged": 1250}

        exec(compile(beside, str(PAGE), "exec"), namespace)  # noqa: S102 - as above
        assert isinstance(namespace["persistence"], FencedPersistenceLayer)

        exec(compile(after, str(PAGE), "exec"), namespace)  # noqa: S102 - as above
        ride = event(cents=1250) | {"time": "2999-01-01T00:00:00Z"}
        outcomes = [namespace["handler"](ride, Invocation(epoch_ms))["outcome"] for _ in range(2)]
        assert outcomes == ["New", "Duplicate"]
        assert tables.scan(TableName="powertools-idempotency")["Count"] == 0
