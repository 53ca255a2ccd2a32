"""Assigns the nearest free car to every ride that is accepted, and frees it when the ride is over or called off."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct

import fleet
from assignments import Reader, Tables, effects
from carride.clients import dynamodb_client
from carride.events import RideEvent, parse_event
from carride.faults import Faults
from carride.settings import from_environment
from carride.telemetry import observe
from idempotency import Consumer, DynamoDBStore, Operation, Policy, SqsDeadLetters

POLICY = Policy(
    # All effects are in the commit: a message that comes again need not wait until the lease of a killed attempt is
    # over, and a decision on what has changed meanwhile (another ride took the car) is simply made again.
    same_delivery_takes_over=True,
    conflict_reruns=20,
)
"""Claimed, not atomic: a message that kills its process has to be counted by its record. Without a claim nobody would
know which one of the batch it was, and it would use up the receives of its neighbours."""


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    idempotency_table: str
    assignment_table: str
    car_table: str
    outbox_table: str
    dead_letter_queue_url: str
    aws_region: str
    faults: Literal["allowed", "refused"] = "refused"


def make_handler(settings: Settings) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    faults = Faults(allowed=settings.faults == "allowed")
    tables = Tables(settings.assignment_table, settings.car_table, settings.outbox_table)
    reader = Reader(tables, dynamodb_client())
    consumer = Consumer(
        "dispatch",
        DynamoDBStore(settings.idempotency_table),
        parse=parse_event,
        key=lambda event: event.idempotencyid,
        payload=lambda event: event.payload,
        expires=lambda event: event.expirytime,
        policy=POLICY,
        dead_letters=SqsDeadLetters(settings.dead_letter_queue_url),
        observe=observe,
    )

    @consumer.batch_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        seen = reader.ride(event.subject)
        car = None
        if fleet.wants_car(seen.assignment, event.data):
            car = fleet.nearest(event.data.pickup, event.subject, reader.free_cars)
        decision = fleet.decide(seen.assignment, event.data, car)
        operation.write(*effects(tables, event, seen, decision, region=settings.aws_region, now=datetime.now(UTC)))
        faults.strike(event, operation.attempt)

    return handler


handler = make_handler(from_environment(Settings))
