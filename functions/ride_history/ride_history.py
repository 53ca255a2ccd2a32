"""The read model of every ride: each event of the bus takes effect in it once, whatever order they arrive in."""

from collections.abc import Callable
from typing import Any

from carride.consumer import ConsumerSettings, ride_consumer
from carride.events import RideEvent
from carride.history import kept
from carride.settings import from_environment
from carride_idempotency import Keep, Operation, Policy


def make_handler(settings: ConsumerSettings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    # The one effect is in the record itself, so it needs no claim before it, and one write makes
    # both.
    consumer = ride_consumer("ride-history", settings, Policy(atomic=True))

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(Keep(kept(event)))

    return handler


handler = make_handler(from_environment(ConsumerSettings))
