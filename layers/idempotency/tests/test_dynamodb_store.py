"""What the DynamoDB store asks of DynamoDB, beyond what every store does."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from moto import mock_aws

from carride_idempotency import DynamoDBStore, EffectConflictError, Keep, Operation, release
from carride_idempotency.errors import (
    EffectsRejectedError,
    ResultOmittedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    Record,
    UnknownStatus,
)
from carride_idempotency.record_items import item_of, record_of
from carride_idempotency.stores.lean import _ONLY_BOTOCORE
from carride_idempotency.stores.transport import BotocoreTransport, ServiceError
from tests.samples import EFFECT, RIDES, TABLE, World, create_tables, event, fail_with

CLAIM = Record(
    "history#k1",
    IN_PROGRESS,
    "owner-1",
    1,
    1_800_000_030_000,
    1_802_592_000,
    "1:abc",
    "request-1",
    "eu-west-1",
    7,
    8,
)
DONE = CLAIM._replace(status=COMPLETED, lease_ms=None, result="1")


@pytest.mark.parametrize(
    ("changes", "since"),
    [
        ({}, None),
        ({"status": COMPLETED}, None),
        ({"status": FAILED}, None),
        ({"externals": '{"charge":"[1]"}'}, None),
        ({"externals": '{"charge":null}'}, "8"),
        ({"status": QUARANTINED, "lease_ms": None, "expiry": None}, "8"),
    ],
)
def test_a_sparse_index_finds_what_waits_for_an_operator(
    changes: dict[str, Any], since: str | None
) -> None:
    """Only quarantined records and open intents have its attribute, the time of the write."""
    item = item_of(CLAIM._replace(**changes))
    assert item.get("unsettledSince") == (None if since is None else {"S": since})
    assert record_of(item) == CLAIM._replace(**changes)


def test_attributes_are_those_that_operators_and_ttl_read() -> None:
    """The names in the table are a contract; a text of another type counts as absent."""
    full = CLAIM._replace(
        result="r", error="e", retry_ms=9, dead_lettered=True, event="{}", revision="never stored"
    )
    item: dict[str, Any] = {
        "idempotencyKey": {"S": "history#k1"},
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
    assert item_of(full) == item
    assert record_of(item) == full._replace(revision=None)
    odd: dict[str, Any] = {
        "status": {"N": "1"},
        "more": {"NULL": True},
    }
    kept = {"more": {"NULL": True}}
    unknown = UnknownStatus("")
    empty = Record("", unknown, None, 0, None, None, None, None, None, 0, 0, kept=kept)
    assert record_of(odd) == empty


def test_reads_are_consistent() -> None:
    """A read sees every write that was answered before it."""
    transport = Mock(longest_try_s=1.5, return_value={})
    DynamoDBStore("Idempotency", transport=transport).read("history#k1")
    assert transport.call_args[0][1]["ConsistentRead"] is True


OTHER: dict[str, Any] = {**item_of(DONE._replace(key="history#k2")), "id": {"S": "order_02"}}
"""An item that another request has asked for: a record, or what refuses an effect."""


def _other_answer(operation: str, request: Any) -> Any:
    if operation == "GetItem":
        return {"Item": OTHER}
    refused = {"Code": "ConditionalCheckFailed", "Item": OTHER}
    if operation == "PutItem":
        raise ServiceError("ConditionalCheckFailedException", 400, "refused", {"Item": OTHER})
    actions = len(request["TransactItems"])
    reasons = [refused, {"Code": "None"}, {"Code": "None"}][:actions]
    if "owner-1" in str(request):  # of the record, or of the effect
        reasons.reverse()
    raise ServiceError(
        "TransactionCanceledException", 400, "refused", {"CancellationReasons": reasons}
    )


@pytest.mark.parametrize("effects", [[], [EFFECT]], ids=["alone", "with an effect"])
@pytest.mark.parametrize("record", [CLAIM, CLAIM._replace(owner="owner-2")], ids=["1", "2"])
@pytest.mark.parametrize(
    "step",
    [
        lambda store, record, effects: store.put_if_absent(record, effects),
        lambda store, record, effects: store.compare_and_swap(CLAIM, record, effects),
        lambda store, record, effects: store.update_if_owner(record, effects),
        lambda store, record, effects: store.read(record.key),
    ],
    ids=["put", "swap", "update", "read"],
)
def test_an_answer_about_another_key_is_not_believed(
    step: Callable[..., object], record: Record, effects: list[Any]
) -> None:
    """Whichever item it holds, the outcome of the request is unknown."""
    transport = Mock(longest_try_s=1.5, side_effect=_other_answer)
    with pytest.raises(StoreUnavailableError, match="another key"):
        step(DynamoDBStore(TABLE, transport=transport), record, effects)


@pytest.mark.parametrize("stored", ["7", "7.0", "7E0"])
def test_a_number_of_a_key_is_compared_by_its_value(stored: str) -> None:
    """DynamoDB writes a number in a form of its own."""
    item = {"id": {"N": stored}, "paid": {"BOOL": True}}
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": item}]
    refusal = ServiceError(
        "TransactionCanceledException", 400, "refused", {"CancellationReasons": reasons}
    )
    store = DynamoDBStore(TABLE, transport=Mock(longest_try_s=1.5, side_effect=refusal))
    with pytest.raises(EffectConflictError) as conflict:
        store.put_if_absent(DONE, [EFFECT._replace(key={"id": 7})])
    assert conflict.value.item == item


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of which no setting leads to botocore."""
    for name in _ONLY_BOTOCORE:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("built", ["before the mock", "under the mock"])
