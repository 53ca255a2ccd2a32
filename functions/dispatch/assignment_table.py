"""Cars and assignments in DynamoDB: how they are read, and the writes by which a decision takes effect.

A car is taken on the condition that no ride has it, so two rides cannot have the same.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct

from assignments import OPEN, Assignment, Car, Decision, State, parked, zone
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.facts import CarAssigned, CarReleased
from carride.items import Outbox, Stored, step
from idempotency import Check, Put, Update, marshalling

type Effect = Check | Put | Update

_FREE: Final = "attribute_exists(carID) AND attribute_not_exists(rideID)"


class Tables(NamedTuple):
    """The names of the tables."""

    assignments: str
    cars: str


class Seen(NamedTuple):
    """A ride as it was read."""

    assignment: Assignment
    stored: Stored
    holds: bool = True
    """Whether its car is still its own. A car that is not was released by somebody else."""


class Fleet(Struct):
    """What a search for a car has seen; if it found none, this is all there is."""

    cars: int = 0
    skipped: list[str] = []
    """Rows that hold no car."""


class Reader:
    """Reads what dispatch decides upon, consistently.

    Args:
        tables: their names.
        client: reads them.
    """

    def __init__(self, tables: Tables, client: DynamoDB) -> None:
        self._tables = tables
        self._client = client

    def ride(self, order_id: str) -> Seen:
        """Return what dispatch knows of a ride."""
        item = self._item(self._tables.assignments, {"orderID": order_id})
        if not item:
            return Seen(Assignment(State.UNKNOWN), Stored())
        car = Car(item["carID"], item["sector"]) if "carID" in item else None
        seen = Seen(Assignment(State(item["state"]), car), Stored(item["state"], item["effects"]))
        if seen.assignment.state is not State.ASSIGNED or car is None:
            return seen
        return seen._replace(holds=self._item(self._tables.cars, _key(car)).get("rideID") == order_id)

    def free_cars(self, in_zone: str, fleet: Fleet) -> list[Car]:
        """Return the cars of a zone that no ride has, and add to ``fleet`` what was seen."""
        pages = self._client.query(
            TableName=self._tables.cars,
            KeyConditionExpression="#zone = :zone",
            FilterExpression="attribute_not_exists(rideID)",
            ExpressionAttributeNames={"#zone": "zone"},
            ExpressionAttributeValues={":zone": {"S": in_zone}},
            ConsistentRead=True,
        )
        rows = []
        for page in pages:
            fleet.cars += page["ScannedCount"]  # also those that have a ride
            rows += [marshalling.values(item) for item in page["Items"]]
        cars = [(row, parked(in_zone, row)) for row in rows]
        fleet.skipped += [f"{in_zone}/{row['carID']}" for row, car in cars if car is None]
        return [car for _, car in cars if car is not None]

    def _item(self, table: str, key: Mapping[str, object]) -> dict[str, Any]:
        answer = self._client.get_item(TableName=table, Key=marshalling.item(key), ConsistentRead=True)
        return marshalling.values(answer.get("Item", {}))


def effects(
    tables: Tables, event: RideEvent, seen: Seen, decision: Decision, *, why: str, outbox: Outbox, now: datetime
) -> list[Effect]:
    """Return the writes by which a decision takes effect: the ride's, its car's, and the events that are emitted.

    Args:
        tables: their names.
        event: what was decided upon.
        seen: the ride as it was then; if it has changed since, the writes are refused.
        decision: what was decided.
        why: why there is no free car; only for a ride that gets none.
        outbox: takes the emitted events.
        now: with a time zone.
    """
    state, car = decision.after
    added = {"reason": why} if car is None else {"car_id": car.car_id}
    facts = [fact.of(event.data, **added) for fact in decision.facts]
    attributes = {} if car is None else {"carID": car.car_id, "sector": car.sector}
    written = step(
        tables.assignments,
        event,
        seen.stored,
        state=state,
        attributes=attributes,
        facts=facts,
        is_open=state in OPEN,
        outbox=outbox,
        now=now,
    )
    return [*written, *_move(tables, event.subject, seen, decision)]


def _move(tables: Tables, order_id: str, seen: Seen, decision: Decision) -> list[Effect]:
    car = decision.after.car
    if car is None or not decision.facts:
        return []
    match decision.facts:
        case (assigned,) if assigned is CarAssigned:
            return [Update(tables.cars, _key(car), "SET rideID = :ride", condition=_FREE, values={":ride": order_id})]
        case (released,) if released is CarReleased:
            mine = Update(
                tables.cars, _key(car), "REMOVE rideID", condition="rideID = :ride", values={":ride": order_id}
            )
            return [mine] if seen.holds else []
        case _:  # taken and given back in one step: it has to be free, and stays so
            return [Check(tables.cars, _key(car), _FREE)]


def _key(car: Car) -> dict[str, object]:
    return {"zone": zone(car.sector), "carID": car.car_id}
