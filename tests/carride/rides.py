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


def booked(
    order_id: str = "order_01", *, price: int = 550, pickup: str = "sector_01", destination: str = "sector_03"
) -> Ride:
    """Return a ride that was just requested."""
    return rides.request(
        order_id=order_id, customer_id="customer_a", pickup=pickup, destination=destination, passengers=2, price=price
    )


class Life:
    """What can happen to one ride."""

    def __init__(self, order_id: str = "order_01", *, pickup: str = "sector_01", price: int = 1250) -> None:
        requested = booked(order_id, price=price, pickup=pickup, destination="sector_64")
        accepted = rides.accept(requested)
        started = rides.start(accepted)
        self.order_id = order_id
        self.created = CarRideCreated.of(requested)
        self.accepted = CarRideAccepted.of(accepted)
        self.started = CarRideStarted.of(started)
        self.completed = CarRideCompleted.of(rides.complete(started))
        self.cancelled = CarRideCancelled.of(rides.cancel(accepted), reason="waited too long")
        self.assigned = CarAssigned.of(accepted, car_id="car_01")
        self.no_car = NoCarAvailable.of(accepted)
        self.declined = PaymentDeclined.of(accepted, amount=price, reason="insufficient funds")
        self.overdue = CarRideOverdue.of(started, outcome="cancelled")
        self.overdue_driven = CarRideOverdue.of(self.completed, outcome="completed")


def every_fact() -> list[Fact]:
    """Return one fact of every type."""
    life = Life()
    redirected = rides.change_destination(life.accepted, "sector_09", 900)
    paid = {"payment_id": "pay_1", "amount": 1250}
    return [
        *(life.created, life.accepted, life.started, life.completed, life.cancelled),
        CarRideDestinationChanged.of(redirected, previous_destination="sector_64", previous_price=1250),
        *(life.assigned, life.no_car, life.declined, life.overdue),
        CarReleased.of(life.completed, car_id="car_01"),
        PaymentAuthorized.of(life.accepted, **paid),
        PaymentCaptured.of(life.completed, **paid),
        PaymentRefunded.of(life.completed, **paid),
    ]


def nested(value: Any, levels: int) -> Any:
    """Return a value inside so many lists."""
    for _ in range(levels):
        value = [value]
    return value


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
