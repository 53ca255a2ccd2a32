"""Effects that DynamoDB would refuse, whatever its tables hold, are refused where they are written.

The commit would refuse them after the handler has done what cannot be undone.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from carride_idempotency import (
    Check,
    Delete,
    DynamoDBStore,
    Keep,
    MemoryStore,
    Operation,
    PowertoolsRecords,
    Put,
    Update,
    marshalling,
)
from carride_idempotency.effects import Effect, require_one_transaction
from carride_idempotency.errors import EffectsRejectedError, ResultOmittedError
from carride_idempotency.record import COMPLETED, Record
from carride_idempotency.stores.transport import BotocoreTransport
from carride_idempotency.testing import FakeDynamoDB
from tests.samples import TABLE, World, create_tables, event
from tests.stores.backends import local_client

EVENT: Final = event()
RIDE: Final = {"id": "order_01"}
LARGE: Final = 399_000
"""Bytes of an item that one table can hold."""


def puts(number: int, size: int = 1) -> list[Effect]:
    """Puts of items that differ."""
    return [Put("Rides", {"id": f"order_{each}", "text": "x" * size}) for each in range(number)]


def set_n(key: Any, **changes: Any) -> Update:
    return Update("Rides", key, "SET n = :n", values={":n": 1})._replace(**changes)


def put(**changes: Any) -> Put:
    return Put("Rides", RIDE, "attribute_not_exists(id)")._replace(**changes)


REFUSED: Final[dict[str, Sequence[Effect]]] = {
    "100 effects": puts(100),
    "150 effects, some kept": [*puts(150), Keep({"orderID": "order_01"})],
    "more than 4 MB": puts(11, LARGE),
    "more than 4 MB with what is kept": [*puts(10, LARGE), Keep({"entry": "k" * 300_000})],
    "two updates of one item": [set_n(RIDE), set_n(RIDE)],
    "an update and a check": [set_n(RIDE), Check("Rides", RIDE, "attribute_exists(id)")],
    "an update and a delete": [set_n(RIDE), Delete("Rides", RIDE)],
    "a put and an update": [Put("Rides", {**RIDE, "n": 1}), set_n(RIDE)],
    "two puts beside another effect": [
        *(Put("Rides", {**RIDE, "n": number}) for number in range(2)),
        Delete("Rides", {"id": "order_02"}),
    ],
    "two equal puts": [Put("Rides", RIDE), Put("Rides", RIDE)],
    "one number in two forms": [set_n({"id": "order_01", "at": at}) for at in (1, Decimal("1.0"))],
    "one number with and without a zero": [
        set_n({"id": "order_01", "at": Decimal(at)}) for at in ("0.1", "0.10")
    ],
    "two puts that differ in a zero": [
        Put("Rides", {**RIDE, "n": Decimal(number)}) for number in ("0.1", "0.10")
    ],
    "the record itself": [
        Update(TABLE, {"idempotencyKey": "history#k1"}, "SET n = :n", values={":n": 1})
    ],
    "the record itself, by a put": [Put(TABLE, {"idempotencyKey": "history#k1", "n": 1})],
    "an unused value": [set_n(RIDE, values={":n": 1, ":more": 2})],
    "an unused name": [set_n(RIDE, names={"#more": "n"})],
    "an undefined value": [set_n(RIDE, condition="n = :other")],
    "an undefined name": [set_n(RIDE, condition="#n = :n")],
    "a name among the values": [set_n(RIDE, expression="SET #n = :n", values={":n": 1, "#n": 2})],
    "a value among the names": [set_n(RIDE, values=None, names={":n": "n"})],
    "a name that is none": [set_n(RIDE, expression="SET n = :n-1", values={":n-1": 1})],
    "values without an expression": [put(condition=None, values={":n": 1})],
    "names without an expression": [Delete("Rides", RIDE, names={"#n": "n"})],
    "a value of a put that is not used": [put(values={":n": 1})],
    "a value of a check that is not used": [
        Check("Rides", RIDE, "attribute_exists(id)", {":n": 1})
    ],
    "a long key": [set_n({"id": "x" * 2_049})],
    "a long key in letters of two bytes": [Delete("Rides", {"id": "ß" * 1_025})],
    "a long condition": [put(condition=f"attribute_not_exists(id){' ' * 4_096}")],
    "a long expression": [set_n(RIDE, expression=f"SET n = :n{' ' * 4_096}")],
}
TAKEN: Final[dict[str, Sequence[Effect]]] = {
    "99 effects": puts(99),
    "98 effects, and kept ones": [*puts(98), Keep({"orderID": "order_01"})],
    "nearly 4 MB": puts(10, LARGE),
    "one key in two tables": [Put(table, {**RIDE, "n": 1}) for table in ("Rides", "Cars")],
    "two keys": [set_n({"id": each}) for each in ("order_01", "order_02")],
    "a text and a number": [
        Put("Rides", {"id": "1", "n": 1}),
        Put("Rides", {"id": "2", "n": "1"}),
    ],
    "a put beside an update of another item": [Put("Rides", {**RIDE}), set_n({"id": "order_02"})],
    "another record": [
        Update(TABLE, {"idempotencyKey": "other#k1"}, "SET n = :n", values={":n": 1})
    ],
    "every placeholder": [
        Update(
            "Rides",
            RIDE,
            "SET #a = if_not_exists(#b_1, :v_1), c = :V2",
            "attribute_not_exists(#d)OR(#d<>:v_1)",
            {":v_1": 1, ":V2": 2},
            {"#a": "a", "#b_1": "b", "#d": "d"},
        )
    ],
    "a key of 2,048 bytes": [set_n({"id": "x" * 2_048})],
    "a condition of 4 KB": [put(condition=f"{'attribute_not_exists(id)':<4096}")],
}


class Limited(FakeDynamoDB):
    """It refuses what is larger than an item or a transaction."""

    def __call__(self, operation: str, request: Any, /) -> Any:
        actions = request.get("TransactItems", [])
        items = [action["Put"]["Item"] for action in actions if "Put" in action]
        sizes = [*map(marshalling.least_size, items)]
        assert max(sizes, default=0) <= 400 * 1024
        assert sum(sizes) <= 4 * 1024 * 1024
        return super().__call__(operation, request)


def powertools_world(world: World) -> DynamoDBStore:
    until = datetime.fromtimestamp(world.clock() / 1000, UTC) + timedelta(days=1)
    before = PowertoolsRecords("Old", {"history": "old"}, until=until)
    tables = {"Old": ("id",), TABLE: ("idempotencyKey",), "Rides": ("id",), "Cars": ("id",)}
    world.dynamodb = Limited(tables, world.clock)
    return DynamoDBStore(TABLE, before=before, transport=world.dynamodb, clock=world.clock)


def dynamodb_world(world: World) -> DynamoDBStore:
    tables = {TABLE: ("idempotencyKey",), "Rides": ("id",), "Cars": ("id",)}
    world.dynamodb = Limited(tables, world.clock)
    return DynamoDBStore(TABLE, transport=world.dynamodb, clock=world.clock)


STORES: Final[dict[str, Callable[[World], Any]]] = {
    "dynamodb": dynamodb_world,
    "powertools": powertools_world,
    "memory": lambda world: MemoryStore(apply=lambda effects: None, clock=world.clock),
}


@pytest.mark.parametrize("atomic", [False, True], ids=["claimed", "atomic"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one write", "one by one"])
@pytest.mark.parametrize("effects", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("store", STORES)
def test_what_no_transaction_takes_is_refused_at_write(
    world: World, store: str, effects: Sequence[Effect], *, at_once: bool, atomic: bool
) -> None:
    """Nothing of it is registered, so the handler can still write what it should have written."""
    if store == "memory" and any(effect[0] == TABLE for effect in effects):
        pytest.skip("a MemoryStore is in no table")
    world.store = STORES[store](world)
    mails: list[str] = []

    def handler(event: Any, operation: Operation) -> None:
        writes = [effects] if at_once else [[effect] for effect in effects]
        try:
            for each in writes:
                operation.write(*each)
        except EffectsRejectedError:
            return
        mails.append("sent")

    policy = {"atomic": atomic}
    world.consumer(policy=policy).event_handler(handler)(EVENT, world.invocation())
    assert mails == []


@pytest.mark.parametrize("at_once", [True, False], ids=["one write", "one by one"])
@pytest.mark.parametrize("effects", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("store", STORES)
def test_what_a_transaction_takes_is_committed(
    world: World, store: str, effects: Sequence[Effect], *, at_once: bool
) -> None:
    """The limits are DynamoDB's own; beside records of Powertools there is room for one less."""
    world.store = STORES[store](world)
    kept = store == "powertools" and len(effects) == 99 and not isinstance(effects[-1], Keep)
    taken = effects[1:] if kept else effects

    def handler(event: Any, operation: Operation) -> None:
        for each in [taken] if at_once else [[effect] for effect in taken]:
            operation.write(*each)
        if kept:
            with pytest.raises(EffectsRejectedError, match="more than the 98"):
                operation.write(effects[0])

    answer = world.consumer().event_handler(handler)(EVENT, world.invocation())
    assert answer["outcome"] == "New"


