"""API, ride history, dispatch, payment and reconciler on one in-process DynamoDB, and a bus between them."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zlib import crc32

import boto3
import pytest
from moto import mock_aws

import carride_api
import dispatch
import payment
import reconciler
import ride_history
from api.service import Settings
from carride.facts import Fact
from carride.overdue import Stage
from idempotency.clock import epoch_ms
from tests.carride.pipe import piped
from tests.functions import api_world
from tests.functions.gateways import FakeGateway
from tests.functions.saga import client, create_table, event, invocation, items

CONSUMERS: Final = ("ride_history", "dispatch", "payment")
OPEN: Final = ("openShard", "openSince")
TABLES: Final = {
    "idempotency": "idempotencyKey",
    "outbox": "id",
    "rides": "orderID",
}
type Lost = Callable[[str, str], bool]
"""Whether a consumer never gets an event, by the consumer's name and the event's type."""


class WholeSaga:
    """The handlers, and what they leave behind."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.dynamodb, self.gateway, self.hours = client(), gateway, 0.0
        for table, key in TABLES.items():
            create_table(self.dynamodb, table, key)
        create_table(self.dynamodb, "cars", "zone", "carID")
        for table in ("bookings", "assignments", "payments"):
            create_table(self.dynamodb, table, "orderID", index=OPEN)
        queue = boto3.client("sqs").create_queue(QueueName="Dlq")["QueueUrl"]
        saga: dict[str, Any] = {
            "idempotency_store": "dynamodb:idempotency",
            "outbox_table": "outbox",
            "dead_letter_queue_url": queue,
            "aws_region": "us-east-1",
        }
        names: dict[str, Any] = {"booking_table": "bookings", "outbox_table": "outbox", "ride_table": "rides"}
        self._handlers: dict[str, Any] = {
            "api": carride_api.make_handler(
                Settings(
                    aws_region="us-east-1",
                    idempotency_table="idempotency",
                    simulator_function_name="simulator",
                    stage="local",
                    **names,
                )
            ),
            "ride_history": ride_history.make_handler(
                ride_history.Settings(
                    idempotency_store="dynamodb:idempotency", ride_table="rides", dead_letter_queue_url=queue
                )
            ),
            "dispatch": dispatch.make_handler(
                dispatch.Settings(assignment_table="assignments", car_table="cars", **saga)
            ),
            "payment": payment.make_handler(
                payment.Settings(payment_table="payments", payment_gateway_url="http://127.0.0.1:9", **saga), gateway
            ),
            "reconciler": reconciler.make_handler(
                reconciler.Settings(
                    aws_region="us-east-1",
                    idempotency_table="idempotency",
                    assignment_table="assignments",
                    payment_table="payments",
                    **names,
                )
            ),
        }
        self._carried: set[str] = set()

    def park(self, car_id: str = "car_01", sector: str = "sector_01") -> None:
        """Add a free car."""
        item = {"zone": {"S": "zone_01"}, "carID": {"S": car_id}, "sector": {"S": sector}}
        self.dynamodb.put_item(TableName="cars", Item=item)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send the API a request, which it does not refuse, and return the body of the answer."""
        request = api_world.request(method, path, body, key=f"key-{crc32(json.dumps([path, body]).encode())}")
        answer = api_world.Answer.of(self._handlers["api"](request, invocation()))
        assert answer.status in {200, 201}, answer
        return answer.body

    def book(self, *actions: str, name: str = "customer_a") -> str:
        """Book a ride, have these things become of it, and return its id."""
        order: str = self.ask("POST", "/carrides", api_world.BOOKING | {"customerID": name})["orderID"]
        for version, action in enumerate(actions, 1):
            self.change(order, action, version)
        return order

    def change(self, order_id: str, action: str, version: int) -> Any:
        """Change a ride as the API's clients do."""
        reason = {"reason": "changed my mind"} if action == "cancel" else {}
        return self.ask("PUT", f"/carrides/{order_id}", {"action": action, "version": version, **reason})

    def hear(self, *facts: Fact, lost: Lost = lambda *_: False) -> None:
        """Put facts on the bus that no booking knows of, one after the other."""
        for fact in facts:
            self._deliver(event(fact)["detail"], lost)
            self.flow(lost)

    def flow(self, lost: Lost = lambda *_: False) -> None:
        """Carry events from the outbox to the consumers until there are no more."""
        while new := [item for item in items(self.dynamodb, "outbox") if item["id"] not in self._carried]:
            for item in sorted(new, key=lambda item: (item["subject"], item["sequence"], item["id"])):
                self._carried.add(item["id"])
                self._deliver(piped(item), lost)

    def _deliver(self, detail: dict[str, Any], lost: Lost) -> None:
        envelope = {"version": "0", "account": "1", "region": "us-east-1", "resources": []}
        message = envelope | {
            "id": f"event-{detail['id']}",
            "source": detail["source"],
            "detail-type": "CarRideEvent",
            "time": datetime.now(UTC).isoformat(),
            "detail": detail,
        }
        for consumer in CONSUMERS:
            if lost(consumer, detail["type"]):
                continue
            raw = message
            if consumer == "dispatch":
                sent = {"SentTimestamp": str(epoch_ms()), "ApproximateReceiveCount": "1"}
                raw = {"Records": [{"messageId": message["id"], "body": json.dumps(message), "attributes": sent}]}
            self._handlers[consumer](raw, invocation(timeout_s=180))

    def reconcile(self, *, hours: float = 5.0, lost: Lost = lambda *_: False, timeout_s: float = 120) -> dict[str, int]:
        """Run the reconciler that much later than the last time, and have its events run their course."""
        self.hours += hours
        tick = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=self.hours)
        return self.tick(tick, lost=lost, timeout_s=timeout_s)

    def tick(self, time: datetime, *, lost: Lost = lambda *_: False, timeout_s: float = 120) -> dict[str, int]:
        """Run the reconciler at a time."""
        try:
            counts: dict[str, int] = self._handlers["reconciler"](
                {"time": time.isoformat()}, invocation(timeout_s=timeout_s)
            )
        finally:
            self.flow(lost)
        return counts

    def item(self, table: str, order_id: str) -> dict[str, Any]:
        """Return a ride's item; empty where there is none."""
        return next((item for item in items(self.dynamodb, table) if item["orderID"] == order_id), {})

    def open(self, stage: Stage | str = "") -> set[str]:
        """Return the rides that need something, in any table."""
        tables = ("bookings", "assignments", "payments")
        found = [item for table in tables for item in items(self.dynamodb, table)]
        return {item["orderID"] for item in found if "openSince" in item and item["openShard"].startswith(stage)}

    def cars(self) -> dict[str, str | None]:
        """Return the ride of each car."""
        return {item["carID"]: item.get("rideID") for item in items(self.dynamodb, "cars")}

    def emitted(self) -> list[str]:
        """Return the types of all events in the outbox."""
        return sorted(item["type"] for item in items(self.dynamodb, "outbox"))


@contextmanager
def whole_saga(gateway: FakeGateway | None = None) -> Iterator[WholeSaga]:
    """Yield the saga over empty tables. One delivery at a time: moto's transactions are not isolated."""
    with pytest.MonkeyPatch.context() as patched, mock_aws():
        patched.setattr(dispatch, "POLICY", dataclasses.replace(dispatch.POLICY, concurrency=1))
        yield WholeSaga(gateway or FakeGateway())
