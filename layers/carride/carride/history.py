"""A ride's history, as its item in RideTable holds it: one entry for each event that took effect. No I/O.

The ride history writes the entries; it and the API read them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from carride.dedup import is_attribute


class Entry(NamedTuple):
    """One event that took effect."""

    sequence: int
    """The ride's version that the event belongs to."""
    type: str
    time: str
    """When it happened, in ISO 8601."""
    fact: Mapping[str, Any]
    """The event's data: the ride as it was afterwards, and what the event adds."""


def entries_in(item: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Return the entries of an item, as plain Python values, in the order in which the events happened."""
    entries = (Entry(**entry) for name, entry in item.items() if is_attribute(name))
    return tuple(sorted(entries, key=lambda entry: entry[:3]))
