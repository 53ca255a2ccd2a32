"""What the DynamoDB store asks of DynamoDB, and what it does with every answer that can come."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from idempotency import DynamoDBStore, EffectConflictError, Put, Update
from idempotency.errors import EffectsRejectedError, StoreUnavailableError
from idempotency.record import COMPLETED, IN_PROGRESS, Record
from idempotency.stores.dynamodb import item_of, record_of
from idempotency.stores.transport import BotocoreTransport, NoAnswerError, ServiceError, Transport
from idempotency.testing import FaultyTransport, ManualClock

TABLE = "Idempotency"
RIDES = "Rides"
KEY = "history#order_01"
MOST_TRIES = 6

CLAIM = Record(
    KEY, IN_PROGRESS, "owner-1", 1, 1_800_000_030_000, 1_802_592_000, "1:abc", "request-1", "eu-west-1", 7, 8
)
DONE = CLAIM._replace(status=COMPLETED, lease_ms=None, result="1")
CHARGE = Update(RIDES, {"id": "order_01"}, "ADD charges :one", values={":one": 1})
FIRST_CHARGE = CHARGE._replace(condition="attribute_not_exists(charges)")


type Step = Callable[[DynamoDBStore, int | None], object]

STEPS: dict[str, Step] = {
    "insert": lambda store, until_ms: store.insert(CLAIM, until_ms=until_ms),
    "swap": lambda store, until_ms: store.swap(CLAIM, CLAIM, until_ms=until_ms),
    "advance": lambda store, until_ms: store.advance(DONE, until_ms=until_ms),
    "commit": lambda store, until_ms: store.advance(DONE, [CHARGE], until_ms=until_ms),
    "read": lambda store, until_ms: store.read(KEY, until_ms=until_ms),
}


class Recorder:
    """Keeps the requests that pass through."""

    def __init__(self, transport: Transport) -> None:
        self.longest_try_s = transport.longest_try_s
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self._transport = transport

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Keep one request, and send it on."""
        self.requests.append((operation, request))
        return self._transport(operation, request)

    @property
    def tokens(self) -> list[str]:
        """The client request tokens, request by request."""
        return [request["ClientRequestToken"] for _, request in self.requests]


@pytest.fixture
def transport(dynamodb: Any) -> FaultyTransport:
    """The way to DynamoDB, which loses and refuses what the test says."""
    return FaultyTransport(BotocoreTransport(dynamodb, 1.5))


@pytest.fixture
def recorder(transport: FaultyTransport) -> Recorder:
    """What the store sends."""
    return Recorder(transport)


@pytest.fixture
def store(recorder: Recorder, clock: ManualClock) -> DynamoDBStore:
    """A store whose pauses move the test's clock."""
    return DynamoDBStore(TABLE, transport=recorder, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0)


def charges(dynamodb: Any) -> int:
    """How often the ride was charged."""
    item = dynamodb.get_item(TableName=RIDES, Key={"id": {"S": "order_01"}}).get("Item", {})
    return int(item.get("charges", {"N": "0"})["N"])


def cancelled(*codes: str) -> dict[str, Any]:
    """The body of a cancelled transaction."""
    return {"CancellationReasons": [{"Code": code} for code in codes]}


