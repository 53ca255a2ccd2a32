"""Parking a fleet: all over the city, and never over a car that is driving."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

import assignments as city
from ops.fleet import cars, seed
from tests.functions.saga import create_table, items


@pytest.fixture
def dynamodb() -> Iterator[Any]:
    """An empty table for cars."""
    with mock_aws():
        client = boto3.client("dynamodb")
        create_table(client, "cars", "zone", "carID")
        yield client


@pytest.mark.parametrize("count", [1, 8, 64, 130])
def test_stands_are_spread_over_the_city(count: int) -> None:
    """No sector has two cars before every other one has one; each car has a name of its own and a stand in the city."""
    fleet = list(cars(count))
    stands = Counter(car.sector for car in fleet)
    assert len({car.car_id for car in fleet}) == count
    assert all(city.zone(sector) for sector in stands)
    assert max(stands.values()) == -(-count // city.BLOCKS**2)


def test_a_fleet_is_parked_where_dispatch_looks_for_it(dynamodb: Any) -> None:
    """Each item is under its zone, and free."""
    assert seed(dynamodb, "cars", 10) == 10
    for item in items(dynamodb, "cars"):
        assert item["zone"] == city.zone(item["sector"])
        assert "rideID" not in item


def test_seeding_again_leaves_cars_as_they_are(dynamodb: Any) -> None:
    """A car that has a ride keeps it, and only new cars are added."""
    seed(dynamodb, "cars", 3)
    taken = items(dynamodb, "cars")[0]
    dynamodb.update_item(
        TableName="cars",
        Key={"zone": {"S": taken["zone"]}, "carID": {"S": taken["carID"]}},
        UpdateExpression="SET rideID = :ride",
        ExpressionAttributeValues={":ride": {"S": "order_01"}},
    )
    assert seed(dynamodb, "cars", 5) == 2
    assert [item.get("rideID") for item in items(dynamodb, "cars") if item["carID"] == taken["carID"]] == ["order_01"]
    assert len(items(dynamodb, "cars")) == 5
