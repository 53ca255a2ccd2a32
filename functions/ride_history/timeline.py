"""What happened to a ride, as its item in RideTable keeps it: one entry an event, and a counter of effects. No I/O.

Events of a ride arrive in any order, often together. Setting an entry of one's own and adding 1 to a counter commute:
each event is applied by one write that neither reads first nor waits for another. The state is derived by whoever
reads: it is that of the entry with the highest sequence.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from carride.dedup import attribute_of
from carride.events import RideEvent
from carride.history import Entry, entries_in
from idempotency import Update


class History(NamedTuple):
    """A ride's past, in order."""

    order_id: str
    entries: tuple[Entry, ...]
    effects: int
    """How many effects there were. More than entries means that something took effect twice."""

    @property
    def status(self) -> str:
        """The ride's status after its latest event, whatever order the events arrived in."""
        status: str = self.entries[-1].fact["status"]
        return status

    @property
    def missing(self) -> tuple[int, ...]:
        """The versions before the latest of which no event has arrived."""
        seen = {entry.sequence for entry in self.entries}
        return tuple(number for number in range(1, self.entries[-1].sequence) if number not in seen)


def effect(table: str, event: RideEvent) -> Update:
    """Return the write by which an event takes effect in its ride's item."""
    entry = Entry(int(event.sequence), event.type, event.time.isoformat(), msgspec.to_builtins(event.data))
    return Update(
        table,
        {"orderID": event.data.order_id},
        "SET #entry = :entry ADD effects :one",
        names={"#entry": attribute_of(event)},
        values={":entry": entry._asdict(), ":one": 1},
    )


def history(item: Mapping[str, Any]) -> History:
    """Return what an item of RideTable, as plain Python values, says about its ride."""
    return History(item["orderID"], entries_in(item), item["effects"])
