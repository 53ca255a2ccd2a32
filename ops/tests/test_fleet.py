"""Cars are parked all over the city, where dispatch finds them, and never over an existing car."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

import assignments as city
from assignment_table import free
from carride_idempotency import marshalling
from ops.fleet import cars, give_back, held, seed
from ops.stack import OperatorError, StackRef
from ops.tests.world import AWAY, client_of, create_table
from ops.tests.world import stack as ref


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
    """A free car is in its zone and in the index, an older one too.

    A car with a ride keeps it when the fleet grows.
    """
    dynamodb: Any = client_of("dynamodb", AWAY)
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
    assert seed(dynamodb, "cars", 6) == 2
    parked: list[Any] = [*map(marshalling.values, dynamodb.scan(TableName="cars")["Items"])]
    assert {car["carID"]: car["rideID"] for car in parked if "rideID" in car} == {
        taken["carID"]: "order_01"
    }
    assert len(parked) == 6
    for car in parked:
        assert car["zone"] == city.zone(car["sector"])
        assert ("freeShard" in car) == ("rideID" not in car)
        assert car.items() >= free(city.Car(car["carID"], car["sector"])).items() or "rideID" in car


@mock_aws
@pytest.mark.parametrize(("there", "wanted"), [(0, 8), (3, 8), (8, 8), (12, 8)])
def test_a_fleet_grows_to_as_many_cars_as_were_asked_for(there: int, wanted: int) -> None:
    """Cars with names of somebody else's count, and none is parked beside a fleet that is whole."""
    dynamodb: Any = client_of("dynamodb", AWAY)
    create_table(dynamodb, "cars", "zone", "carID")
    for number in range(there):
        named = city.Car(f"taxi_{number}", f"sector_{number + 1:02d}")
        place = {"zone": city.zone(named.sector), "carID": named.car_id, "sector": named.sector}
        item = {**place, **free(named)}
        dynamodb.put_item(TableName="cars", Item=marshalling.item(item))
    scans = list[str]()
    dynamodb.meta.events.register("before-call.dynamodb.Scan", lambda **_: scans.append("whole"))
    for added in (max(0, wanted - there), 0):
        scans.clear()
        assert seed(dynamodb, "cars", wanted) == added
        assert len(scans) == 1
        assert len(dynamodb.scan(TableName="cars")["Items"]) == max(there, wanted)


@pytest.fixture
def garage() -> Iterator[StackRef]:
    """A stack with a free car, car_001, and one that order_01 holds, car_002."""
    with mock_aws():
        dynamodb: Any = client_of("dynamodb", AWAY)
        create_table(dynamodb, "cars", "zone", "carID")
        create_table(dynamodb, "assignments", "orderID")
        seed(dynamodb, "cars", 2)
        taken = {"zone": city.zone("sector_28"), "carID": "car_002"}
        dynamodb.update_item(
            TableName="cars",
            Key=marshalling.item(taken),
            UpdateExpression="SET rideID = :ride REMOVE freeShard, freePlace",
            ExpressionAttributeValues={":ride": {"S": "order_01"}},
        )
        yield ref(lambda *_: dynamodb, CarTableName="cars", AssignmentTableName="assignments")


def car(stack: StackRef, name: str) -> dict[str, Any]:
    """Return a car's item."""
    items = stack.client("dynamodb").scan(TableName="cars")["Items"]
    (found,) = (each for each in map(marshalling.values, items) if each["carID"] == name)
    return found


def test_a_car_that_a_forgotten_ride_holds_is_freed_with_its_place_in_the_index(
    garage: StackRef,
) -> None:
    """Dispatch finds it at once; a second time there is nothing to free."""
    found = held(garage, "car_002")
    assert found.ride_id == "order_01"
    give_back(garage, found)
    freed = car(garage, "car_002")
    assert "rideID" not in freed
    assert freed.items() >= free(city.Car("car_002", freed["sector"])).items()
    with pytest.raises(OperatorError, match="holds car_002 no more, and nothing was done"):
        give_back(garage, found)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("car_001", "car_001 is free; if dispatch does not"), ("car_009", "there is no car car_009")],
)
def test_a_car_that_no_ride_holds_is_not_freed(garage: StackRef, name: str, problem: str) -> None:
    """The message says what to do instead."""
    with pytest.raises(OperatorError, match=problem):
        held(garage, name)


def test_a_car_that_dispatch_will_free_is_not_freed(garage: StackRef) -> None:
    """Passengers may be in it; an ended ride does not count, nor one that has another car."""

    def assign(state: str, car_id: str) -> None:
        item = {"orderID": "order_01", "state": state, "carID": car_id}
        garage.client("dynamodb").put_item(TableName="assignments", Item=marshalling.item(item))

    assign("assigned", "car_002")
    with pytest.raises(OperatorError, match="dispatch has assigned car_002 to order_01"):
        held(garage, "car_002")
    assign("assigned", "car_001")
    assert held(garage, "car_002")
    assign("released", "car_002")
    assert held(garage, "car_002")
