"""Parks cars at stands all over the city. A car that exists is left as it is."""

from collections.abc import Iterator
from typing import Any, Final

import assignments

_STRIDE: Final = 27
"""Steps of this length visit every sector before any sector twice: it has no divisor in common with their number."""


def cars(count: int) -> Iterator[assignments.Car]:
    """Yield cars whose stands are spread evenly over the city."""
    sectors = assignments.BLOCKS * assignments.BLOCKS
    for number in range(count):
        yield assignments.Car(f"car_{number + 1:03d}", f"sector_{number * _STRIDE % sectors + 1:02d}")


def seed(dynamodb: Any, table: str, count: int) -> int:
    """Park cars until the fleet has ``count`` of them, and return how many were added to the CarTable."""
    added = 0
    for car in cars(count):
        item = {
            "zone": {"S": str(assignments.zone(car.sector))},
            "carID": {"S": car.car_id},
            "sector": {"S": car.sector},
        }
        try:
            dynamodb.put_item(TableName=table, Item=item, ConditionExpression="attribute_not_exists(carID)")
        except dynamodb.exceptions.ConditionalCheckFailedException:
            continue
        added += 1
    return added
