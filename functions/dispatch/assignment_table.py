"""Cars and assignments in DynamoDB: reads them, and makes the writes of a decision.

A car is taken on the condition that no ride has it, so two rides cannot have the same.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple

from assignments import OPEN, ZONES, Assignment, Car, Decision, Spot, State, parked, spot, zone
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.facts import CarAssigned, CarReleased
from carride.saga_step import Outbox, Stored, step
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
        state = State(item["state"])
        holds = True
        if state is State.ASSIGNED and car is not None:
            row = self._item(self._tables.cars, _key(car))
            holds = row.get("rideID") == order_id
        return Seen(Assignment(state, car), Stored(item["state"], item["effects"]), holds)

    def free_car(self, start: Spot, forward: bool, skipped: list[str]) -> Car | None:
        """Find a free car as `assignments.FindCar` asks; add rows without a car to ``skipped``.

        The index may be behind its table, so each car is read there too.
        """
        side = ">=" if forward else "<"
        pages = self._client.query(
            TableName=self._tables.cars,
            IndexName=INDEX,
            KeyConditionExpression=f"freeShard = :shard AND freePlace {side} :place",
            ExpressionAttributeValues={":shard": {"S": start.shard}, ":place": {"S": start.place}},
            ScanIndexForward=forward,
            Limit=_PAGE,
        )
        indexed_items = chain.from_iterable(page["Items"] for page in pages)
        for item in indexed_items:
            indexed = marshalling.values(item)
            key = {"zone": indexed["zone"], "carID": indexed["carID"]}
            row = self._item(self._tables.cars, key)
            if not row:
                continue
            car = parked(row)
            if car is None:
                skipped.append(f"{row['zone']}/{row['carID']}")
            elif "rideID" not in row:
                return car
        return None

    def has_fleet(self) -> bool:
        """Return whether there is any car."""
        return any(self._has_car(zone_name) for zone_name in ZONES)

    def _has_car(self, zone_name: str) -> bool:
        pages = self._client.query(
            TableName=self._tables.cars,
            KeyConditionExpression="#zone = :zone",
            ExpressionAttributeNames={"#zone": "zone"},
            ExpressionAttributeValues={":zone": {"S": zone_name}},
            Limit=1,
        )
        return any(page["Items"] for page in pages)

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
    """Return the writes of a decision: of the ride, its car, and the emitted events.

    They are refused if the ride has changed since it was ``seen``. The event of a ride that gets no
    car states ``why``.
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
    if decision.facts == (CarAssigned,):
        return [_taken(tables.cars, car, order_id)]
    if decision.facts == (CarReleased,):
        return [_given_back(tables.cars, car, order_id)] if seen.holds else []
    # Taken and given back in one step: it has to be free, and stays so.
    return [Check(tables.cars, _key(car), _FREE)]


def _taken(table: str, car: Car, order_id: str) -> Update:
    expression = f"SET rideID = :ride REMOVE {', '.join(free(car))}"
    return Update(table, _key(car), expression, condition=_FREE, values={":ride": order_id})


def _given_back(table: str, car: Car, order_id: str) -> Update:
    attributes = free(car)
    assignments = ", ".join(f"{name} = :{name}" for name in attributes)
    values = {f":{name}": value for name, value in attributes.items()}
    return Update(
        table,
        _key(car),
        f"SET {assignments} REMOVE rideID",
        condition="rideID = :ride",
        values={**values, ":ride": order_id},
    )


def free(car: Car) -> dict[str, str]:
    """Return the attributes that a car has exactly while it is free: those of the index."""
    shard, place = spot(car)
    return {"freeShard": shard, "freePlace": place}


def _key(car: Car) -> dict[str, object]:
    return {"zone": zone(car.sector), "carID": car.car_id}
