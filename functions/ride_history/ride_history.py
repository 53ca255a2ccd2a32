"""The read model of every ride.

Each event of the bus takes effect in it once, whatever order they arrive in.
"""

from collections.abc import Callable
from typing import Any

from carride.consumer import ConsumerSettings, ride_consumer
from carride.events import RideEvent
from carride.history import POLICY, kept
from carride.settings import from_environment
from carride_idempotency import Keep, Operation


def make_handler(settings: ConsumerSettings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    consumer = ride_consumer("ride-history", settings, POLICY)

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(Keep(kept(event)))

    return handler


handler = make_handler(from_environment(ConsumerSettings))
