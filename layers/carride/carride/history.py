"""The timeline of a ride in RideTable, with an entry for each event that took effect. No I/O.

A ride has two items, so that each stays small: a write is billed by the size of its item. One has the changes of the
ride itself, the other what dispatch and payment add.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from carride.dedup import is_attribute
from carride.events import RideEvent
from carride.facts import RideChange


class TimelineEntry(Struct, frozen=True, kw_only=True):
    """Something that happened to a ride."""

    sequence: Annotated[int, Meta(description="The version of the ride that the event belongs to.")]
    type: Annotated[str, Meta(description="The type of the event.")]
    time: Annotated[str, Meta(description="When it happened, in ISO 8601.")]
    data: Annotated[Mapping[str, Any], Meta(description="The data of the event.")]
    """The ride as it was afterwards, and what the event adds."""


_SAGA: Final = "#saga"


def items_of(order_id: str) -> tuple[str, str]:
    """Return the keys of a ride's items."""
    return order_id, order_id + _SAGA


def item_of(event: RideEvent) -> str:
    """Return the key of the item that has an event's entry."""
    return event.data.order_id + _SAGA * (not isinstance(event.data, RideChange))


def merged(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one item for each ride in items of a table by orderID, given as Python values.

    An entry that both items of a ride have counts as one effect.
    """
    rides: dict[str, dict[str, Any]] = {}
    for item in items:
        order_id = item["orderID"].removesuffix(_SAGA)
        before = rides.get(order_id, {})
        ride = rides[order_id] = {**before, **item, "orderID": order_id}
        if before and "effects" in item:
            marks = [sum(map(is_attribute, each)) for each in (ride, before, item)]
            ride["effects"] = marks[0] + before["effects"] - marks[1] + item["effects"] - marks[2]
    return list(rides.values())


def timeline_of(item: Mapping[str, Any]) -> tuple[TimelineEntry, ...]:
    """Return the entries of an item, given as Python values, in the order of the events.

    A producer may give every event the same sequence: then their times order them.
    """
    entries = [msgspec.convert(entry, TimelineEntry) for name, entry in item.items() if is_attribute(name)]
    return tuple(sorted(entries, key=lambda entry: (entry.sequence, datetime.fromisoformat(entry.time), entry.type)))
