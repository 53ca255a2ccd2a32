"""Rides, facts and events for tests."""

from datetime import UTC, datetime
from typing import Any, Final

from carride import facts
from carride import ride as rides
from carride.bus_entry import BusEntry
from carride.events import SOURCE, RideEvent
from carride.facts import Fact
from carride.ride import Ride

NOW: Final = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


def booked(
    order_id: str = "order_01",
    *,
    price: int = 550,
    pickup: str = "sector_01",
    destination: str = "sector_03",
    customer: str = "customer_a",
) -> Ride:
    """Return a ride that was just requested."""
    return rides.request(
        order_id=order_id,
        customer_id=customer,
        pickup=pickup,
        destination=destination,
        passengers=2,
        price=price,
    )


class Life:
    """What can happen to one ride."""

    def __init__(
        self,
        order_id: str = "order_01",
        *,
        pickup: str = "sector_01",
        destination: str = "sector_64",
        price: int = 1250,
        customer: str = "customer_a",
    ) -> None:
        requested = booked(
            order_id, price=price, pickup=pickup, destination=destination, customer=customer
        )
        accepted = rides.accept(requested)
        started = rides.start(accepted)
        self.order_id = order_id
        self.created = facts.CarRideCreated.of(requested)
        self.accepted = facts.CarRideAccepted.of(accepted)
        self.started = facts.CarRideStarted.of(started)
        self.completed = facts.CarRideCompleted.of(rides.complete(started))
        self.cancelled = facts.CarRideCancelled.of(rides.cancel(accepted), reason="waited too long")
        self.assigned = facts.CarAssigned.of(accepted, car_id="car_01")
        self.no_car = facts.NoCarAvailable.of(accepted)
        self.declined = facts.PaymentDeclined.of(
            accepted, amount=price, reason="insufficient funds"
        )
        self.overdue = facts.CarRideOverdue.of(started, outcome="cancelled")
        self.overdue_unserved = facts.CarRideOverdue.of(self.completed, outcome="cancelled")
        self.overdue_driven = facts.CarRideOverdue.of(self.completed, outcome="completed")


def every_fact() -> list[Fact]:
    """Return one fact of every type."""
    life = Life()
    redirected = rides.change_destination(life.accepted, "sector_09", 900)
    paid = {"payment_id": "pay_1", "amount": 1250}
    return [
        *(life.created, life.accepted, life.started, life.completed, life.cancelled),
        facts.CarRideDestinationChanged.of(
            redirected, previous_destination="sector_64", previous_price=1250
        ),
        *(life.assigned, life.no_car, life.declined, life.overdue),
        facts.CarReleased.of(life.completed, car_id="car_01"),
        facts.PaymentAuthorized.of(life.accepted, **paid),
        facts.PaymentCaptured.of(life.completed, **paid),
        facts.PaymentRefunded.of(life.completed, **paid),
    ]


def nested(value: Any, levels: int) -> Any:
    """Return a value inside so many lists."""
    for _ in range(levels):
        value = [value]
    return value


def event(fact: Fact | None = None, **changes: Any) -> RideEvent:
    """Return an event, of a ride that was just requested unless a fact is given."""
    return RideEvent.of(
        fact or facts.CarRideCreated.of(booked()), source=SOURCE, time=NOW, **changes
    )


def entry(order_id: str = "order_01", size: int | None = None) -> BusEntry:
    """Return an entry, of this size in bytes if one is given."""
    made = BusEntry.of(event(facts.CarRideCreated.of(booked(order_id))))
    if size is None:
        return made
    padding = size - made.size - len(',"note":""')
    return BusEntry(
        source=made.source, time=made.time, detail=f'{made.detail[:-1]},"note":"{"x" * padding}"}}'
    )
