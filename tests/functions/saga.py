"""One ride's facts and events, and tables, for tests."""

from datetime import UTC, datetime
from typing import Any, Final

from carride import ride as rides
from carride.events import RideEvent
from carride.facts import (
    CarAssigned,
    CarRideAccepted,
    CarRideCancelled,
    CarRideCompleted,
    CarRideCreated,
    CarRideOverdue,
    CarRideStarted,
    Fact,
    NoCarAvailable,
    PaymentDeclined,
)
from idempotency import marshalling

NOW: Final = datetime(2026, 11, 21, 8, tzinfo=UTC)


class Life:
    """What can happen to one ride."""

    def __init__(self, order_id: str = "order_01", *, pickup: str = "sector_01", price: int = 1250) -> None:
        requested = rides.request(
            order_id=order_id,
            customer_id="customer_a",
            pickup=pickup,
            destination="sector_64",
            passengers=2,
            price=price,
        )
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


def event_of(fact: Fact, **attributes: Any) -> RideEvent:
    """Return the event of a fact."""
    return RideEvent.of(fact, source="acr.com.car-ride", time=NOW, **attributes)


def create_table(client: Any, name: str, *keys: str) -> None:
    """Create an empty table whose partition key, and sort key, are strings."""
    kinds = zip(keys, ("HASH", "RANGE"), strict=False)
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in kinds],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        BillingMode="PAY_PER_REQUEST",
    )


def items(client: Any, table: str) -> list[dict[str, Any]]:
    """Return everything that a table holds, as Python values."""
    return [marshalling.values(item) for item in client.scan(TableName=table)["Items"]]
