"""Parks cars at stands all over the city. A car that exists is left as it is."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import assignments
from assignment_table import free
from carride_idempotency import marshalling
from ops import tables

_STRIDE: Final = 27
"""Steps of this length visit every sector before any sector twice: it has no divisor in common with
their number."""


def cars(count: int) -> Iterator[assignments.Car]:
    """Yield cars whose stands are spread evenly over the city."""
    sectors = assignments.BLOCKS * assignments.BLOCKS
    for number in range(count):
        yield assignments.Car(
            f"car_{number + 1:03d}", f"sector_{number * _STRIDE % sectors + 1:02d}"
        )


def seed(dynamodb: Any, table: str, count: int) -> int:
    """Park cars until the fleet has ``count`` of them, and return how many were added to the CarTable.

    Free cars from before the index of free cars are added to it.
    """
    added = 0
    for car in cars(count):
        key = {"zone": str(assignments.zone(car.sector)), "carID": car.car_id}
        item = marshalling.item(key | {"sector": car.sector} | free(car))
        try:
            dynamodb.put_item(
                TableName=table, Item=item, ConditionExpression="attribute_not_exists(carID)"
            )
        except dynamodb.exceptions.ConditionalCheckFailedException:
            continue
        added += 1
    for item in tables.scan(
        dynamodb, table, "attribute_not_exists(rideID) AND attribute_not_exists(freeShard)"
    ):
        if old := assignments.parked(marshalling.values(item)):
            _index(dynamodb, table, old)
    return added


def _index(dynamodb: Any, table: str, car: assignments.Car) -> None:
    with suppress(dynamodb.exceptions.ConditionalCheckFailedException):  # a ride took it meanwhile
        dynamodb.update_item(
            TableName=table,
            Key=marshalling.item({"zone": assignments.zone(car.sector), "carID": car.car_id}),
            UpdateExpression="SET freeShard = :freeShard, freePlace = :freePlace",
            ConditionExpression="attribute_exists(carID) AND attribute_not_exists(rideID)",
            ExpressionAttributeValues=marshalling.item(
                {f":{name}": value for name, value in free(car).items()}
            ),
        )