def test_a_result_that_does_not_fit_beside_the_effects_is_left_out(world: World) -> None:
    """It costs no effect, as a transaction holds at most 4 MB."""
    world.store = dynamodb_world(world)
    runs: list[str] = []

    consumer = world.consumer(key=None, policy={"max_result_bytes": 380_000})

    @consumer.function(key="order_id", name="report", payload=())
    def report(order_id: str, size: int, operation: Any = None) -> str:
        runs.append(order_id)
        operation.write(*puts(10, LARGE))
        return "r" * size

    for _ in range(2):
        assert len(report("k1", 100_000)) == 100_000
    assert len(report("k2", 300_000)) == 300_000
    with pytest.raises(ResultOmittedError, match="300,002 bytes"):
        report("k2", 300_000)
    assert runs == ["k1", "k2"]


def test_effects_of_different_keys_are_no_effects_on_one_item() -> None:
    """Only the table knows which key is right. It refuses the other at the commit."""
    other = set_n({"rideId": "order_03"})
    orders: list[list[Effect]] = [
        [set_n(RIDE), set_n({"id": "order_02"}), other],
        [other, set_n(RIDE), set_n({"id": "order_02"})],
        [Put("Rides", RIDE), Put("Rides", {"id": "order_02"}), other],
        [set_n(RIDE), set_n({**RIDE, "at": 1})],
        [set_n({**RIDE, "at": 1}), set_n(RIDE)],
    ]
    for order in orders:
        require_one_transaction(DONE, order, MemoryStore())
    own = Update(TABLE, {"idempotencyKey": "history#k1"}, "SET n = :n", values={":n": 1})
    wrong = own._replace(key={"id": "k1"})
    for effects in ([own, wrong], [wrong, own]):
        with pytest.raises(EffectsRejectedError, match=f"effect {effects.index(own)} is on"):
            require_one_transaction(DONE, effects, _InTable())


