"""The writes of a saga's step: the item of the ride and the emitted events, in one transaction.

An item keeps an entry for each event that took effect, and counts them: more effects than entries
mean that an event took effect twice. State and count also are the item's revision: a write that was
decided on an older one is refused.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from carride.events import SOURCE, RideEvent
from carride.facts import Fact
from carride.history import EVENT_PREFIX
from carride.outbox import KEPT, outbox_item
from carride.overdue import opened
from carride_idempotency import Put, Update


class Stored(NamedTuple):
    """The state of an item when it was read."""

    state: str | None = None  # None if there is no item
    effects: int = 0  # the number of events that took effect so far

    def unchanged(self) -> tuple[str, dict[str, object]]:
        """Return the condition that the item has not changed, and its values.

        In the condition, ``#state`` is the attribute that has the state.
        """
        if self.state is None:
            return "attribute_not_exists(orderID)", {}
        return "#state = :was AND effects = :seen", {":was": self.state, ":seen": self.effects}


class Outbox(NamedTuple):
    """Where emitted events go."""

    table: str
    region: str  # the region of this process. A pipe carries only the events of its own region.
    kept: timedelta = KEPT  # how long an event stays in the table

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
    """Return the writes by which a decision on an event takes effect in the item of its ride.

    They set ``state`` and ``attributes``, emit ``facts`` in order, and are refused if the item has
    changed since it was ``seen``. ``is_open`` says whether the ride needs something afterwards.
    """
    condition, unchanged = seen.unchanged()
    entry = {
        "type": event.type,
        "sequence": int(event.sequence),
        "time": now.isoformat(),
        "emitted": [type(fact).__name__ for fact in facts],
    }
    values: dict[str, object] = {f":{name}": value for name, value in attributes.items()}
    assignments = [
        "#state = :state",
        "#entry = :entry",
        *(f"{name} = :{name}" for name in attributes),
    ]
    if is_open:
        since, opening = still_open(event.subject, now)
        assignments.append(since)
        values |= opening
    closing = "" if is_open else " REMOVE openSince, openShard"
    update = Update(
        table,
        {"orderID": event.subject},
        f"SET {', '.join(assignments)}{closing} ADD effects :one",
        condition=condition,
        names={"#state": "state", "#entry": EVENT_PREFIX + event.idempotencyid},
        values=values | unchanged | {":state": state, ":entry": entry, ":one": 1},
    )
    emitted = [RideEvent.of(fact, source=SOURCE, time=now, cause=event) for fact in facts]
    return [update, *(outbox.put(each, now) for each in emitted)]


def still_open(order_id: str, now: datetime) -> tuple[str, dict[str, str]]:
    """Return the assignments that open an item unless it is open, and their values."""
    assignments = []
    values = {}
    for name, value in opened(order_id, now).items():
        assignments.append(f"{name} = if_not_exists({name}, :{name})")
        values[f":{name}"] = value
    return ", ".join(assignments), values
