"""Cars are parked all over the city, where dispatch finds them, and never over an existing car."""

from collections import Counter
from typing import Any

import boto3
import pytest
from moto import mock_aws

import assignments as city
from assignment_table import free
from carride_idempotency import marshalling
from ops.fleet import cars, seed
from tests.ops.world import create_table


@pytest.mark.parametrize("count", [1, 8, 64, 130])
def test_stands_are_spread_over_the_city(count: int) -> None:
    """No sector has two cars before every other one has one, and each car has an id of its own."""
    fleet = list(cars(count))
    stands = Counter(car.sector for car in fleet)
    assert len({car.car_id for car in fleet}) == count
    assert all(city.zone(sector) for sector in stands)
    assert max(stands.values()) == -(-count // city.BLOCKS**2)


@mock_aws
def test_only_new_cars_are_parked() -> None:
    """A free car is in its zone and in the index, an older one too; a car with a ride keeps it when the fleet grows."""
    dynamodb: Any = boto3.client("dynamodb")
    create_table(dynamodb, "cars", "zone", "carID")
    assert seed(dynamodb, "cars", 3) == 3
    taken = marshalling.values(dynamodb.scan(TableName="cars")["Items"][0])
    dynamodb.update_item(
        TableName="cars",
        Key={"zone": {"S": taken["zone"]}, "carID": {"S": taken["carID"]}},
        UpdateExpression="SET rideID = :ride REMOVE freeShard, freePlace",
        ExpressionAttributeValues={":ride": {"S": "order_01"}},
    )
    dynamodb.put_item(
        TableName="cars",
        Item=marshalling.item({"zone": "zone_02", "carID": "old", "sector": "sector_09"}),
    )
    assert seed(dynamodb, "cars", 5) == 2
    parked: list[Any] = [*map(marshalling.values, dynamodb.scan(TableName="cars")["Items"])]
    assert {car["carID"]: car["rideID"] for car in parked if "rideID" in car} == {
        taken["carID"]: "order_01"
    }
    assert len(parked) == 6
    for car in parked:
        assert car["zone"] == city.zone(car["sector"])
        assert ("freeShard" in car) == ("rideID" not in car)
        assert car.items() >= free(city.Car(car["carID"], car["sector"])).items() or "rideID" in car
