"""A saga's step on the item of its ride: what it writes, and the events that it emits, in one transaction.

An item keeps one entry for each event that was acted on, and counts them: more effects than entries means that
something took effect twice. State and count are the item's revision too: a decision on an older one is refused, and
made again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from carride.dedup import attribute_of
from carride.events import SOURCE, RideEvent
from carride.facts import Fact
from carride.outbox import KEPT, outbox_item
from carride.overdue import opened
from idempotency import Put, Update


class Stored(NamedTuple):
    """An item as it was read."""

    state: str | None = None
    """None where there is no item."""
    effects: int = 0
    """How many events were acted on until then."""

    def unchanged(self) -> tuple[str, dict[str, object]]:
        """Return the condition that the item is still the same, and the condition's values; ``#state`` is its state."""
        if self.state is None:
            return "attribute_not_exists(orderID)", {}
        return "#state = :was AND effects = :seen", {":was": self.state, ":seen": self.effects}


class Outbox(NamedTuple):
    """Where emitted events go."""

    table: str
    region: str
    """Where this process runs; a pipe carries the events of its own region only."""
    kept: timedelta = KEPT
    """For how long an event stays in the table."""

    def put(self, event: RideEvent, now: datetime) -> Put:
        """Return the effect that emits an event."""
        return Put(self.table, outbox_item(event, region=self.region, now=now, kept=self.kept))


def step(
    table: str,
    event: RideEvent,
    seen: Stored,
    *,
    state: str,
    attributes: Mapping[str, object],
    facts: Sequence[Fact],
    is_open: bool,
    outbox: Outbox,
    now: datetime,
) -> list[Put | Update]:
    """Return the writes by which a decision takes effect.

    Args:
        table: the items' table, by orderID.
        event: what was acted on.
        seen: the item as it was then; if it has changed since, the writes are refused.
        state: the item's new state.
        attributes: further attributes to set.
        facts: what is emitted, in this order.
        is_open: whether the ride still needs something afterwards.
        outbox: takes the emitted events.
        now: with a time zone.
    """
    condition, unchanged = seen.unchanged()
    entry = {
        "type": event.type,
        "sequence": int(event.sequence),
        "time": now.isoformat(),
        "emitted": [type(fact).__name__ for fact in facts],
    }
    values: dict[str, object] = {":state": state, ":entry": entry, ":one": 1}
    assignments = ["#state = :state", "#entry = :entry"]
    for name, value in attributes.items():
        assignments.append(f"{name} = :{name}")
        values[f":{name}"] = value
    closing = " REMOVE openSince, openShard"
    if is_open:
        since, closing = still_open(event.subject, now), ""
        assignments.append(since[0])
        values |= since[1]
    update = Update(
        table,
        {"orderID": event.subject},
        f"SET {', '.join(assignments)}{closing} ADD effects :one",
        condition=condition,
        names={"#state": "state", "#entry": attribute_of(event)},
        values=values | unchanged,
    )
    emitted = [RideEvent.of(fact, source=SOURCE, time=now, cause=event) for fact in facts]
    return [update, *(outbox.put(each, now) for each in emitted)]


def still_open(order_id: str, now: datetime) -> tuple[str, dict[str, str]]:
    """Return the assignments that keep an item open since it first was, and their values."""
    found = opened(order_id, now)
    assignments = ", ".join(f"{name} = if_not_exists({name}, :{name})" for name in found)
    return assignments, {f":{name}": value for name, value in found.items()}
