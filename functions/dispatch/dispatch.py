"""Assigns the nearest free car to every ride that is accepted.

The car is free again when the ride is over or called off.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import assignments
from assignment_table import Reader, Seen, Tables, effects
from assignments import Car, Decision, Spot
from carride.consumer import SagaSettings, ride_events
from carride.dynamodb import DynamoDB
from carride.events import RideEvent
from carride.facts import CarReleased, NoCarAvailable
from carride.settings import from_environment
from carride.telemetry import count
from carride_idempotency import Consumer, Operation, dynamodb_transport, open_store


class CarSearch(NamedTuple):
    """What the search for a free car found."""

    car: Car | None = None
    why_none: str = ""  # why a ride that needs a car gets none
    unreadable_rows: tuple[str, ...] = ()  # rows of the table of cars that hold no car


NO_SEARCH = CarSearch()
"""The ride needs no car."""


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
    store = open_store(settings.idempotency_store, transport=transport)
    consumer = Consumer("dispatch", store, **ride_events(settings, assignments.POLICY))

    @consumer.batch_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        seen = reader.ride(event.subject)
        needs_car = assignments.wants_car(seen.assignment, event.data)
        search = search_car(reader, event) if needs_car else NO_SEARCH
        decision = assignments.decide(seen.assignment, event.data, search.car)
        writes = effects(
            tables, event, seen, decision, why=search.why_none, outbox=outbox, now=now()
        )
        operation.write(*writes)
        report_findings(event.subject, seen, decision, search)

    return handler


def search_car(reader: Reader, event: RideEvent) -> CarSearch:
    """Search the free car whose stand is nearest to the ride's pickup."""
    pickup = event.data.pickup
    unreadable: list[str] = []

    def find(spot: Spot, forward: bool) -> Car | None:
        return reader.free_car(spot, forward, unreadable)

    car = assignments.nearest(pickup, event.subject, find)
    why_none = "" if car else assignments.reason(pickup, reader.has_fleet)
    return CarSearch(car, why_none, tuple(unreadable))


def report_findings(order_id: str, seen: Seen, decision: Decision, search: CarSearch) -> None:
    """Report a ride without a car, a row without a car, and a car that was not the ride's."""
    if NoCarAvailable in decision.facts:
        no_fleet = search.why_none == assignments.NO_FLEET
        report("EmptyFleet" if no_fleet else "NoCarAvailable", 1, ride=order_id)
    if search.unreadable_rows:
        report("CarRowSkipped", len(search.unreadable_rows), rows=list(search.unreadable_rows))
    if CarReleased in decision.facts and not seen.holds:
        report("CarNotHeld", 1, ride=order_id)


def report(metric: str, number: int, **found: object) -> None:
    """Count and log what is wrong with the fleet, which no event is to be given up for."""
    count("dispatch", {metric: number}, metric, warns=True, fields=found)


handler = make_handler(from_environment(Settings))
