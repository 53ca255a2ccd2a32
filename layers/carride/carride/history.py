"""The timeline of a ride.

The entries that ride_history's records keep, one for each event that took effect. No I/O.

An entry is in the record that recognises its event's duplicates, so one write makes both. The index
`INDEX` over IdempotencyTable has the records of a ride that keep an entry, and no others.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from carride.events import RideEvent
from carride_idempotency import Policy


class TimelineEntry(Struct, frozen=True, kw_only=True):
    """Something that happened to a ride."""

    sequence: Annotated[int, Meta(description="The version of the ride that the event belongs to.")]
    type: Annotated[str, Meta(description="The type of the event.")]
    time: Annotated[str, Meta(description="When it happened, in ISO 8601.")]
    data: Annotated[Mapping[str, Any], Meta(description="The data of the event.")]
    """The ride as it was afterwards, and what the event adds."""


POLICY: Final = Policy(atomic=True)
"""Protects the events of ride_history.

Their one effect is in the record itself. So no claim is needed before it, and one write makes both.
"""

INDEX: Final = "byRide"  # its partition key is orderID

EVENT_PREFIX: Final = "event#"
"""How the attributes begin by which an item remembers events; the idempotency id follows.

The item also counts its effects: more effects than attributes mean that an event took effect twice.
"""


def kept(event: RideEvent) -> dict[str, object]:
    """Return the attributes that the record of an event keeps."""
    data = msgspec.to_builtins(event.data)
    entry = TimelineEntry(
        sequence=int(event.sequence), type=event.type, time=event.time.isoformat(), data=data
    )
    return {"orderID": event.data.order_id, "entry": msgspec.to_builtins(entry)}


def of_ride(table: str, order_id: str) -> dict[str, object]:
    """Return the query for the records of a ride that keep an entry."""
    values = {":ride": {"S": order_id}}
    condition = "orderID = :ride"
    return {
        "TableName": table, "IndexName": INDEX, "KeyConditionExpression": condition, "ExpressionAttributeValues": values
    }  # fmt: skip


def merged(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one item for each ride, as other consumers keep it, from records that keep entries, as Python values."""
    rides: dict[str, dict[str, Any]] = {}
    for record in records:
        ride = rides.setdefault(record["orderID"], {"orderID": record["orderID"], "effects": 0})
        ride[EVENT_PREFIX + record["idempotencyKey"].partition("#")[2]] = record["entry"]
        ride["effects"] += 1
    return list(rides.values())


def timeline_of(item: Mapping[str, Any]) -> tuple[TimelineEntry, ...]:
    """Return the entries of an item, given as Python values, in the order of the events.

    A producer may give every event the same sequence: then their times order them.
    """
    entries = [
        msgspec.convert(entry, TimelineEntry)
        for name, entry in item.items()
        if name.startswith(EVENT_PREFIX)
    ]
    return tuple(
        sorted(
            entries,
            key=lambda entry: (entry.sequence, datetime.fromisoformat(entry.time), entry.type),
        )
    )