class TestRequests:
    """One conditional request a step."""

    def test_each_step_is_one_round_trip(self, store: DynamoDBStore, recorder: Recorder) -> None:
        """No step costs a read: a refused write brings back what refused it."""
        store.insert(CLAIM)
        found = store.insert(CLAIM._replace(owner="owner-2"))
        store.swap(found, CLAIM._replace(owner="owner-2", attempt=2))
        store.advance(DONE._replace(owner="owner-2"))
        store.read(KEY)
        assert [operation for operation, _ in recorder.requests] == ["PutItem"] * 4 + ["GetItem"]
        assert all(request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD" for _, request in recorder.requests[:4])

    def test_read_is_consistent(self, store: DynamoDBStore, recorder: Recorder) -> None:
        """A decision never rests on a replica that is behind."""
        store.read(KEY)
        assert recorder.requests[0][1]["ConsistentRead"] is True

    def test_record_and_effects_are_one_transaction(
        self, store: DynamoDBStore, recorder: Recorder, dynamodb: Any
    ) -> None:
        """Effects go in the same request as the record, which comes first."""
        assert store.insert(DONE, [CHARGE]) is DONE
        ((operation, request),) = recorder.requests
        assert operation == "TransactWriteItems"
        assert [list(action) for action in request["TransactItems"]] == [["Put"], ["Update"]]
        assert charges(dynamodb) == 1

    def test_attributes_are_those_that_operators_and_ttl_read(self) -> None:
        """The names in the table are a contract: with TTL, with the operator's queries, and with older records."""
        full = CLAIM._replace(
            result="r", error="e", retry_ms=9, dead_lettered=True, event="{}", revision="never stored"
        )
        assert item_of(full) == {
            "idempotencyKey": {"S": KEY},
            "status": {"S": "IN_PROGRESS"},
            "owner": {"S": "owner-1"},
            "attempt": {"N": "1"},
            "leaseExpiry": {"N": "1800000030000"},
            "expiryTimestamp": {"N": "1802592000"},
            "fingerprint": {"S": "1:abc"},
            "delivery": {"S": "request-1"},
            "region": {"S": "eu-west-1"},
            "createdAt": {"N": "7"},
            "updatedAt": {"N": "8"},
            "responseData": {"S": "r"},
            "error": {"S": "e"},
            "retryAt": {"N": "9"},
            "deadLettered": {"BOOL": True},
            "event": {"S": "{}"},
        }
        assert record_of(item_of(full)) == full._replace(revision=None)

    def test_item_that_makes_no_sense_is_read_as_far_as_it_does(self) -> None:
        """An attribute of another type is as absent, so that the decision fails closed."""
        odd: dict[str, dict[str, Any]]
        odd = {"idempotencyKey": {"S": KEY}, "status": {"N": "1"}, "leaseExpiry": {"S": "soon"}, "more": {"NULL": True}}
        assert record_of(odd) == Record(KEY, "", None, 0, None, None, None, None, None, 0, 0)


class TestRetries:
    """What a retry can change is sent again, for as long as there is time."""

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("ThrottlingException", 400),
            ("ProvisionedThroughputExceededException", 400),
            ("RequestLimitExceeded", 400),
            ("TransactionConflictException", 400),
            ("InternalServerError", 500),
            ("ServiceUnavailable", 503),
            ("SomethingNew", 500),
        ],
    )
    def test_passing_error_is_tried_again(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder, code: str, status: int
    ) -> None:
        """Throttling, conflicts and the server's own errors pass."""
        transport.answer(code, status=status)
        assert store.insert(CLAIM) is CLAIM
        assert len(recorder.requests) == 2

    def test_lost_request_is_sent_again(self, store: DynamoDBStore, transport: FaultyTransport) -> None:
        """What never arrived takes place the second time."""
        transport.lose_request()
        assert store.insert(CLAIM) is CLAIM

    def test_lost_answer_shows_the_owner_its_own_record(self, store: DynamoDBStore, transport: FaultyTransport) -> None:
        """Insert, swap and advance that took place unheard are refused by their own record."""
        transport.lose_answer()
        assert store.insert(CLAIM) == CLAIM
        second = CLAIM._replace(owner="owner-2", attempt=2)
        transport.lose_answer()
        assert store.swap(CLAIM, second) == second
        done = DONE._replace(owner="owner-2", attempt=2)
        transport.lose_answer()
        assert store.advance(done) == done

    def test_lost_read_is_sent_again(self, store: DynamoDBStore, transport: FaultyTransport) -> None:
        """A read is retried as a write is."""
        store.insert(CLAIM)
        transport.lose_answer()
        assert store.read(KEY) == CLAIM

    def test_gives_up_after_a_bounded_number_of_tries(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder, clock: ManualClock
    ) -> None:
        """A store that stays silent is given up, after pauses that grow and are bounded."""
        began_ms = clock()
        for _ in range(MOST_TRIES):
            transport.lose_request()
        with pytest.raises(StoreUnavailableError) as gave_up:
            store.insert(CLAIM)
        assert isinstance(gave_up.value.__cause__, NoAnswerError)
        assert len(recorder.requests) == MOST_TRIES
        assert clock() - began_ms == 25 + 50 + 100 + 200 + 400

    @pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
    def test_no_try_begins_that_cannot_end_in_time(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder, clock: ManualClock, step: Step
    ) -> None:
        """A further try that could last past ``until_ms`` is not begun, whatever the step."""
        until_ms = clock() + 100 + int(transport.longest_try_s * 1000)
        for _ in range(MOST_TRIES):
            transport.lose_request()
        with pytest.raises(StoreUnavailableError):
            step(store, until_ms)
        assert len(recorder.requests) == 3  # after 25 and 50 ms; the next would be after another 100
        assert clock() + transport.longest_try_s * 1000 <= until_ms

    def test_first_try_is_always_made(self, store: DynamoDBStore, clock: ManualClock) -> None:
        """Whether there is time to begin at all is its caller's to know."""
        assert store.insert(CLAIM, until_ms=clock() - 1) is CLAIM

    @pytest.mark.parametrize("code", ["AccessDeniedException", "ResourceNotFoundException", "ValidationException"])
    def test_refusal_is_not_tried_again_and_says_what_to_check(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder, code: str
    ) -> None:
        """A missing permission or table is told at once, with the table's name and the error."""
        for name in ("insert", "swap", "advance", "read"):
            transport.answer(code)
            with pytest.raises(StoreUnavailableError, match=f"{TABLE}.*{code}.*role") as refusal:
                STEPS[name](store, None)
            assert isinstance(refusal.value.__cause__, ServiceError)
        assert len(recorder.requests) == 4

    def test_refused_by_a_record_that_is_gone(self, store: DynamoDBStore, transport: FaultyTransport) -> None:
        """A refusal without its item says nothing of what is there: an insert is left to the next delivery."""
        transport.answer("ConditionalCheckFailedException")
        with pytest.raises(StoreUnavailableError):
            store.insert(CLAIM)
        for name in ("swap", "advance"):
            transport.answer("ConditionalCheckFailedException")
            assert STEPS[name](store, None) is None


