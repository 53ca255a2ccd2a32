"""Many dispatchers at once on a DynamoDB that isolates transactions: one car to a ride, and one ride to a car."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatch import Settings, make_handler
from idempotency.clock import epoch_ms
from local.local_aws import LocalAws
from ops import fleet
from tests.functions.saga import Life, create_table, event, invocation, items

CARS = 12
RIDES = 30
TABLES = {
    "contended-records": ("idempotencyKey",),
    "contended-assignments": ("orderID",),
    "contended-cars": ("zone", "carID"),
    "contended-outbox": ("id",),
}


@pytest.fixture
def dynamodb(cloud: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engine's DynamoDB with empty tables, which clients of this process find too."""
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    client = cloud.client("dynamodb")
    for table, keys in TABLES.items():
        create_table(client, table, *keys)
    yield client
    for table in TABLES:
        client.delete_table(TableName=table)


def batch(rides: list[Life], *, ended: bool = False) -> dict[str, Any]:
    """Return a batch in which rides are accepted, or are over."""
    events = [event(ride.completed if ended else ride.accepted) for ride in rides]
    return {
        "Records": [
            {
                "messageId": f"{told['detail']['id']}",
                "body": json.dumps(told),
                "attributes": {"SentTimestamp": str(epoch_ms()), "ApproximateReceiveCount": "1"},
            }
            for told in events
        ]
    }


def test_each_car_has_one_ride_however_many_reach_for_it(dynamodb: Any) -> None:
    """Thirty rides, three batches at once, twelve cars, all from one place: twelve have one each; then all are free."""
    fleet.seed(dynamodb, "contended-cars", CARS)
    records, assignments, cars, outbox = TABLES
    handler = make_handler(
        Settings(
            idempotency_store=f"dynamodb:{records}",
            assignment_table=assignments,
            car_table=cars,
            outbox_table=outbox,
            dead_letter_queue_url="http://127.0.0.1:9/nowhere",
            aws_region="us-east-1",
        )
    )
    rides = [Life(f"order_{number:02d}", pickup="sector_28") for number in range(RIDES)]
    batches = [rides[first::3] for first in range(3)]

    def deliver(ended: bool) -> list[Any]:
        with ThreadPoolExecutor(len(batches)) as pool:
            return list(pool.map(lambda rides: handler(batch(rides, ended=ended), invocation()), batches))

    assert deliver(ended=False) == [{"batchItemFailures": []}] * len(batches)
    taken = {item["carID"]: item.get("rideID") for item in items(dynamodb, cars)}
    assert None not in taken.values()
    assert len(set(taken.values())) == CARS
    states = {item["orderID"]: item for item in items(dynamodb, assignments)}
    assert {ride: states[ride]["carID"] for ride in states if states[ride]["state"] == "assigned"} == {
        ride: car for car, ride in taken.items()
    }
    assert sum(item["state"] == "unserved" for item in states.values()) == RIDES - CARS
    told = [item["type"] for item in items(dynamodb, outbox)]
    assert (told.count("CarAssigned"), told.count("NoCarAvailable")) == (CARS, RIDES - CARS)

    assert deliver(ended=True) == [{"batchItemFailures": []}] * len(batches)
    assert all("rideID" not in item for item in items(dynamodb, cars))
    assert [item["type"] for item in items(dynamodb, outbox)].count("CarReleased") == CARS
