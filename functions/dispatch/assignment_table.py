"""Cars and assignments in DynamoDB: how they are read, and the writes by which a decision takes effect.

A car is taken on the condition that no ride has it, so two rides cannot have the same.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from assignments import OPEN, ZONES, Assignment, Car, Decision, Spot, State, parked, spot, zone
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.facts import CarAssigned, CarReleased
from carride.items import Outbox, Stored, step
from carride_idempotency import Check, Put, Update, marshalling

type Effect = Check | Put | Update

INDEX: Final = "byFreePlace"
_PAGE: Final = 4
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


class Reader:
    """Reads what dispatch decides upon, consistently."""

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
        return seen._replace(
            holds=self._item(self._tables.cars, _key(car)).get("rideID") == order_id
        )

    def free_car(self, start: Spot, forward: bool, skipped: list[str]) -> Car | None:
        """Find a free car as `assignments.FindCar` asks, and add the rows that hold no car to ``skipped``.

        The index may be behind its table, so each car is read there too.
        """
        pages = self._client.query(
            TableName=self._tables.cars,
            IndexName=INDEX,
            KeyConditionExpression=f"freeShard = :shard AND freePlace {'>=' if forward else '<'} :place",
            ExpressionAttributeValues={":shard": {"S": start.shard}, ":place": {"S": start.place}},
            ScanIndexForward=forward,
            Limit=_PAGE,
        )
        for entry in (marshalling.values(each) for page in pages for each in page["Items"]):
            row = self._item(self._tables.cars, {name: entry[name] for name in ("zone", "carID")})
            car = parked(row)
            if row and "rideID" not in row and car is not None:
                return car
            if row and car is None:
                skipped.append(f"{row['zone']}/{row['carID']}")
        return None

    def has_fleet(self) -> bool:
        """Return whether there is any car."""
        request = {
            "TableName": self._tables.cars,
            "KeyConditionExpression": "#zone = :zone",
            "Limit": 1,
        }
        names = {"#zone": "zone"}
        return any(
            page["Items"]
            for each in ZONES
            for page in self._client.query(
                **request,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={":zone": {"S": each}},
            )
        )

    def _item(self, table: str, key: Mapping[str, object]) -> dict[str, Any]:
        answer = self._client.get_item(
            TableName=table, Key=marshalling.item(key), ConsistentRead=True
        )
        return marshalling.values(answer.get("Item", {}))


def effects(
    tables: Tables,
    event: RideEvent,
    seen: Seen,
    decision: Decision,
    *,
    why: str,
    outbox: Outbox,
    now: datetime,
) -> list[Effect]:
    """Return the writes by which a decision takes effect: the ride's, its car's, and the events that are emitted.

    They are refused if the ride has changed since it was ``seen``. ``why`` there is no free car is
    emitted for a ride that gets none.
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
            taken = f"SET rideID = :ride REMOVE {', '.join(free(car))}"
            return [
                Update(tables.cars, _key(car), taken, condition=_FREE, values={":ride": order_id})
            ]
        case (released,) if released is CarReleased:
            values = {f":{name}": value for name, value in free(car).items()}
            again = f"SET {', '.join(f'{name} = :{name}' for name in free(car))} REMOVE rideID"
            mine = Update(
                tables.cars,
                _key(car),
                again,
                condition="rideID = :ride",
                values=values | {":ride": order_id},
            )
            return [mine] if seen.holds else []
        case _:  # taken and given back in one step: it has to be free, and stays so
            return [Check(tables.cars, _key(car), _FREE)]


def free(car: Car) -> dict[str, str]:
    """Return the attributes that a car has exactly while it is free: those of the index."""
    shard, place = spot(car)
    return {"freeShard": shard, "freePlace": place}


def _key(car: Car) -> dict[str, object]:
    return {"zone": zone(car.sector), "carID": car.car_id}
