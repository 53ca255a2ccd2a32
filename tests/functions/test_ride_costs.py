"""What a ride and an idle run of the reconciler use is what `make costs` counts."""

import io
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from carride.telemetry import logger, observe
from infrastructure import costs
from infrastructure.transformed import stack
from tests.functions.world import TABLES, World
from tests.idempotency.fake_dynamodb import Item

DEPLOYED: Final = dict(
    zip(
        ("idempotency", "outbox", "cars", "rides", "bookings", "assignments", "payments"),
        ("IdempotencyTable", "OutboxTable", "CarTable", "RideTable", "BookingTable", "AssignmentTable", "PaymentTable"),
        strict=True,
    )
)


def size(value: Any) -> int:
    """Return the bytes of an item or an attribute, as DynamoDB documents them."""
    match value:
        case {"S": str(text)}:
            return len(text.encode())
        case {"N": str(digits)}:
            return math.ceil(len(digits) / 2) + 1
        case {"L": list(values)}:
            return 3 + sum(1 + size(each) for each in values)
        case {"M": dict(values)}:
            return 3 + len(values) + size(values)
        case {"B": bytes(raw)}:
            return len(raw)
        case {"BOOL": _} | {"NULL": _}:
            return 1
        case _:
            return sum(len(name.encode()) + size(each) for name, each in value.items())


class Meter:
    """Counts the units that the requests to a world's tables use, by table and kind."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self.dynamodb, self._take = world.dynamodb, world.dynamodb.take
        self.units = Counter[tuple[str, str]]()
        patch.setattr(world.dynamodb, "take", self.take)

    def take(self, operation: str, request: Mapping[str, Any]) -> Any:
        """Carry a request out, and count its units."""
        actions = [action for each in request.get("TransactItems", ()) for action in each.values()] or [request]
        before = [None if operation == "Query" else self.dynamodb.find(each) for each in actions]
        answer = self._take(operation, request)
        if operation in {"GetItem", "Query"}:
            found = size(answer.get("Item", {})) + sum(map(size, answer.get("Items", ())))
            units = max(1, math.ceil(found / 4096)) * (1 if request.get("ConsistentRead") else 0.5)
            self.units[request["TableName"], "read"] += units  # type: ignore[assignment] # halves
            return answer
        for action, old in zip(actions, before, strict=True):
            table, new = action["TableName"], self.dynamodb.find(action)
            units = max(1, math.ceil(max(size(old or {}), size(new or {})) / 1024))
            self.units[table, "write"] += units * (2 if operation == "TransactWriteItems" else 1)
            self.units[table, "write"] += sum(changes(index, old or {}, new or {}) for index in indexes(table))
        return answer


def indexes(table: str) -> list[Mapping[str, Any]]:
    """Return the indexes of a table in the template."""
    deployed: Mapping[str, Any] = stack().of_type("AWS::DynamoDB::GlobalTable")[DEPLOYED[table]]
    return list(deployed.get("GlobalSecondaryIndexes", ()))


def changes(index: Mapping[str, Any], old: Item, new: Item) -> int:
    """Return how many writes an index needs: an entry is put or removed, and moves by both."""
    keys = [each["AttributeName"] for each in index["KeySchema"]]
    before, after = ([item[key] for key in keys] if set(keys) <= set(item) else None for item in (old, new))
    if before and after and before != after:
        return 2
    return int(before != after or bool(after and index["Projection"]["ProjectionType"] == "ALL" and old != new))


@pytest.fixture
def world() -> World:
    """The functions, with a car near the customer."""
    world = World()
    world.park("car_01")
    return world


def test_a_ride_uses_what_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, events, read and write units are exact; the bytes of events, items and log lines nearly."""
    meter, lines = Meter(world, monkeypatch), io.StringIO()
    asked, ask = list[str](), world.ask

    def counted(method: str, *request: Any) -> Any:
        asked.append(method)
        return ask(method, *request)

    monkeypatch.setattr(world, "ask", counted)
    order = world.book()
    for version, action in enumerate(("accept", "start", "complete"), 1):
        world.flow()
        world.change(order, action, version)
    world.flow()
    assert (len(asked), len(set(asked))) == (costs.REQUESTS, costs.ROUTES)
    assert tuple(world.emitted()) == costs.EVENTS
    written = {DEPLOYED[table]: units for (table, kind), units in meter.units.items() if kind == "write"}
    assert written == {table: units for table, (units, _) in costs.TABLES.items()}
    assert sum(units for (_, kind), units in meter.units.items() if kind == "read") == costs.READ_UNITS

    stored = {DEPLOYED[each]: sum(map(size, world.dynamodb.all(each))) for each in TABLES if each != "cars"}
    assert stored == pytest.approx({name: known for name, (_, known) in costs.TABLES.items() if known}, rel=0.1)
    events = [len(json.dumps(world.envelope(each) | {"account": "1" * 12, "resources": []})) for each in world.outbox()]
    assert sum(events) / len(events) == pytest.approx(costs.EVENT_BYTES, rel=0.1)

    monkeypatch.setattr(logger.registered_handler, "stream", lines)
    metrics = io.StringIO()
    monkeypatch.setattr("sys.stdout", metrics)
    for observation in world.observations:
        observe(observation)
    deliveries = len(world.observations)
    assert len(lines.getvalue()) / deliveries == pytest.approx(costs.LINE_BYTES, rel=0.1)
    assert len(metrics.getvalue()) / deliveries == pytest.approx(costs.METRIC_BYTES, rel=0.1)


def test_an_idle_run_uses_what_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the reconciler that finds nothing queries every shard, and remembers itself."""
    meter = Meter(world, monkeypatch)
    world.tick()
    used = {kind: sum(units for (_, each), units in meter.units.items() if each == kind) for kind in costs.TICK}
    assert used == costs.TICK
