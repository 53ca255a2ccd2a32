"""Rides, facts and events for tests."""

from datetime import UTC, datetime
from typing import Any, Final

from carride import ride as rides
from carride.entry import BusEntry
from carride.events import SOURCE, RideEvent
from carride.facts import (
    CarAssigned,
    CarReleased,
    CarRideAccepted,
    CarRideCancelled,
    CarRideCompleted,
    CarRideCreated,
    CarRideDestinationChanged,
    CarRideOverdue,
    CarRideStarted,
    Fact,
    NoCarAvailable,
    PaymentAuthorized,
    PaymentCaptured,
    PaymentDeclined,
    PaymentRefunded,
)
from carride.ride import Ride

NOW: Final = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


def booked(order_id: str = "order_01", *, price: int = 550, destination: str = "sector_03") -> Ride:
    """Return a ride that was just requested."""
    return rides.request(
        order_id=order_id,
        customer_id="customer_a",
        pickup="sector_01",
        destination=destination,
        passengers=2,
        price=price,
    )


def every_fact() -> list[Fact]:
    """Return one fact of every type."""
    requested = booked()
    accepted = rides.accept(requested)
    started = rides.start(accepted)
    completed = rides.complete(started)
    redirected = rides.change_destination(accepted, "sector_09", 900)
    return [
        CarRideCreated.of(requested),
        CarRideAccepted.of(accepted),
        CarRideStarted.of(started),
        CarRideCompleted.of(completed),
        CarRideCancelled.of(rides.cancel(accepted), reason="waited too long"),
        CarRideDestinationChanged.of(redirected, previous_destination="sector_03", previous_price=550),
        CarAssigned.of(accepted, car_id="car_17"),
        NoCarAvailable.of(accepted),
        CarReleased.of(completed, car_id="car_17"),
        PaymentAuthorized.of(accepted, payment_id="pay_1", amount=550),
        PaymentDeclined.of(accepted, amount=550, reason="no funds"),
        PaymentCaptured.of(completed, payment_id="pay_1", amount=550),
        PaymentRefunded.of(completed, payment_id="pay_1", amount=550),
        CarRideOverdue.of(completed, outcome="completed"),
    ]


def event(fact: Fact | None = None, **changes: Any) -> RideEvent:
    """Return an event, of a ride that was just requested unless a fact is given."""
    return RideEvent.of(fact or CarRideCreated.of(booked()), source=SOURCE, time=NOW, **changes)


def entry(order_id: str = "order_01", size: int | None = None) -> BusEntry:
    """Return an entry, of this size in bytes if one is given."""
    made = BusEntry.of(event(CarRideCreated.of(booked(order_id))))
    if size is None:
        return made
    padding = size - made.size - len(',"note":""')
    return BusEntry(source=made.source, time=made.time, detail=f'{made.detail[:-1]},"note":"{"x" * padding}"}}')
