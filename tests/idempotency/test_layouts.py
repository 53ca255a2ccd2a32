"""Records in tables that were made for something else: other keys, other names, other items."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent,
)
from moto import mock_aws

from carride_idempotency import (
    ConfigurationError,
    Consumer,
    DynamoDBStore,
    EffectsRejectedError,
    EventHandler,
    Keep,
    Operation,
    Policy,
    PowertoolsRecords,
    StoreRefusedError,
    TableLayout,
    Update,
    open_store,
    release,
)
from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.reading import records_in
from carride_idempotency.record import COMPLETED, QUARANTINED, Record
from carride_idempotency.stores.transport import BotocoreTransport, ServiceError
from carride_idempotency.testing import (
    BrokenPromiseError,
    FakeDynamoDB,
    Invocation,
    World,
    crash_everywhere,
    eventbridge_event,
)
from tests.idempotency.samples import EFFECT, RIDES, create_tables
from tests.idempotency.stores.backends import LAYOUTS

TABLE: Final = "Existing"
PARTITION: Final = "idempotency#shop"
ONE_PARTITION: Final = LAYOUTS["one_partition"]


class Sent:
    """A transport that keeps what it sends."""

    longest_try_s = 1.5

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.requests: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        self.requests.append((operation, request))
        answer: Mapping[str, Any] = self.transport(operation, request)
        return answer


@pytest.fixture
def client() -> Iterator[Any]:
    """A client of moto's DynamoDB."""
    with mock_aws():
        yield boto3.session.Session().client("dynamodb", region_name="eu-west-1")


def record(key: str, status: str = COMPLETED) -> Record:
    return Record(key, status, "owner-1", 1, None, 4_000_000_000, None, None, None, 7, 8)


def shop(store: DynamoDBStore) -> Consumer[dict[str, Any]]:
    return Consumer("shop", store, key="detail.id")


def event(key: str) -> dict[str, Any]:
    now = {"time": datetime.now(UTC).isoformat()}
    return eventbridge_event({"id": key}, event_id=f"id-{key}") | now


# ── The settings ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sort_value": "x"}, "for a table with a sort key: name it, sort_key="),
        ({"partition_value": "x"}, "for a table with a sort key: name it, sort_key="),
        ({"sort_key": "sk", "sort_value": "x", "partition_value": "y"}, "not both"),
        ({"sort_key": "sk", "partition_value": ""}, "partition_value= has 1 to 2,048 bytes"),
        ({"sort_key": "sk", "sort_value": "é" * 513}, "sort_value= has 1 to 1,024 bytes"),
        ({"names": {"state": "status"}}, "names= has 'state', but renames only"),
        ({"names": {"idempotencyKey": "pk"}}, "the key has partition_key="),
        ({"partition_key": "owner"}, r"such as names=\{'owner': 'recordOwner'\}"),
        ({"partition_key": "pk", "sort_key": "pk"}, "are different attributes"),
        ({"partition_key": "pk", "expiry": "pk"}, "are different attributes"),
        ({"partition_key": ""}, "an attribute's name has 1 to 255 bytes"),
        ({"partition_key": None}, "an attribute's name has 1 to 255 bytes"),
    ],
)
def test_a_layout_that_no_table_can_have_is_refused(settings: Any, says: str) -> None:
    """The message says which setting to change."""
    with pytest.raises(ConfigurationError, match=says):
        TableLayout(**settings)


@pytest.mark.parametrize("wrong", ["pk", {"partition_key": "pk"}, TableLayout])
def test_only_a_layout_is_a_layout(wrong: Any) -> None:
    """A name or a dictionary alone does not say what it names."""
    with pytest.raises(ConfigurationError, match=r"write layout=TableLayout\(partition_key="):
        DynamoDBStore(TABLE, layout=wrong)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("partition_key=pk", {"pk": {"S": "shop#1"}}),
        ("sort_key=sk", {"idempotencyKey": {"S": "shop#1"}, "sk": {"S": "idempotency"}}),
        (
            "partition_key=pk&sort_key=sk&sort_value=META",
            {"pk": {"S": "shop#1"}, "sk": {"S": "META"}},
        ),
        (
            "partition_key=pk&sort_key=sk&partition_value=idempotency%23shop",
            {"pk": {"S": PARTITION}, "sk": {"S": "shop#1"}},
        ),
    ],
)
def test_the_address_of_a_store_has_the_layout(options: str, key: Any) -> None:
    """An operator's command needs no program."""
    transport = Sent(lambda *_: {})
    store = open_store(f"dynamodb:{TABLE}?{options}", transport=transport)
    assert store.read("shop#1") is None
    assert transport.requests[0][1]["Key"] == key


