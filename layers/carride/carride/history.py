"""The timeline of a ride: an entry for each event that took effect. Pure: no I/O.

The records of ride_history keep the entries. An entry is in the record that recognises its event's
duplicates, so one write makes both. The index `INDEX` over RideHistoryTable has the records of a
ride that keep an entry, and no others.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from carride.events import RideEvent
from carride.facts import STATUS_AFTER
from carride.ride import Status
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
    return {
        "TableName": table,
        "IndexName": INDEX,
        "KeyConditionExpression": "orderID = :ride",
        "ExpressionAttributeValues": {":ride": {"S": order_id}},
    }


def merged(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one item for each ride, in the form in which other consumers keep it.

    ``records`` are those of ride_history, as Python values.
    """
    rides: dict[str, dict[str, Any]] = {}
    for record in records:
        order_id = record["orderID"]
        ride = rides.setdefault(order_id, {"orderID": order_id, "effects": 0})
        _, _, idempotency_id = record["idempotencyKey"].partition("#")
        ride[EVENT_PREFIX + idempotency_id] = record["entry"]
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


_PROGRESS: Final[Mapping[Status, int]] = {
    Status.REQUESTED: 0,
    Status.ACCEPTED: 1,
    Status.STARTED: 2,
    Status.COMPLETED: 3,
    Status.CANCELLED: 3,
}


def latest_in(timeline: Sequence[TimelineEntry]) -> dict[str, Any]:
    """Return the data of a ride after the events of its timeline, which is not empty.

    The event with the newest version has the data. Some producers give every event the first
    version. Their times do not help: an acceptance may come after the end. Then the event whose
    status is nearest to the end counts.
    """
    newest = timeline[-1].sequence
    current = [entry for entry in timeline if entry.sequence == newest]
    latest = max(reversed(current), key=lambda entry: _PROGRESS[_status_after(entry)])
    return {**latest.data, "status": _status_after(latest)}


def _status_after(entry: TimelineEntry) -> Status:
    """Return the status of the ride by one entry."""
    return STATUS_AFTER.get(entry.type) or Status(entry.data["status"])
