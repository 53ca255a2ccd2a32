"""The read model of every ride: each event of the bus takes effect in it once, whatever order they arrive in."""

from collections.abc import Callable
from typing import Any

import timeline
from carride.consumer import ConsumerSettings, ride_consumer
from carride.events import RideEvent
from carride.settings import from_environment
from idempotency import Operation, Policy


class Settings(ConsumerSettings, frozen=True, kw_only=True):
    """The function's environment."""

    ride_table: str


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    # The one effect is registered, so it needs no claim before it: a single transaction writes it with the record.
    consumer = ride_consumer("ride-history", settings, Policy(atomic=True))

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(timeline.effect(settings.ride_table, event))

    return handler


handler = make_handler(from_environment(Settings))