def test_a_test_under_moto_stays_in_its_process(
    built: str, plain_environment: pytest.MonkeyPatch
) -> None:
    """A store over the default transport asks moto, which only botocore's requests reach."""
    plain_environment.setenv("IDEMPOTENCY_TRANSPORT", "auto")
    store = DynamoDBStore(TABLE) if built == "before the mock" else None
    with mock_aws():
        store = store or DynamoDBStore(TABLE)
        client = boto3.client("dynamodb")
        create_tables(client, {TABLE: "idempotencyKey"})
        assert store.put_if_absent(CLAIM) is CLAIM
        assert client.scan(TableName=TABLE)["Count"] == 1


def test_the_lean_transport_says_that_moto_does_not_answer_it(
    plain_environment: pytest.MonkeyPatch,
) -> None:
    """Nothing is sent to AWS, and the error names the setting."""
    plain_environment.setenv("IDEMPOTENCY_TRANSPORT", "lean")
    with mock_aws(), pytest.raises(StoreUnavailableError, match="IDEMPOTENCY_TRANSPORT=botocore"):
        DynamoDBStore(TABLE).read(CLAIM.key, until_ms=0)


def test_refused_by_a_record_that_is_gone(world: World) -> None:
    """A refusal without an item makes an insert raise StoreUnavailableError, others return None."""
    for _ in range(3):
        world.transport.answer("ConditionalCheckFailedException")
    with pytest.raises(StoreUnavailableError):
        world.store.put_if_absent(CLAIM)
    assert (world.store.compare_and_swap(CLAIM, CLAIM), world.store.update_if_owner(DONE)) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    "code", [None, "TransactionInProgressException", "TransactionCanceledException"]
)
def test_transaction_is_sent_again_as_it_was(world: World, code: str | None) -> None:
    """A retry after a lost answer or a conflict has the same token: its effects happen once."""
    if code is None:
        world.transport.lose_answer()
    else:
        reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
        world.transport.answer(code, body={"CancellationReasons": reasons})
    assert world.store.put_if_absent(DONE, [EFFECT]) == DONE
    assert (world.transport.requests, world.effects) == (["TransactWriteItems"] * 2, 1)


def test_a_transaction_holds_the_record_and_99_effects(world: World) -> None:
    """That is DynamoDB's limit of 100 actions."""
    effects = [EFFECT._replace(key={"id": f"order_{number}"}) for number in range(99)]
    assert world.store.put_if_absent(DONE, effects) is DONE


@pytest.mark.parametrize("others", [0, 1])
def test_what_a_record_keeps_is_in_its_item(world: World, others: int) -> None:
    """Alone it is one write without a transaction.

    The item has no expiry, and no later delivery changes it.
    """
    effects: list[Any] = [
        Keep({"orderID": "order_01", "entry": {"price": 550}}),
        *[EFFECT] * others,
    ]
    assert world.store.put_if_absent(DONE, effects) is DONE
    again = world.store.put_if_absent(DONE._replace(owner="owner-2"), [Keep({"orderID": "other"})])
    kept = {"orderID": {"S": "order_01"}, "entry": {"M": {"price": {"N": "550"}}}}
    assert again == DONE._replace(expiry=None, kept=kept)
    (found,) = world.dynamodb.all(TABLE)
    assert (
        found
        == {name: value for name, value in item_of(DONE).items() if name != "expiryTimestamp"}
        | kept
    )
    assert world.transport.requests == ["TransactWriteItems" if others else "PutItem", "PutItem"]
    assert world.effects == others


def test_a_result_that_does_not_fit_beside_what_is_kept_is_left_out(
    world: World,
) -> None:
    """The effect takes place, once; a repeated call is told that its result was not stored."""
    runs: list[Operation] = []

    @world.consumer(key=None).function(key="order_id", name="report")
    def report(order_id: str, operation: Any = None) -> str:
        runs.append(operation)
        operation.write(Keep({"entry": "k" * 300_000}))
        return "r" * 150_000

    assert len(report("k1")) == 150_000
    with pytest.raises(ResultOmittedError, match="150,002 bytes"):
        report("k1")
    assert len(runs) == 1
    assert len(json.dumps(world.dynamodb.all(TABLE))) < 400 * 1024


def test_what_no_record_can_keep_is_refused_at_write(world: World) -> None:
    """One that is too large, or two that are it together, are refused before any call.

    The error names the way out.
    """

    def work(operation: Operation) -> None:
        operation.write(Keep({"one": "k" * 250_000}))
        with pytest.raises(EffectsRejectedError, match="Put an item of its own"):
            operation.write(Keep({"two": "k" * 250_000}))
        with pytest.raises(EffectsRejectedError, match="400 KB"):
            operation.write(Keep({"all": "k" * 410_000}))

    world.work.step = work
    assert world.deliver()["outcome"] == "New"
    assert "one" in world.dynamodb.all(TABLE)[0]


