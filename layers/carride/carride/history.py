"""The timeline of a ride in RideTable, with an entry for each event that took effect. No I/O."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from carride.dedup import is_attribute


class TimelineEntry(Struct, frozen=True, kw_only=True):
    """Something that happened to a ride."""

    sequence: Annotated[int, Meta(description="The version of the ride that the event belongs to.")]
    type: Annotated[str, Meta(description="The type of the event.")]
    time: Annotated[str, Meta(description="When it happened, in ISO 8601.")]
    data: Annotated[Mapping[str, Any], Meta(description="The data of the event.")]
    """The ride as it was afterwards, and what the event adds."""


def timeline_of(item: Mapping[str, Any]) -> tuple[TimelineEntry, ...]:
    """Return the entries of an item, given as Python values, in the order of the events.

    A producer may give every event the same sequence: then their times order them.
    """
    entries = [msgspec.convert(entry, TimelineEntry) for name, entry in item.items() if is_attribute(name)]
    return tuple(sorted(entries, key=lambda entry: (entry.sequence, datetime.fromisoformat(entry.time), entry.type)))
