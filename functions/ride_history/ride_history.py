"""The read model of every ride.

Each event of the bus takes effect in it once, whatever order they arrive in.
"""

from collections.abc import Callable
from typing import Any

from carride.consumer import ConsumerSettings, ride_events
from carride.events import RideEvent
from carride.history import POLICY, kept
from carride.settings import from_environment
from carride_idempotency import Consumer, Keep, Operation, open_store


def make_handler(settings: ConsumerSettings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    store = open_store(settings.idempotency_store)
    consumer = Consumer("ride-history", store, **ride_events(settings, POLICY))

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(Keep(kept(event)))

    return handler


handler = make_handler(from_environment(ConsumerSettings))