@pytest.mark.parametrize("name", ["idempotencyKey", "status", "expiryTimestamp"])
def test_what_a_record_keeps_cannot_have_the_name_of_its_own_attributes(
    world: World, name: str
) -> None:
    """Otherwise a handler would change its own claim."""

    def work(operation: Operation) -> None:
        with pytest.raises(EffectsRejectedError, match=f"uses the attributes {name}: choose"):
            operation.write(Keep({name: "mine"}))

    world.work.step = work
    assert world.deliver()["outcome"] == "New"


def test_a_damaged_record_keeps_what_it_kept(world: World) -> None:
    """Neither its release nor a failure of the next attempt takes it from its readers."""
    entry = {"orderID": {"S": "order_01"}}
    damaged = DONE._replace(status=UnknownStatus("DONE"), expiry=None)
    world.dynamodb.put_item(TableName=TABLE, Item=item_of(damaged) | entry)
    assert release(world.store, DONE.key, clock=world.clock)
    (found,) = world.dynamodb.all(TABLE)
    assert (found["status"], found["orderID"]) == ({"S": "FAILED"}, entry["orderID"])
    assert "expiryTimestamp" not in found
    world.work.step = fail_with(KeyError("pickup"))
    with pytest.raises(KeyError):
        world.deliver(event(DONE.key.partition("#")[2]))
    (found,) = world.dynamodb.all(TABLE)
    assert (found["orderID"], "expiryTimestamp" in found) == (entry["orderID"], False)


def test_the_position_of_a_refused_effect_counts_what_is_kept(world: World) -> None:
    """An error names the effect by its place among those that were registered."""
    with pytest.raises(EffectConflictError) as error:
        world.store.put_if_absent(
            DONE, [Keep({"orderID": "order_01"}), EFFECT._replace(condition="attribute_exists(id)")]
        )
    assert error.value.index == 1


def test_refused_by_an_effect(world: World) -> None:
    """A condition that fails is a conflict, whatever else has failed."""
    reasons = [{"Code": code} for code in ("None", "ConditionalCheckFailed", "TransactionConflict")]
    world.transport.answer("TransactionCanceledException", body={"CancellationReasons": reasons})
    with pytest.raises(EffectConflictError):
        world.store.update_if_owner(DONE, [EFFECT, EFFECT])


# ── A table of another key ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def client() -> Iterator[Any]:
    """A client of moto's DynamoDB."""
    with mock_aws():
        yield boto3.session.Session().client("dynamodb", region_name="eu-west-1")


def test_a_table_of_another_key_is_answered_with_the_key_that_is_written(client: Any) -> None:
    """DynamoDB's own words do not name the key that was sent."""
    create_tables(client, {TABLE: ("pk", "sk")})
    store = DynamoDBStore(TABLE, transport=BotocoreTransport(client, 1.5))
    requests: list[Callable[[], object]] = [
        lambda: store.read(CLAIM.key),
        lambda: store.put_if_absent(CLAIM),
    ]
    for request in requests:
        with pytest.raises(StoreRefusedError, match="writes the partition key idempotencyKey,"):
            request()


@pytest.mark.parametrize("kind", ["N", "B"])
@pytest.mark.parametrize("atomic", [False, True], ids=["claim", "atomic"])
def test_a_table_whose_key_is_no_string_is_refused_at_the_first_delivery(
    client: Any, world: World, kind: str, *, atomic: bool
) -> None:
    """The message has the type that the table expects, and says that another table is needed."""
    create_tables(client, {TABLE: "idempotencyKey"}, kind)
    create_tables(client, {RIDES: "id"})
    world.store = DynamoDBStore(TABLE, transport=BotocoreTransport(client, 1.5))
    expected = f"Type mismatch for key idempotencyKey expected: {kind}"
    with pytest.raises((StoreRefusedError, EffectsRejectedError), match=expected) as refused:
        world.deliver(atomic=atomic)
    assert "of type string" in str(refused.value)
    assert "can hold no record: take another table" in str(refused.value)


@pytest.mark.parametrize(
    ("write", "says"),
    [(DynamoDBStore.put_if_absent, True), (DynamoDBStore.update_if_owner, False)],
    ids=["insert", "commit"],
)
def test_only_an_insert_with_effects_is_answered_with_the_key(
    write: Callable[..., Any], *, says: bool
) -> None:
    """A commit follows a claim, which the table's key has accepted: the effects are wrong."""
    refusal = ServiceError("ValidationException", 400, "One of the required keys is missing", {})
    store = DynamoDBStore(TABLE, transport=Mock(longest_try_s=1.5, side_effect=refusal))
    with pytest.raises(EffectsRejectedError) as refused:
        write(store, DONE, [EFFECT])
    assert ("idempotencyKey" in str(refused.value)) is says