class TestTransactions:
    """Commits with effects."""

    def test_lost_answer_is_asked_for_under_the_same_token(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder, dynamodb: Any
    ) -> None:
        """DynamoDB recognises a transaction that it has carried out, so that its effects take place once."""
        store.insert(CLAIM)
        recorder.requests.clear()
        transport.lose_answer()
        found = store.advance(DONE, [CHARGE])
        assert found == DONE
        assert len(recorder.tokens) == 2
        assert len(set(recorder.tokens)) == 1
        assert charges(dynamodb) == 1

    @pytest.mark.parametrize(
        "reasons",
        [
            ("None", "TransactionConflict"),
            ("TransactionConflict", "None"),
            ("None", "ThrottlingError"),
            ("ProvisionedThroughputExceeded", "None"),
        ],
    )
    def test_conflict_and_throttling_are_resent_under_the_same_token(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder, dynamodb: Any, reasons: tuple[str]
    ) -> None:
        """A transaction that met another is sent again as it was."""
        transport.answer("TransactionCanceledException", body=cancelled(*reasons))
        transport.answer("TransactionInProgressException")
        assert store.insert(DONE, [CHARGE]) is DONE
        assert len(recorder.tokens) == 3
        assert len(set(recorder.tokens)) == 1
        assert charges(dynamodb) == 1

    def test_each_commit_has_its_own_token(self, store: DynamoDBStore, recorder: Recorder) -> None:
        """A token names one frozen request: another attempt, or another set of effects, is another request."""
        store.insert(CLAIM, [CHARGE])
        store.swap(CLAIM, CLAIM._replace(owner="owner-2"), [CHARGE])
        store.advance(DONE._replace(owner="owner-2"), [CHARGE, CHARGE._replace(key={"id": "order_02"})])
        assert len(set(recorder.tokens)) == 3

    def test_refused_by_the_record(self, store: DynamoDBStore, dynamodb: Any) -> None:
        """A transaction that the record refuses answers with that record, even where an effect refuses it too."""
        store.insert(CLAIM, [CHARGE])
        other = CLAIM._replace(owner="owner-2")
        assert store.insert(other, [FIRST_CHARGE]) == CLAIM
        assert store.advance(DONE._replace(key="history#absent"), [CHARGE]) is None
        assert charges(dynamodb) == 1

    def test_refused_by_an_effect(self, store: DynamoDBStore) -> None:
        """An effect whose condition fails is named by its position, with the item that refused it."""
        store.insert(CLAIM, [CHARGE])
        with pytest.raises(EffectConflictError) as refusal:
            store.advance(DONE, [CHARGE._replace(key={"id": "order_02"}), FIRST_CHARGE])
        assert refusal.value.index == 1
        assert refusal.value.item == {"id": {"S": "order_01"}, "charges": {"N": "1"}}
        assert store.read(KEY) == CLAIM

    def test_condition_decides_before_a_conflict_does(
        self, store: DynamoDBStore, transport: FaultyTransport, recorder: Recorder
    ) -> None:
        """Where a condition has failed, sending again would change nothing."""
        reasons = cancelled("None", "ConditionalCheckFailed", "TransactionConflict")
        transport.answer("TransactionCanceledException", body=reasons)
        with pytest.raises(EffectConflictError):
            store.insert(DONE, [CHARGE, CHARGE])
        assert len(recorder.requests) == 1

    def test_invalid_effect_is_rejected_for_good(self, store: DynamoDBStore, transport: FaultyTransport) -> None:
        """What DynamoDB finds invalid stays so."""
        transport.answer("TransactionCanceledException", body=cancelled("None", "ValidationError"))
        with pytest.raises(EffectsRejectedError):
            store.insert(DONE, [CHARGE])
        with pytest.raises(EffectsRejectedError):
            store.insert(DONE, [CHARGE, CHARGE])  # one item twice, which DynamoDB refuses as a whole
        assert store.read(KEY) is None

    def test_more_actions_than_a_transaction_holds(self, store: DynamoDBStore, recorder: Recorder) -> None:
        """The record and 99 effects fit; one more is rejected before anything is sent."""
        effects = [Put(RIDES, {"id": f"order_{number}"}) for number in range(100)]
        with pytest.raises(EffectsRejectedError, match="100"):
            store.insert(DONE, effects)
        assert recorder.requests == []
        assert store.insert(DONE, effects[:99]) is DONE

    def test_refused_transaction_says_what_to_check(self, store: DynamoDBStore, transport: FaultyTransport) -> None:
        """A missing permission for an effect is no fault of the effect."""
        transport.answer("AccessDeniedException")
        with pytest.raises(StoreUnavailableError, match="TransactWriteItems"):
            store.insert(DONE, [CHARGE])