def test_other_options_of_an_address_are_names_of_attributes() -> None:
    """The table's TTL and the keys of its indexes can have any name."""
    transport = Sent(lambda *_: {})
    address = f"dynamodb:{TABLE}?expiry=ttl&status=state"
    open_store(address, transport=transport).put_if_absent(record("shop#1"))
    item = transport.requests[0][1]["Item"]
    assert (item["state"], item["ttl"]) == ({"S": COMPLETED}, {"N": "4000000000"})
    assert not {"status", "expiryTimestamp"} & item.keys()


@pytest.mark.parametrize(
    ("options", "says"),
    [("pk", "are not options of a table"), ("key_attr=pk", "names= has 'key_attr'")],
)
def test_an_unknown_option_of_an_address_is_refused(options: str, says: str) -> None:
    """The message has the names of those that exist."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        open_store(f"dynamodb:{TABLE}?{options}")
    assert "partition_key=" in str(refused.value)


# ── A table of another key ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("layout", "writes"),
    [
        (None, "writes idempotencyKey,"),
        (TableLayout("pk"), "writes pk,"),
        (TableLayout("pk", "sort"), "writes pk and sort,"),
    ],
)
def test_a_table_of_another_key_is_answered_with_the_settings_that_name_it(
    client: Any, layout: TableLayout | None, writes: str
) -> None:
    """DynamoDB's own words name neither the key that was sent nor what to change."""
    create_tables(client, {TABLE: ("pk", "sk")})
    store = DynamoDBStore(TABLE, layout=layout, transport=BotocoreTransport(client, 1.5))
    requests: list[Callable[[], object]] = [
        lambda: store.read("shop#1"),
        lambda: store.put_if_absent(record("shop#1")),
    ]
    for request in requests:
        with pytest.raises(StoreRefusedError, match=writes) as refused:
            request()
        assert "layout=TableLayout(partition_key=..., sort_key=..., names=...)" in str(
            refused.value
        )


@pytest.mark.parametrize(
    ("types", "mismatch"),
    [
        ("N", "Type mismatch for key pk expected: N"),
        ("B", "Type mismatch for key pk expected: B"),
        ("SN", "Type mismatch for key sk expected: N"),
        ("NS", "Type mismatch for key pk expected: N"),
    ],
)
@pytest.mark.parametrize("atomic", [False, True], ids=["claim", "atomic"])
def test_a_table_whose_key_is_no_string_is_refused_at_the_first_delivery(
    client: Any, types: str, mismatch: str, *, atomic: bool
) -> None:
    """The message names the attribute and its type, and says that another table is needed."""
    names = ("pk", "sk")[: len(types)]
    create_tables(client, {TABLE: names}, types)
    create_tables(client, {RIDES: "id"})
    transport = BotocoreTransport(client, 1.5)
    store = DynamoDBStore(TABLE, layout=TableLayout(*names), transport=transport)
    consumer: Consumer[dict[str, Any]] = Consumer(
        "shop", store, key="detail.id", policy=Policy(atomic=atomic)
    )

    @consumer.event_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        operation.write(EFFECT)

    with pytest.raises((StoreRefusedError, EffectsRejectedError), match=mismatch) as refused:
        handler(event("1"), Invocation(epoch_ms))
    assert f"writes {' and '.join(names)}, of type string" in str(refused.value)
    assert "can hold no record: take another table" in str(refused.value)


@pytest.mark.parametrize(
    ("condition", "says"), [("insert", True), ("commit", False)], ids=["insert", "commit"]
)
def test_only_an_insert_with_effects_is_answered_with_the_layout(
    condition: str, *, says: bool
) -> None:
    """A commit follows a claim, which the table's key has accepted: the effects are wrong."""

    def refuse(*_: Any) -> Mapping[str, Any]:
        raise ServiceError("ValidationException", 400, "One of the required keys is missing", {})

    store = DynamoDBStore(TABLE, transport=Sent(refuse))
    write = store.put_if_absent if condition == "insert" else store.update_if_owner
    with pytest.raises(EffectsRejectedError) as refused:
        write(record("shop#1"), [EFFECT])
    assert ("layout=TableLayout(" in str(refused.value)) is says


