"""Parks cars at stands all over the city, and frees a car that a ride holds although it is over."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import assignments
from assignment_table import free
from carride_idempotency import marshalling
from ops import tables
from ops.stack import OperatorError, StackRef

_STRIDE: Final = 27
"""Steps of this length visit every sector before any sector twice: it has no divisor in common with
their number."""


class HeldCar(NamedTuple):
    """A car that a ride holds."""

    car: assignments.Car
    ride_id: str


def cars(count: int) -> Iterator[assignments.Car]:
    """Yield cars whose stands are spread evenly over the city."""
    sectors = assignments.BLOCKS * assignments.BLOCKS
    for steps in range(count):
        number = steps + 1
        sector = steps * _STRIDE % sectors + 1
        car_id = f"car_{number:03d}"
        stand = f"sector_{sector:02d}"
        yield assignments.Car(car_id, stand)


def seed(dynamodb: Any, table: str, count: int) -> int:
    """Park cars until the fleet has ``count`` of them; return how many the CarTable got.

    Cars of any name count. Free cars from before the index of free cars are added to it.
    """
    there = [*tables.scan(dynamodb, table)]
    missing = count - len(there)
    added = 0
    for car in cars(count):
        if added >= missing:
            break
        added += _park(dynamodb, table, car)
    for item in there:
        if "rideID" in item or "freeShard" in item:
            continue
        if old := assignments.parked(marshalling.values(item)):
            with suppress(dynamodb.exceptions.ConditionalCheckFailedException):
                _index(dynamodb, table, old)  # unless a ride took it meanwhile
    return added


def _park(dynamodb: Any, table: str, car: assignments.Car) -> bool:
    """Add a car, and return whether it is a new one."""
    item = _key(car) | marshalling.item({"sector": car.sector} | free(car))
    try:
        dynamodb.put_item(
            TableName=table, Item=item, ConditionExpression="attribute_not_exists(carID)"
        )
    except dynamodb.exceptions.ConditionalCheckFailedException:
        return False
    return True


def _index(dynamodb: Any, table: str, car: assignments.Car) -> None:
    """Put a free car into the index of free cars."""
    dynamodb.update_item(
        TableName=table,
        Key=_key(car),
        UpdateExpression="SET freeShard = :freeShard, freePlace = :freePlace",
        ConditionExpression="attribute_exists(carID) AND attribute_not_exists(rideID)",
        ExpressionAttributeValues=_values(free(car)),
    )


def held(stack: StackRef, car_id: str) -> HeldCar:
    """Return the car that a ride holds, if dispatch will not free it by itself.

    Raises:
        OperatorError: there is no such car, it is free, or dispatch still knows its ride.
    """
    dynamodb = stack.client("dynamodb")
    table = stack.outputs["CarTableName"]
    found = [*tables.scan(dynamodb, table, "carID = :car", car=car_id)]
    if not found:
        raise OperatorError(f"there is no car {car_id} in {table}: `./carride audit` names cars")
    item: dict[str, Any] = marshalling.values(found[0])
    ride_id = item.get("rideID")
    if ride_id is None:
        raise OperatorError(
            f"{car_id} is free; if dispatch does not find it, `./carride drive fleet` puts free "
            "cars into the index"
        )
    if _is_assigned(stack, ride_id, car_id):
        raise OperatorError(
            f"dispatch has assigned {car_id} to {ride_id}, and frees it when the ride ends: "
            f"`./carride ride {ride_id}` says what the ride needs (ops/docs/runbooks/overdue.md)"
        )
    return HeldCar(assignments.Car(car_id, item["sector"]), ride_id)


def _is_assigned(stack: StackRef, ride_id: str, car_id: str) -> bool:
    """Return whether dispatch has the ride as one that holds this car."""
    found = stack.client("dynamodb").get_item(
        TableName=stack.outputs["AssignmentTableName"],
        Key=marshalling.item({"orderID": ride_id}),
        ConsistentRead=True,
    )
    ride = marshalling.values(found.get("Item", {}))
    is_open = ride.get("state") == assignments.State.ASSIGNED
    return is_open and ride.get("carID") == car_id


def give_back(stack: StackRef, found: HeldCar) -> None:
    """Free a car, and put it into the index of free cars.

    Raises:
        OperatorError: the ride holds the car no more.
    """
    dynamodb = stack.client("dynamodb")
    try:
        dynamodb.update_item(
            TableName=stack.outputs["CarTableName"],
            Key=_key(found.car),
            UpdateExpression="SET freeShard = :freeShard, freePlace = :freePlace REMOVE rideID",
            ConditionExpression="rideID = :ride",
            ExpressionAttributeValues=_values(free(found.car) | {"ride": found.ride_id}),
        )
    except dynamodb.exceptions.ConditionalCheckFailedException:
        raise OperatorError(
            f"{found.ride_id} holds {found.car.car_id} no more, and nothing was done: look again "
            f"with `./carride drive fleet --free {found.car.car_id}`"
        ) from None


def _key(car: assignments.Car) -> dict[str, Any]:
    return marshalling.item({"zone": assignments.zone(car.sector), "carID": car.car_id})


def _values(given: dict[str, str]) -> dict[str, Any]:
    """Return the values of an expression, by the attributes' names."""
    return marshalling.item({f":{name}": value for name, value in given.items()})
