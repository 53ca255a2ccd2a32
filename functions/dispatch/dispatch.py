"""Assigns the nearest free car to every ride that is accepted, and frees it when the ride is over or called off."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import assignments
from assignment_table import Reader, Tables, effects
from carride.consumer import SagaSettings, ride_consumer
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.facts import CarReleased, NoCarAvailable
from carride.settings import from_environment
from carride.telemetry import count, logger
from carride_idempotency import Operation
from carride_idempotency.stores.default_transport import dynamodb_transport


class Settings(SagaSettings, frozen=True, kw_only=True):
    """The function's environment."""

    assignment_table: str
    car_table: str


def make_handler(
    settings: Settings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Callable[[dict[str, Any], Any], Any]:
    """Return the Lambda handler."""
    tables = Tables(settings.assignment_table, settings.car_table)
    outbox = settings.outbox()
    transport = dynamodb_transport()
    reader = Reader(tables, DynamoDB(transport))
    consumer = ride_consumer("dispatch", settings, assignments.POLICY, transport)

    @consumer.batch_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        seen, skipped, car, why = reader.ride(event.subject), list[str](), None, ""
        if assignments.wants_car(seen.assignment, event.data):
            pickup = event.data.pickup
            car = assignments.nearest(
                pickup, event.subject, lambda spot, on: reader.free_car(spot, on, skipped)
            )
            why = "" if car else assignments.reason(pickup, reader.has_fleet)
        decision = assignments.decide(seen.assignment, event.data, car)
        operation.write(*effects(tables, event, seen, decision, why=why, outbox=outbox, now=now()))
        if NoCarAvailable in decision.facts:
            report(
                "EmptyFleet" if why == assignments.NO_FLEET else "NoCarAvailable",
                1,
                ride=event.subject,
            )
        if skipped:
            report("CarRowSkipped", len(skipped), rows=skipped)
        if CarReleased in decision.facts and not seen.holds:
            report("CarNotHeld", 1, ride=event.subject)

    return handler


def report(metric: str, number: int, **found: object) -> None:
    """Count and log what is wrong with the fleet, which no event is to be given up for."""
    count("dispatch", **{metric: number})
    logger.warning(metric, extra=found)


handler = make_handler(from_environment(Settings))