def test_a_table_without_the_sort_key_never_makes_an_event_a_duplicate_of_another(
    client: Any,
) -> None:
    """There all records would be one item: the second key is refused, not skipped."""
    create_tables(client, {TABLE: "pk", RIDES: "id"})
    transport = BotocoreTransport(client, 1.5)
    store = DynamoDBStore(TABLE, layout=ONE_PARTITION, transport=transport)
    store.put_if_absent(record("shop#1"))
    for effects in ([], [EFFECT]):
        with pytest.raises(ConfigurationError, match="so the table's key is not pk and sk"):
            store.put_if_absent(record("shop#2"), effects)


# ── A table with other items ──────────────────────────────────────────────────────────────────────


OTHERS: Final[tuple[Mapping[str, Any], ...]] = (
    {"pk": {"S": "order#1"}, "sk": {"S": "idempotency"}, "status": {"S": "PAID"}},
    {"pk": {"S": PARTITION}, "sk": {"S": "fn#5f"}, "status": {"S": "COMPLETED"}},
    {
        "pk": {"S": "order#2"},
        "sk": {"S": "lines"},
        "status": {"S": "COMPLETED"},
        "owner": {"S": "Ada"},
        "attempt": {"N": "1"},
    },
)


@pytest.mark.parametrize(("name", "operation"), [("composite", "Scan"), ("one_partition", "Query")])
def test_a_list_has_records_and_no_other_items_of_the_table(name: str, operation: str) -> None:
    """Records that share a partition are queried; others are filtered from the whole table."""
    fake = FakeDynamoDB({TABLE: ("pk", "sk")})
    for item in OTHERS:
        fake("PutItem", {"TableName": TABLE, "Item": item})
    transport = Sent(fake)
    store = DynamoDBStore(TABLE, layout=LAYOUTS[name], transport=transport)
    for key in ("shop#1", "shop/charge#2", "shop2#3"):
        store.put_if_absent(record(key))
    transport.requests.clear()
    assert sorted(each.key for each in records_in(store)) == ["shop#1", "shop/charge#2", "shop2#3"]
    assert [each.key for each in records_in(store, consumer="shop2")] == ["shop2#3"]
    assert {operation for operation, _ in transport.requests} == {operation}


def test_an_index_of_what_waits_is_read_by_its_own_name() -> None:
    """The index may have another attribute than unsettledSince, and any partition's records."""
    layout = TableLayout("pk", "sk", partition_value=PARTITION, names={"unsettledSince": "gsi1pk"})
    fake = FakeDynamoDB({TABLE: ("pk", "sk")}, indexes={"gsi1": ("gsi1pk",)})
    transport = Sent(fake)
    store = DynamoDBStore(TABLE, layout=layout, transport=transport)
    store.put_if_absent(record("shop#1"))
    store.put_if_absent(record("shop#2", QUARANTINED))
    assert [each.key for each in records_in(store, index="gsi1")] == ["shop#2"]
    operation, request = transport.requests[-1]
    assert (operation, request["IndexName"]) == ("Scan", "gsi1")


def test_attributes_that_others_add_are_not_read_as_the_records() -> None:
    """A renamed attribute's own name is free for the table's other programs."""
    layout = TableLayout("pk", names={"createdAt": "recordCreatedAt"})
    fake = FakeDynamoDB({TABLE: ("pk",)})
    store = DynamoDBStore(TABLE, layout=layout, transport=fake)
    store.put_if_absent(record("shop#1"))
    fake(
        "UpdateItem",
        {
            "TableName": TABLE,
            "Key": {"pk": {"S": "shop#1"}},
            "UpdateExpression": "SET createdAt = :other",
            "ExpressionAttributeValues": {":other": {"N": "99"}},
        },
    )
    assert store.read("shop#1") == record("shop#1")


@pytest.mark.parametrize("name", ["pk", "sk", "status", "ttl"])
def test_what_a_record_keeps_cannot_have_the_name_of_a_key(name: str) -> None:
    """The key, the TTL and the record's attributes are the layout's."""
    layout = TableLayout("pk", "sk", expiry="ttl")
    fake = FakeDynamoDB({TABLE: ("pk", "sk")})
    consumer = shop(DynamoDBStore(TABLE, layout=layout, transport=fake))

    @consumer.event_handler
    def handler(event: dict[str, Any], operation: Operation) -> None:
        operation.write(Keep({name: "mine"}))

    with pytest.raises(EffectsRejectedError, match=f"uses the attributes {name}: choose"):
        handler(event("1"), Invocation(epoch_ms))


