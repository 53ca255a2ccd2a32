"""What the DynamoDB store asks of DynamoDB, beyond what every store does."""

from collections.abc import Mapping
from typing import Any

import pytest

from idempotency import DynamoDBStore, EffectConflictError, Keep, Update
from idempotency.errors import StoreUnavailableError
from idempotency.record import COMPLETED, IN_PROGRESS, Record
from idempotency.stores.dynamodb import item_of, record_of
from idempotency.stores.transport import Transport
from idempotency.testing import FaultyTransport
from idempotency.testing.dynamodb import FakeDynamoDB
from tests.idempotency.samples import RIDES, TABLE

KEY = "history#order_01"

CLAIM = Record(
    KEY, IN_PROGRESS, "owner-1", 1, 1_800_000_030_000, 1_802_592_000, "1:abc", "request-1", "eu-west-1", 7, 8
)
DONE = CLAIM._replace(status=COMPLETED, lease_ms=None, result="1")
CHARGE = Update(RIDES, {"id": "order_01"}, "ADD charges :one", values={":one": 1})


class Recorder(FaultyTransport):
    """Loses and refuses what the test says, and keeps what the store sends."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.sent: list[Mapping[str, Any]] = []

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        self.sent.append(request)
        return super().__call__(operation, request)

    @property
    def tokens(self) -> list[str]:
        return [request["ClientRequestToken"] for request in self.sent]


@pytest.fixture
def transport(dynamodb: FakeDynamoDB) -> Recorder:
    return Recorder(dynamodb)


def charges(dynamodb: Any) -> int:
    item = dynamodb.get_item(TableName=RIDES, Key={"id": {"S": "order_01"}}).get("Item", {})
    return int(item.get("charges", {"N": "0"})["N"])


def test_reads_are_consistent(store: DynamoDBStore, transport: Recorder) -> None:
    """A read sees every write that was answered before it."""
    store.read(KEY)
    assert transport.sent[0]["ConsistentRead"] is True


def test_attributes_are_those_that_operators_and_ttl_read() -> None:
    """The names in the table are a contract: with TTL, with the operator's queries, and with older records."""
    full = CLAIM._replace(result="r", error="e", retry_ms=9, dead_lettered=True, event="{}", revision="never stored")
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


def test_item_that_makes_no_sense_is_read_as_far_as_it_does() -> None:
    """An attribute of another type counts as absent."""
    odd: dict[str, dict[str, Any]]
    odd = {"idempotencyKey": {"S": KEY}, "status": {"N": "1"}, "leaseExpiry": {"S": "soon"}, "more": {"NULL": True}}
    assert record_of(odd) == Record(KEY, "", None, 0, None, None, None, None, None, 0, 0)


def test_refused_by_a_record_that_is_gone(store: DynamoDBStore, transport: Recorder) -> None:
    """After a refusal without an item, an insert raises StoreUnavailableError and other writes return None."""
    transport.answer("ConditionalCheckFailedException")
    with pytest.raises(StoreUnavailableError):
        store.put_if_absent(CLAIM)
    transport.answer("ConditionalCheckFailedException")
    assert store.compare_and_swap(CLAIM, CLAIM) is None
    transport.answer("ConditionalCheckFailedException")
    assert store.update_if_owner(DONE) is None


@pytest.mark.parametrize("code", [None, "TransactionInProgressException", "TransactionCanceledException"])
def test_transaction_is_sent_again_as_it_was(
    store: DynamoDBStore, transport: Recorder, dynamodb: Any, code: str | None
) -> None:
    """A retry after a lost answer or a conflict has the same token, so its effects take place once."""
    if code is None:
        transport.lose_answer()
    else:
        reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
        transport.answer(code, body={"CancellationReasons": reasons})
    assert store.put_if_absent(DONE, [CHARGE]) == DONE
    assert len(transport.tokens) == 2
    assert len(set(transport.tokens)) == 1
    assert charges(dynamodb) == 1


def test_each_commit_has_its_own_token(store: DynamoDBStore, transport: Recorder) -> None:
    """Another attempt, or another set of effects, has another token."""
    store.put_if_absent(CLAIM, [CHARGE])
    store.compare_and_swap(CLAIM, CLAIM._replace(owner="owner-2"), [CHARGE])
    store.update_if_owner(DONE._replace(owner="owner-2"), [CHARGE, CHARGE._replace(key={"id": "order_02"})])
    assert len(set(transport.tokens)) == 3


def test_a_transaction_holds_the_record_and_99_effects(store: DynamoDBStore) -> None:
    """That is DynamoDB's limit of 100 actions."""
    assert store.put_if_absent(DONE, [CHARGE._replace(key={"id": f"order_{n}"}) for n in range(99)]) is DONE


@pytest.mark.parametrize("others", [0, 1])
def test_what_a_record_keeps_is_in_its_item(
    store: DynamoDBStore, transport: Recorder, dynamodb: Any, others: int
) -> None:
    """Alone it is one write that is no transaction; the item has no expiry, and no later delivery changes it."""
    kept_for_good = DONE._replace(expiry=None)
    assert (
        store.put_if_absent(DONE, [Keep({"orderID": "order_01", "entry": {"price": 550}}), *[CHARGE] * others]) is DONE
    )
    assert store.put_if_absent(DONE._replace(owner="owner-2"), [Keep({"orderID": "other"})]) == kept_for_good
    (found,) = dynamodb.all(TABLE)
    kept = {"orderID": {"S": "order_01"}, "entry": {"M": {"price": {"N": "550"}}}}
    assert found == {name: value for name, value in item_of(DONE).items() if name != "expiryTimestamp"} | kept
    assert ["TransactItems" in request for request in transport.sent] == [bool(others), False]
    assert charges(dynamodb) == others


def test_the_position_of_a_refused_effect_counts_what_is_kept(store: DynamoDBStore) -> None:
    """An error names the effect by its place among those that were registered."""
    refused = CHARGE._replace(condition="attribute_exists(id)")
    with pytest.raises(EffectConflictError) as error:
        store.put_if_absent(DONE, [Keep({"orderID": "order_01"}), refused])
    assert error.value.index == 1


def test_refused_by_an_effect(store: DynamoDBStore, transport: Recorder) -> None:
    """A condition that fails is a conflict, whatever else has failed."""
    reasons = [{"Code": code} for code in ("None", "ConditionalCheckFailed", "TransactionConflict")]
    transport.answer("TransactionCanceledException", body={"CancellationReasons": reasons})
    with pytest.raises(EffectConflictError):
        store.update_if_owner(DONE, [CHARGE, CHARGE])
