"""Cars and assignments in DynamoDB: how they are read, and the writes by which a decision takes effect.

A ride's item keeps one entry for each event that was acted on, and counts them: more effects than entries means that
something took effect twice. The count is the item's revision too: what was decided on an older one is refused, and
decided again. A car is taken on the condition that no ride has it, so two rides cannot have the same.
"""

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from carride.dedup import attribute_of
from carride.events import SOURCE, CarAssigned, CarReleased, RideEvent
from carride.outbox import KEPT, outbox_item
from fleet import Assignment, Car, Decision, State, zone
from idempotency import Check, Put, Update, marshalling

type Effect = Check | Put | Update

_FREE: Final = "attribute_exists(carID) AND attribute_not_exists(rideID)"


class Tables(NamedTuple):
    """The names of the tables."""

    assignments: str
    cars: str
    outbox: str


class Seen(NamedTuple):
    """A ride as it was read."""

    assignment: Assignment
    revision: int
    """How many events were acted on until then."""


class Reader:
    """Reads what dispatch decides upon, consistently.

    Args:
        tables: their names.
        client: a botocore or boto3 client for DynamoDB.
    """

    def __init__(self, tables: Tables, client: Any) -> None:
        self._tables = tables
        self._client = client

    def ride(self, order_id: str) -> Seen:
        """Return what dispatch knows of a ride."""
        answer = self._client.get_item(
            TableName=self._tables.assignments, Key={"orderID": {"S": order_id}}, ConsistentRead=True
        )
        if "Item" not in answer:
            return Seen(Assignment(State.UNKNOWN), 0)
        item: dict[str, Any] = marshalling.values(answer["Item"])
        car = Car(item["carID"], item["sector"]) if "carID" in item else None
        return Seen(Assignment(State(item["state"]), car), item["effects"])

    def free_cars(self, in_zone: str) -> list[Car]:
        """Return the cars of a zone that no ride has."""
        pages = self._client.get_paginator("query").paginate(
            TableName=self._tables.cars,
            KeyConditionExpression="#zone = :zone",
            FilterExpression="attribute_not_exists(rideID)",
            ExpressionAttributeNames={"#zone": "zone"},
            ExpressionAttributeValues={":zone": {"S": in_zone}},
            ConsistentRead=True,
        )
        return [Car(item["carID"]["S"], item["sector"]["S"]) for page in pages for item in page["Items"]]


def effects(
    tables: Tables,
    event: RideEvent,
    seen: Seen,
    decision: Decision,
    *,
    region: str,
    now: datetime,
    kept: timedelta = KEPT,
) -> list[Effect]:
    """Return the writes by which a decision takes effect: the ride's, its car's, and what is to be told.

    Args:
        tables: their names.
        event: what was decided upon.
        seen: the ride as it was then; if it has changed since, the writes are refused.
        decision: what was decided.
        region: where this is; a pipe tells the events of its own region.
        now: with a time zone.
        kept: for how long what is told stays in the outbox.
    """
    car = decision.after.car
    added = {} if car is None else {"car_id": car.car_id}
    told = [RideEvent.of(fact.of(event.data, **added), source=SOURCE, time=now, cause=event) for fact in decision.facts]
    return [
        _remember(tables, event, seen, decision, now),
        *_move(tables, event.subject, decision),
        *(Put(tables.outbox, outbox_item(told_event, region=region, now=now, kept=kept)) for told_event in told),
    ]


def _remember(tables: Tables, event: RideEvent, seen: Seen, decision: Decision, now: datetime) -> Update:
    entry = {
        "type": event.type,
        "sequence": int(event.sequence),
        "time": now.isoformat(),
        "told": [fact.__name__ for fact in decision.facts],
    }
    values: dict[str, object] = {":state": decision.after.state, ":entry": entry, ":one": 1}
    expression = "SET #state = :state, #entry = :entry"
    if (car := decision.after.car) is not None:
        expression += ", carID = :car, sector = :sector"
        values |= {":car": car.car_id, ":sector": car.sector}
    condition = "attribute_not_exists(orderID)"
    if seen.revision:
        condition = "effects = :seen"
        values[":seen"] = seen.revision
    return Update(
        tables.assignments,
        {"orderID": event.subject},
        f"{expression} ADD effects :one",
        condition=condition,
        names={"#state": "state", "#entry": attribute_of(event)},
        values=values,
    )


def _move(tables: Tables, order_id: str, decision: Decision) -> list[Effect]:
    car = decision.after.car
    if car is None or not decision.facts:
        return []
    key = {"zone": zone(car.sector), "carID": car.car_id}
    match decision.facts:
        case (assigned,) if assigned is CarAssigned:
            return [Update(tables.cars, key, "SET rideID = :ride", condition=_FREE, values={":ride": order_id})]
        case (released,) if released is CarReleased:
            return [
                Update(tables.cars, key, "REMOVE rideID", condition="rideID = :ride", values={":ride": order_id}),
            ]
        case _:  # taken and given back in one step: it has to be free, and stays so
            return [Check(tables.cars, key, _FREE)]
