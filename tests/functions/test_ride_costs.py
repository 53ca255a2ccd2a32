"""What a ride uses is what `make costs` counts."""

import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest
from moto.dynamodb.models.dynamo_type import DynamoType

from carride.telemetry import logger, observe
from carride_idempotency.testing.dynamodb import FakeDynamoDB
from carride_idempotency.testing.expressions import Item
from tests.functions.world import World
from tools.costs import bill
from tools.transformed import stack

DEPLOYED: Final = {
    "idempotency": "IdempotencyTable",
    "history": "RideHistoryTable",
    "outbox": "OutboxTable",
    "cars": "CarTable",
    "bookings": "BookingTable",
    "assignments": "AssignmentTable",
    "payments": "PaymentTable",
}


def size(item: Item) -> int:
    """Return the bytes of an item."""
    return sum(len(name.encode()) + DynamoType(value).size() for name, value in item.items())


def entry(index: Mapping[str, Any], item: Item) -> dict[tuple[str, ...], object]:
    """Return an item's entry in an index, by its key; nothing if the item is not in it."""
    names = [each["AttributeName"] for each in index["KeySchema"]]
    content = item if index["Projection"]["ProjectionType"] == "ALL" else True
    return {tuple(item[name]["S"] for name in names): content} if set(names) <= set(item) else {}


class Meter:
    """Counts the units of the requests to a world's tables, by table; reads together."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self._dynamodb = world.dynamodb
        self._stock = FakeDynamoDB.__call__
        self._deployed = stack().of_type("AWS::DynamoDB::GlobalTable")
        self.written = dict.fromkeys(bill.TABLES, 0)
        self.read = 0.0
        self.trips = Counter[str]()
        self._working = "carride-api"
        self._deliver: Any = world.deliver
        patch.setattr(
            FakeDynamoDB, "__call__", lambda _, operation, request: self.take(operation, request)
        )
        patch.setattr(world, "deliver", self.deliver)
        # After a direct write the world reads the item, to count its effects: no function does.
        patch.setattr(world, "_note_direct", lambda *_: None)

    def deliver(self, consumer: str, event: Mapping[str, Any]) -> None:
        """Deliver an event, whose requests are the consumer's."""
        self._working = consumer
        self._deliver(consumer, event)
        self._working = "carride-api"

    def take(self, operation: str, request: Mapping[str, Any]) -> Any:
        """Carry a request out, and count it and its units."""
        self.trips[self._working] += 1
        if operation in {"GetItem", "Query"}:
            answer = self._stock(self._dynamodb, operation, request)
            found = sum(map(size, [answer.get("Item", {}), *answer.get("Items", ())]))
            self.read += max(1, math.ceil(found / 4096)) * (
                1 if request.get("ConsistentRead") else 0.5
            )
            return answer
        actions = [
            action for each in request.get("TransactItems", ()) for action in each.values()
        ] or [request]
        items = [self._dynamodb.find(each) or {} for each in actions]
        answer = self._stock(self._dynamodb, operation, request)
        for action, old in zip(actions, items, strict=True):
            table = DEPLOYED[action["TableName"]]
            new = self._dynamodb.find(action) or {}
            units = math.ceil(max(size(old), size(new), 1) / 1024)
            self.written[table] += units * (2 if operation == "TransactWriteItems" else 1)
            for index in self._deployed[table].get("GlobalSecondaryIndexes", ()):
                before = entry(index, old)
                after = entry(index, new)
                self.written[table] += sum(
                    before.get(key) != after.get(key) for key in before | after
                )
        return answer


def test_a_ride_uses_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events, read and write units are exact; the bytes of events, items and log lines nearly."""
    world = World()
    world.park("car_01")
    meter = Meter(world, monkeypatch)
    order = world.booked()
    for version, action in enumerate(("accept", "start", "complete"), 1):
        world.flow()
        world.clock.advance(60)
        world.change(order, action, version)
    world.flow()
    assert tuple(world.emitted()) == bill.EVENTS
    assert len(world.gateway.asked) == bill.GATEWAY_CALLS
    assert (meter.written, meter.read) == (
        {name: units for name, (units, *_) in bill.TABLES.items()},
        bill.READ_UNITS,
    )

    assert meter.trips == {
        re.sub("(?<=[a-z])([A-Z])", r"-\1", name).lower().replace("car-ride", "carride"): trips
        for name, trips in bill.ROUND_TRIPS.items()
    }

    def nearly(number: float) -> Any:
        return pytest.approx(number, rel=0.1)

    for each, name in DEPLOYED.items():
        items = [] if each == "cars" else world.dynamodb.all(each)
        stored = [
            sum(size(item) for item in items if ("expiryTimestamp" in item) is expires)
            for expires in (False, True)
        ]
        assert stored == [*map(nearly, bill.TABLES[name][1:])], name
        expiring = [item for item in items if "expiryTimestamp" in item]
        assert len(expiring) == bill.EXPIRING_ITEMS.get(name, 0), name
        assert all(size(item) <= 1024 for item in expiring)
    events = [json.dumps(world.envelope(each)) for each in world.outbox()]
    assert len("".join(events)) / len(events) == nearly(bill.EVENT_BYTES)

    for level, known in (("WARNING", bill.METRIC_BYTES), ("INFO", bill.LINE_BYTES)):
        logger.setLevel(level)
        monkeypatch.setattr("sys.stdout", lines := io.StringIO())
        for observation in world.observations:
            observe(observation)
        assert len(lines.getvalue()) / len(world.observations) == nearly(known)
