"""The read model of every ride: each event of the bus takes effect in it once, whatever order they arrive in."""

from collections.abc import Callable
from typing import Any

import timeline
from carride.consumer import ConsumerSettings, ride_consumer
from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.events import RideEvent
from carride.settings import from_environment
from idempotency import Operation, Policy
from idempotency.stores.transport import ServiceError, dynamodb_transport


class Settings(ConsumerSettings, frozen=True, kw_only=True):
    """The function's environment."""

    ride_table: str


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    # The entry is its own proof that the event took effect: it is written before the record, for half of the units of a
    # transaction. After a crash in between, the next delivery finds the entry and writes the record.
    transport = dynamodb_transport()
    dynamodb = DynamoDB(transport)
    consumer = ride_consumer("ride-history", settings, Policy(atomic=True), transport)

    @consumer.event_handler
    def handler(event: RideEvent, _: Operation) -> None:
        try:
            dynamodb.update_item(**timeline.effect(settings.ride_table, event))
        except ServiceError as refused:
            if refused.code != CONDITION_FAILED:
                raise

    return handler


handler = make_handler(from_environment(Settings))
