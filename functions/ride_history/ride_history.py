"""The read model of every ride: each event of the bus takes effect in it once, whatever order they arrive in.

Events of a ride arrive in any order, often together. Setting an entry of one's own and adding 1 to a counter commute:
each event is applied by one write that neither reads first nor waits for another. Readers derive the state: it is that
of the entry with the highest sequence.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from carride.consumer import ConsumerSettings, ride_consumer
from carride.dedup import attribute_of
from carride.events import RideEvent
from carride.history import TimelineEntry, item_of
from carride.settings import from_environment
from idempotency import Operation, Policy, Update


class Settings(ConsumerSettings, frozen=True, kw_only=True):
    """The function's environment."""

    ride_table: str


def effect(table: str, event: RideEvent) -> Update:
    """Return the write by which an event takes effect in an item of its ride: one entry, and 1 for the counter."""
    data = msgspec.to_builtins(event.data)
    entry = TimelineEntry(sequence=int(event.sequence), type=event.type, time=event.time.isoformat(), data=data)
    return Update(
        table,
        {"orderID": item_of(event)},
        "SET #entry = :entry ADD effects :one",
        names={"#entry": attribute_of(event)},
        values={":entry": msgspec.to_builtins(entry), ":one": 1},
    )


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    # The one effect is registered, so it needs no claim before it: a single transaction writes it with the record.
    consumer = ride_consumer("ride-history", settings, Policy(atomic=True))

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(effect(settings.ride_table, event))

    return handler


handler = make_handler(from_environment(Settings))
