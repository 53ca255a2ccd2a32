"""The read model of every ride: each event of the bus takes effect in it once, whatever order they arrive in."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

import timeline
from carride.events import RideEvent, parse_event
from carride.settings import from_environment
from carride.telemetry import labels, observe
from idempotency import Consumer, Operation, Policy, SqsDeadLetters, open_store
from idempotency.policy import DAY


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    idempotency_store: str
    ride_table: str
    dead_letter_queue_url: str
    idempotency_window_days: int = 30


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    consumer = Consumer(
        "ride-history",
        open_store(settings.idempotency_store),
        parse=parse_event,
        key=lambda event: event.idempotencyid,
        payload=lambda event: event.payload,
        expires=lambda event: event.expirytime,
        # The one effect is registered, so it needs no claim before it: a single transaction writes it with the record.
        policy=Policy(atomic=True, window=settings.idempotency_window_days * DAY),
        dead_letters=SqsDeadLetters(settings.dead_letter_queue_url),
        observe=observe,
        labels=labels,
    )

    @consumer.event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        operation.write(timeline.effect(settings.ride_table, event))

    return handler


handler = make_handler(from_environment(Settings))
