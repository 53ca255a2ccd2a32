"""What an event does to an item of its ride in RideTable: it adds one entry, and 1 to a counter of effects. No I/O.

Events of a ride arrive in any order, often together. Setting an entry of one's own and adding 1 to a counter commute:
each event is applied by one write that neither reads first nor waits for another. Readers derive the state: it is that
of the entry with the highest sequence.
"""

import msgspec

from carride.dedup import attribute_of
from carride.events import RideEvent
from carride.history import TimelineEntry, item_of
from idempotency import Update


def effect(table: str, event: RideEvent) -> Update:
    """Return the write by which an event takes effect in an item of its ride."""
    data = msgspec.to_builtins(event.data)
    entry = TimelineEntry(sequence=int(event.sequence), type=event.type, time=event.time.isoformat(), data=data)
    return Update(
        table,
        {"orderID": item_of(event)},
        "SET #entry = :entry ADD effects :one",
        names={"#entry": attribute_of(event)},
        values={":entry": msgspec.to_builtins(entry), ":one": 1},
    )
