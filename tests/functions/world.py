"""The functions over one DynamoDB, gateway and clock in this process, and a bus between them."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, tzinfo
from functools import cached_property, partial
from typing import Any, Final
from zlib import crc32

import pytest

import assignment_table
import assignments
import carride.consumer
import carride_api
import dispatch
import payment
import payments
import reconciler
import ride_history
from api.service import Settings
from carride.dynamodb import DynamoDB
from carride.events import SOURCE, RideEvent, parse_event
from carride.facts import FACTS, Fact
from carride.history import merged
from carride.overdue import LIMIT, Stage
from idempotency import Consumer, DynamoDBStore, lambda_deadline, marshalling
from idempotency.clock import epoch_ms
from idempotency.dead_letters import DeadLetter
from idempotency.observation import Observation
from idempotency.testing import DeadLetterBox, Invocation, ManualClock
from tests.carride.pipe import piped
from tests.functions import api_world
from tests.functions.gateways import FakeGateway
from tests.functions.saga import NOW
from tests.idempotency.fake_dynamodb import FakeDynamoDB, Item

CONSUMED: Final[Mapping[str, Collection[type]]] = {
    "ride-history": frozenset(FACTS.values()),
    "dispatch": assignments.CONSUMED,
    "payment": payments.CONSUMED,
}
"""The facts that the rule of each consumer passes on."""
TABLES: Final = {
    "idempotency": ("idempotencyKey",),
    "outbox": ("id",),
    "cars": ("zone", "carID"),
    **dict.fromkeys(("rides", "bookings", "assignments", "payments"), ("orderID",)),
}
_SHARED: Final[dict[str, Any]] = {"idempotency_store": "dynamodb:idempotency", "dead_letter_queue_url": "queue"}
_EMITTING: Final[dict[str, Any]] = {"outbox_table": "outbox", "aws_region": "us-east-1"}
_TABLES: Final[dict[str, Any]] = {
    "idempotency_table": "idempotency",
    "booking_table": "bookings",
    "ride_table": "rides",
    **_EMITTING,
}

type Lost = Callable[[str, str], bool]
"""Whether a consumer never gets an event, by the consumer's name and the event's type."""


class Inline:
    """Runs a batch one after the other; nothing takes long enough for a heartbeat."""

    def run_all(self, tasks: Any, limit: int) -> None:
        """Run every task."""
        for task in tasks:
            task()

    def repeat(self, beat: object, interval_s: float) -> Any:
        """Send no heartbeats."""
        return nullcontext()


class World:
    """The functions, everything around them, and what is on its way between them.

    Args:
        gateway: the payment gateway; by default one that declines nobody.

    Attributes:
        observations: what the consumers have observed.
        concurrency: how the messages of a batch run; None: in threads, as deployed.
    """

    concurrency: Inline | None = Inline()

    def __init__(self, gateway: FakeGateway | None = None) -> None:
        self.clock = ManualClock(int(NOW.timestamp() * 1000))
        self.dynamodb = FakeDynamoDB(TABLES, self.clock)
        self.dynamodb.inserted = self._inserted
        self.gateway = gateway or FakeGateway()
        self._dead_letters = DeadLetterBox()
        self.observations = list[Observation]()
        self._on_the_bus: list[Mapping[str, Any]] = []
        self._requests = iter(range(1_000_000))

    def now(self, zone: tzinfo = UTC) -> datetime:
        """Return the present."""
        return datetime.fromtimestamp(self.clock() / 1000, zone)

    @cached_property
    def handlers(self) -> dict[str, Any]:
        """The handlers of the consumers and of the reconciler."""
        timed: dict[str, Any] = {"clock": self.clock, "sleep": self.clock.sleep, "jitter": lambda: 0.5}
        store = DynamoDBStore("idempotency", transport=self.dynamodb, **timed)
        with pytest.MonkeyPatch.context() as patch:
            for module in (carride.consumer, reconciler):
                patch.setattr(module, "Consumer", partial(Consumer, concurrency=self.concurrency, **timed))
                patch.setattr(module, "open_store", lambda _, **_transport: store)
            for module in (dispatch, payment):
                patch.setattr(module, "dynamodb_transport", lambda: self.dynamodb)
                patch.setattr(module, "DynamoDB", lambda transport: DynamoDB(transport, sleep=self.clock.sleep))
            patch.setattr(reconciler, "dynamodb_client", lambda: self.dynamodb)
            patch.setattr(carride.consumer, "SqsDeadLetters", lambda _: self._dead_letters)
            patch.setattr(carride.consumer, "observe", self.observations.append)
            return {
                "ride-history": ride_history.make_handler(ride_history.Settings(ride_table="rides", **_SHARED)),
                "dispatch": dispatch.make_handler(
                    dispatch.Settings(assignment_table="assignments", car_table="cars", **_SHARED, **_EMITTING),
                    now=self.now,
                ),
                "payment": payment.make_handler(
                    payment.Settings(payment_table="payments", payment_gateway_url="http://-", **_SHARED, **_EMITTING),
                    self.gateway,
                    now=self.now,
                ),
                "reconciler": reconciler.make_handler(
                    reconciler.Settings(assignment_table="assignments", payment_table="payments", **_TABLES)
                ),
            }

    # ── Deliveries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, consumer: str, event: Mapping[str, Any], *, attempt: int = 1, delivery: str = "") -> str:
        """Deliver an EventBridge event to a consumer, and return the outcome, which dispatch does not tell.

        A delivery is its event's own unless it is given an id.
        """
        raw = dict(event) | {"time": self.now().isoformat()}
        raw = self.batch(raw, attempt=attempt) if consumer == "dispatch" else raw
        context = Invocation(self.clock, request_id=delivery or event["id"], timeout_s=180)
        outcome: str = self.handlers[consumer](raw, context).get("outcome", "")
        return outcome

    def batch(self, *events: Mapping[str, Any], attempt: int = 1) -> dict[str, Any]:
        """Return events as a batch of the queue of dispatch."""
        attributes = {"SentTimestamp": str(self.clock()), "ApproximateReceiveCount": str(attempt)}
        messages = [{"messageId": each["id"], "body": json.dumps(each), "attributes": attributes} for each in events]
        return {"Records": messages}

    def envelope(self, fact: Fact | RideEvent, **attributes: Any) -> dict[str, Any]:
        """Return the EventBridge event of a fact."""
        event = fact if isinstance(fact, RideEvent) else RideEvent.of(fact, source=SOURCE, time=NOW, **attributes)
        names = {"source": event.source, "detail-type": "CarRideEvent", "time": self.now().isoformat()}
        return {"id": f"delivery-of-{event.id}", "region": "us-east-1", **names, "detail": event.to_detail()}

    def dead_letters(self) -> list[DeadLetter]:
        """Return what was given up since the last time."""
        letters, self._dead_letters.letters = self._dead_letters.letters, []
        return letters

    # ── The bus ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _inserted(self, table: str, item: Item) -> None:
        if table == "outbox":
            self.put_on_the_bus(piped(marshalling.values(item)))

    def put_on_the_bus(self, detail: Mapping[str, Any]) -> None:
        """Have an event carried to its consumers by the next `flow`."""
        self._on_the_bus.append(detail)

    def publish(self, *facts: Fact, lost: Lost = lambda *_: False) -> None:
        """Publish facts that no booking knows of, each when the one before has run its course."""
        for fact in facts:
            self.put_on_the_bus(RideEvent.of(fact, source=SOURCE, time=self.now()).to_detail())
            self.flow(lost)

    def flow(self, lost: Lost = lambda *_: False) -> None:
        """Carry events to the consumers until there are no more."""
        while self._on_the_bus:
            detail = self._on_the_bus.pop(0)
            for consumer, consumed in CONSUMED.items():
                if FACTS[detail["type"]] in consumed and not lost(consumer, detail["type"]):
                    self.deliver(consumer, {"id": f"{detail['id']}", "source": detail["source"], "detail": detail})

    # ── Bookings ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _api(self) -> Any:
        settings = Settings(simulator_function_name="simulator", stage="local", **_TABLES)
        return carride_api.make_handler(settings, dynamodb=self.dynamodb, transport=self.dynamodb, now=self.now)  # type: ignore[arg-type] # a fake client

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send the API a request, which it does not refuse, and return the body of the answer."""
        request = api_world.request(method, path, body, key=f"key-{crc32(json.dumps([path, body]).encode())}")
        answer = api_world.Answer.of(self._api(request, Invocation(epoch_ms)))
        assert answer.status in {200, 201}, answer
        return answer.body

    def book(self, *actions: str, name: str = "customer_a") -> str:
        """Book a ride, change it so, and return its id."""
        order: str = self.ask("POST", "/carrides", api_world.BOOKING | {"customerID": name})["orderID"]
        for version, action in enumerate(actions, 1):
            self.change(order, action, version)
        return order

    def change(self, order_id: str, action: str, version: int) -> Any:
        """Change a ride as the API's clients do."""
        reason = {"reason": "changed my mind"} if action == "cancel" else {}
        return self.ask("PUT", f"/carrides/{order_id}", {"action": action, "version": version, **reason})

    def reconcile(self, *, lost: Lost = lambda *_: False, timeout_s: float = 120) -> dict[str, int]:
        """Let the clock pass the deadline of every open ride, run the reconciler, and have its events delivered."""
        self.clock.advance(LIMIT.total_seconds() + 60)
        return self.tick(lost=lost, timeout_s=timeout_s)

    def tick(self, *, lost: Lost = lambda *_: False, timeout_s: float = 120) -> dict[str, int]:
        """Run the reconciler now, and have its events delivered."""
        context = Invocation(self.clock, request_id=f"tick-{next(self._requests)}", timeout_s=timeout_s)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reconciler, "lambda_deadline", partial(lambda_deadline, clock=self.clock))
                counts: dict[str, int] = self.handlers["reconciler"]({"time": self.now().isoformat()}, context)
        finally:
            self.flow(lost)
        return counts

    # ── The tables ────────────────────────────────────────────────────────────────────────────────────────────────────

    def park(self, *car_ids: str, sector: str = "sector_01", ride: str | None = None) -> None:
        """Add cars: free ones, or ones with a ride."""
        for car_id in car_ids:
            more = {"rideID": ride} if ride else assignment_table.free(assignments.Car(car_id, sector))
            self.put("cars", {"zone": assignments.zone(sector), "carID": car_id, "sector": sector, **more})

    def put(self, table: str, item: Mapping[str, object]) -> None:
        """Write an item unconditionally."""
        self.dynamodb.put_item(TableName=table, Item=marshalling.item(item))

    def items(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield every item of a table, as Python values; one for each ride."""
        items = map(marshalling.values, self.dynamodb.all(table))
        return iter(merged(items)) if table == "rides" else items

    def item(self, table: str, order_id: str = "order_01") -> dict[str, Any]:
        """Return a ride's item; empty where there is none."""
        return next((item for item in self.items(table) if item["orderID"] == order_id), {})

    def state(self, table: str, order_id: str = "order_01") -> object:
        """Return the state of a ride's item."""
        return self.item(table, order_id).get("state")

    def open(self, stage: Stage | str = "") -> set[str]:
        """Return the rides that need something, in any table."""
        found = [item for table in ("bookings", "assignments", "payments") for item in self.items(table)]
        return {item["orderID"] for item in found if "openSince" in item and item["openShard"].startswith(stage)}

    def cars(self) -> dict[str, str | None]:
        """Return the ride of each car."""
        return {item["carID"]: item.get("rideID") for item in self.items("cars")}

    def outbox(self) -> list[RideEvent]:
        """Return the events in the outbox, in the order of their commits, as consumers read them."""
        return [parse_event({"detail": piped(item)}) for item in self.items("outbox")]

    def emitted(self) -> list[str]:
        """Return the types of the events in the outbox."""
        return [event.type for event in self.outbox()]