# ── Long keys ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [1_024, 1_025, 2_048])
def test_a_key_that_is_too_long_for_a_sort_key_is_replaced_by_its_hash(
    client: Any, length: int
) -> None:
    """A sort key has at most 1,024 bytes. Consumer and operator find the record as they know it."""
    create_tables(client, {TABLE: ("pk", "sk")})
    transport = BotocoreTransport(client, 1.5)
    store = DynamoDBStore(TABLE, layout=ONE_PARTITION, transport=transport)
    key = "shop#" + "é" * ((length - 5) // 2)
    key += "x" * (length - len(key.encode()))
    quarantined = record(key, QUARANTINED)
    assert store.put_if_absent(quarantined) is quarantined
    assert store.read(key) == quarantined
    (listed,) = records_in(store)
    assert (listed.key == key) is (length == 1_024)
    assert release(store, listed.key)
    found = store.read(key)
    assert found is not None
    assert found.status != QUARANTINED


# ── Powertools' own table ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("partition", [PARTITION, "another partition"])
def test_records_move_within_the_table_of_powertools(partition: str) -> None:
    """Its table with a sort key also takes our records: neither list nor claim mixes them up."""
    fake = FakeDynamoDB({TABLE: ("pk", "sk")})
    names: Any = {"key_attr": "pk", "sort_key_attr": "sk", "static_pk_value": PARTITION}
    layer = DynamoDBPersistenceLayer(TABLE, boto3_client=fake, **names)  # type: ignore[arg-type]
    config = IdempotencyConfig(event_key_jmespath="detail.id")
    old: Any = idempotent(persistence_store=layer, config=config, key_prefix="mine")(
        lambda event, context: {"by": "old"}
    )
    before = PowertoolsRecords(
        TABLE, {"shop": "mine"}, until=datetime.max.replace(tzinfo=UTC), **names
    )
    layout = TableLayout("pk", "sk", partition_value=partition, expiry="expiration")
    store = DynamoDBStore(TABLE, layout=layout, before=before, transport=fake)
    new = shop(store).event_handler(lambda event, operation: None)
    old(event("1"), Invocation(epoch_ms))
    assert new(event("1"), Invocation(epoch_ms))["outcome"] == "Duplicate"
    assert new(event("2"), Invocation(epoch_ms))["outcome"] == "New"
    assert old(event("2"), Invocation(epoch_ms)) is None
    assert sorted(each.key for each in records_in(store)) == ["shop#1", "shop#2"]


# ── In tests ──────────────────────────────────────────────────────────────────────────────────────


def single_table(name: str) -> Callable[[], World]:
    """Return what makes a world with one table, for records and for orders."""
    layout = LAYOUTS[name]
    return lambda: World({TABLE: layout.key_names}, layouts={TABLE: layout})


def order_key(name: str) -> dict[str, str]:
    return dict.fromkeys(LAYOUTS[name].key_names, "order#1")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_crash_tester_knows_records_from_effects_in_one_table(name: str) -> None:
    """The effect, and what the record keeps, are the same after every fault."""

    def build(world: World) -> EventHandler:
        consumer = Consumer[dict[str, Any]](
            "shop",
            DynamoDBStore(TABLE, layout=LAYOUTS[name]),
            key="detail.id",
            dead_letters=world.dead_letters,
        )

        @consumer.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            operation.write(Keep({"order": 1}))
            operation.write(Update(TABLE, order_key(name), "ADD n :one", values={":one": 1}))

        return handler

    assert crash_everywhere(build, eventbridge_event({"id": "1"}), world=single_table(name)) > 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_crash_tester_finds_a_key_that_a_handler_leaves_behind(name: str) -> None:
    """It reads the record by the key of the layout."""

    def build(world: World) -> EventHandler:
        charge = world.external("charge", lambda key: None, key=lambda key: key)
        store = DynamoDBStore(TABLE, layout=LAYOUTS[name])
        consumer = Consumer[dict[str, Any]]("shop", store, key="detail.id")

        @consumer.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            charge(operation.downstream_key)

        def swallows(event: dict[str, Any], context: Any) -> Any:
            try:
                return handler(event, context)
            except Exception:  # noqa: BLE001 - what the tester must find
                return None

        return swallows

    with pytest.raises(BrokenPromiseError, match="the key shop#1 stays FAILED"):
        crash_everywhere(build, eventbridge_event({"id": "1"}), world=single_table(name))
