"""The read model of every ride: each event of the bus takes effect in it once, whatever order they arrive in."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

import timeline
from carride.events import RideEvent, parse_event
from carride.faults import Faults
from carride.settings import from_environment
from carride.telemetry import observe
from idempotency import Consumer, DynamoDBStore, Operation, Policy, SqsDeadLetters


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    idempotency_table: str
    ride_table: str
    dead_letter_queue_url: str
    faults: Literal["allowed", "refused"] = "refused"


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    faults = Faults(allowed=settings.faults == "allowed")
    consumer = Consumer(
        "ride-history",
        DynamoDBStore(settings.idempotency_table),
        parse=parse_event,
        key=lambda event: event.idempotencyid,
        payload=lambda event: event.payload,
        expires=lambda event: event.expirytime,
        # All effects are in the commit, so Lambda's retry need not wait until the lease of a killed attempt is over.
        policy=Policy(same_delivery_takes_over=True),
        dead_letters=SqsDeadLetters(settings.dead_letter_queue_url),
        observe=observe,
    )

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(timeline.effect(settings.ride_table, event))
        faults.strike(event, operation.attempt)

    return handler


handler = make_handler(from_environment(Settings))
