"""One ride's facts as events, and tables in this process, for the tests of the consumers."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import boto3
import msgspec

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
from carride.overdue import INDEX
from idempotency import marshalling
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation

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


def event(fact: Fact, **attributes: Any) -> dict[str, Any]:
    """Return the EventBridge event of a fact."""
    detail = event_of(fact, **attributes).to_detail()
    return {
        "version": "0",
        "account": "123456789012",
        "region": "us-east-1",
        "resources": [],
        "id": f"event-{fact.version}-{type(fact).__name__}",
        "source": "acr.com.car-ride",
        "detail-type": "CarRideEvent",
        "time": datetime.now(UTC).isoformat(),
        "detail": detail,
    }


def invocation(request_id: str = "request-1", timeout_s: float = 30.0) -> Invocation:
    """Return the context of an invocation."""
    return Invocation(epoch_ms, request_id=request_id, timeout_s=timeout_s)


def create_table(client: Any, name: str, *keys: str, index: Sequence[str] = ()) -> None:
    """Create an empty table whose partition key, and sort key, are strings; ``index`` are the keys of byOpenSince."""
    indexes = [{"IndexName": INDEX, "KeySchema": _schema(index), "Projection": {"ProjectionType": "KEYS_ONLY"}}]
    client.create_table(
        TableName=name,
        KeySchema=_schema(keys),
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in (*keys, *index)],
        BillingMode="PAY_PER_REQUEST",
        **({"GlobalSecondaryIndexes": indexes} if index else {}),
    )


def _schema(keys: Sequence[str]) -> list[dict[str, str]]:
    return [{"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)]


def items(client: Any, table: str) -> list[dict[str, Any]]:
    """Return everything that a table holds, as Python values."""
    return [marshalling.values(item) for item in client.scan(TableName=table)["Items"]]


def outbox(client: Any) -> list[Mapping[str, Any]]:
    """Return the events in the outbox, each with its data as a dictionary, by type and ride."""
    found = [item | {"data": msgspec.json.decode(item["data"])} for item in items(client, "outbox")]
    return sorted(found, key=lambda item: (item["subject"], item["type"]))


def client() -> Any:
    """Return a client for the DynamoDB of this process."""
    return boto3.client("dynamodb")
