"""At every moment a car has one ride, and a ride one car: the two tables change in one write."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import assignments
from virtual_time.scheduler import OUTSIDE, here

if TYPE_CHECKING:
    from tests.world.run import World


def contradictions(world: "World", writes: Sequence[Any]) -> Iterator[str]:
    """Yield what writes of a function, just made, say differently about cars and rides."""
    if here() is OUTSIDE:  # what was there before the story
        return
    tables = world.cloud.wiring.tables
    cars = tables["CarTable"].name
    rides = tables["AssignmentTable"].name
    for write in writes:
        item = write.after or {}
        if write.table == cars and "rideID" in item:
            yield from _of(world, item["rideID"], item["carID"])
        if write.table == rides and item.get("state") == {"S": assignments.State.ASSIGNED}:
            yield from _of(world, item["orderID"], item["carID"])


def _of(world: "World", ride: Any, car: Any) -> Iterator[str]:
    """Compare both tables about a ride and its car."""
    tables = world.cloud.wiring.tables
    all_cars = world.cloud.dynamodb.all(tables["CarTable"].name)
    held = [each["carID"] for each in all_cars if each.get("rideID") == ride]
    if held != [car]:
        yield f"{ride['S']} has {car['S']}, and {held} have it"
    wanted = {"orderID": ride}
    known = world.cloud.dynamodb.find({"TableName": tables["AssignmentTable"].name, "Key": wanted})
    if known is None or known.get("carID") != car:
        yield f"{car['S']} has {ride['S']}, which has {(known or {}).get('carID')}"