class _InTable:
    """A store that says which table it has."""

    _table = TABLE


@pytest.mark.parametrize("part", ["r", "ß", "\N{BICYCLE}", b"\0"])
@pytest.mark.parametrize(("number", "size"), [(9, LARGE), (10, 380_000), (0, 0)])
def test_a_result_has_room_in_both_tables_or_in_none(
    world: World, number: int, size: int, part: str | bytes
) -> None:
    """Beside records of Powertools a commit writes it twice. Whether it fits costs no effect.

    Powertools reads the same text, unless it is longer there.
    """
    world.store = powertools_world(world)
    consumer = world.consumer(key=None, policy={"max_result_bytes": 380_000})
    runs: list[str] = []

    @consumer.function(key="order_id", name="report", payload=())
    def report(order_id: str, size_of_result: int, operation: Any = None) -> str | bytes:
        runs.append(order_id)
        if number:
            operation.write(*puts(number, size))
        return part * (size_of_result // size_of(part))

    for place, size_of_result in enumerate(range(40_000, 380_000, 20_000)):
        assert report(f"k{place}", size_of_result)
        with suppress(ResultOmittedError):
            report(f"k{place}", size_of_result)
        assert len(runs) == place + 1
    if isinstance(part, str):
        stored = {item["data"]["S"].strip('"') for item in world.dynamodb.all("Old")}
        assert part * (40_000 // size_of(part)) in stored


def size_of(part: str | bytes) -> int:
    """Return the bytes of a text, or of bytes."""
    return len(part.encode()) if isinstance(part, str) else len(part)


DONE: Final = Record("history#k1", COMPLETED, "owner", 1, None, None, None, None, None, 0, 0)
KEYS: Final = {TABLE: "idempotencyKey", "Rides": "id", "Cars": "id"}


@pytest.mark.peer
def test_dynamodb_itself_takes_and_refuses_the_same() -> None:
    """The store sends these effects to DynamoDB Local unchecked."""
    told: dict[str, str] = {}
    with local_client() as client:
        store = DynamoDBStore(TABLE, transport=BotocoreTransport(client, 6))
        for name, effects in (REFUSED | TAKEN).items():
            create_tables(client, KEYS)
            try:
                store.put_if_absent(DONE, effects)
                told[name] = "taken"
            except EffectsRejectedError:
                told[name] = "refused"
            finally:
                for table in KEYS:
                    with suppress(client.exceptions.ResourceNotFoundException):
                        client.delete_table(TableName=table)
    assert told == dict.fromkeys(REFUSED, "refused") | dict.fromkeys(TAKEN, "taken")
