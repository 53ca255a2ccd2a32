"""The functions over one DynamoDB, gateway and clock in this process, and a bus between them."""

import itertools
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, tzinfo
from functools import cached_property, partial
from typing import Any, Final, NamedTuple
from uuid import UUID

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
from carride.settings import from_environment
from idempotency import lambda_deadline, marshalling, testing
from idempotency.dead_letters import DeadLetter
from idempotency.observation import Observation
from idempotency.testing import FakeDynamoDB, FaultyTransport, Invocation, ManualClock, eventbridge_event, sqs_event
from idempotency.testing.dynamodb import Item
from idempotency.testing.worlds import NO_FAULT, Fault, Run
from tests.carride.pipe import piped
from tests.functions.api_world import BOOKING, SETTINGS, Answer, request
from tests.functions.gateways import FakeGateway
from tests.functions.saga import NOW

CONSUMED: Final[Mapping[str, Collection[type]]] = {
    "ride-history": frozenset(FACTS.values()),
    "dispatch": assignments.CONSUMED,
    "payment": payments.CONSUMED,
}
"""The facts that the rule of each consumer passes on."""
TABLES: Final = {
    "outbox": ("id",),
    "cars": ("zone", "carID"),
    "points": ("customerID",),
    **dict.fromkeys(("rides", "bookings", "assignments", "payments"), ("orderID",)),
}


class Delivery(NamedTuple):
    """An event on its way to a consumer, or a tick on its way to the reconciler."""

    consumer: str
    event: Mapping[str, Any]
    attempt: int = 1

    @property
    def operation(self) -> tuple[str, str]:
        """What it asks for: the consumer and the fact."""
        return self.consumer, self.event["detail"]["idempotencyid"]


type Lost = Callable[[str, str], bool]
"""Whether a consumer never gets an event, by the consumer's name and the event's type."""


class ApiTransport(FaultyTransport):
    """The API's way to DynamoDB."""

    def __init__(self, dynamodb: FakeDynamoDB) -> None:
        super().__init__(dynamodb)
        self._trips: list[str] = []

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        self._trips.append(f"consistent {operation}" if request.get("ConsistentRead") else operation)
        return super().__call__(operation, request)

    def spent(self) -> list[str]:
        """Return the round trips since the last call."""
        trips, self._trips = self._trips, []
        return trips


class World(testing.World):
    """The functions, everything around them, and what is on its way between them.

    Args:
        gateway: the payment gateway; by default one that declines nobody.

    Attributes:
        observations: what the consumers have observed.
        transport: loses and refuses the API's requests to DynamoDB.
        simulations: what the API has started, unless there is a `simulator_error`.
        waiting: what is on its way to the consumers.
        last: the last invocation.
    """

    timed = (DynamoDB,)

    def __init__(self, gateway: FakeGateway | None = None) -> None:
        indexes = {assignment_table.INDEX: ("freeShard", "freePlace"), "byCustomer": ("customerID", "bookedAt")}
        super().__init__(TABLES, clock=ManualClock(int(NOW.timestamp() * 1000)), indexes=indexes)
        self.dynamodb.inserted = self._inserted
        self.gateway = gateway or FakeGateway()
        self.observations = list[Observation]()
        self.waiting: list[Delivery] = []
        self._numbers = itertools.count()
        self.last: Run | None = None
        self.transport = ApiTransport(self.dynamodb)
        self.simulations: list[Mapping[str, Any]] = []
        self.simulator_error: Exception | None = None

    def now(self, zone: tzinfo = UTC) -> datetime:
        """Return the present."""
        return datetime.fromtimestamp(self.clock() / 1000, zone)

    @cached_property
    def handlers(self) -> dict[str, Any]:
        """The handlers in a process that lives as long as the world."""
        return self.process()

    def process(self, *functions: str) -> dict[str, Any]:
        """Start a process of some functions, or of all, and return their handlers."""
        with self.installed(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(carride.consumer, "observe", self.observations.append)
            make: dict[str, Callable[[], Any]] = {
                "api": self.api,
                "ride-history": lambda: ride_history.make_handler(from_environment(ride_history.Settings)),
                "dispatch": lambda: dispatch.make_handler(from_environment(dispatch.Settings), now=self.now),
                "payment": lambda: payment.make_handler(from_environment(payment.Settings), self.gateway, now=self.now),
                "reconciler": lambda: reconciler.make_handler(from_environment(reconciler.Settings)),
            }
            return {name: make[name]() for name in functions or make}

    def api(self, settings: Settings = SETTINGS) -> Any:
        """Start a process of the API."""
        with self.installed():
            return carride_api.make_handler(
                settings, transport=self.transport, start_simulator=self._start_simulator, now=self.now
            )

    def _start_simulator(self, function: str, spec: Mapping[str, Any]) -> None:
        assert function == SETTINGS.simulator_function_name
        if self.simulator_error:
            raise self.simulator_error
        self.simulations.append(spec)

    # ── Deliveries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def deliver(
        self, consumer: str, event: Mapping[str, Any], *, attempt: int = 1, delivery: str = "", fault: Fault = NO_FAULT
    ) -> str:
        """Deliver an EventBridge event to a consumer, and return the outcome, which dispatch does not tell.

        A delivery is its event's own unless it is given an id.
        """
        raw = dict(event) | {"time": self.now().isoformat()}
        raw = self.batch(raw, attempt=attempt) if consumer == "dispatch" else raw
        outcome: str = self.run(consumer, raw, delivery or event["id"], 180, fault).get("outcome", "")
        return outcome

    def run(self, function: str, event: object, delivery: str, timeout_s: float, fault: Fault = NO_FAULT) -> Any:
        """Invoke a function, and return its answer, or raise what it raised."""
        self.last = self.invoke(self.handlers[function], event, delivery=delivery, timeout_s=timeout_s, fault=fault)
        if self.last.error:
            raise self.last.error
        return self.last.answer

    def batch(self, *events: Mapping[str, Any], attempt: int = 1) -> dict[str, Any]:
        """Return events as a batch of the queue of dispatch."""
        batch = sqs_event(*events, clock=self.clock, received=attempt)
        return {
            "Records": [each | {"messageId": event["id"]} for each, event in zip(batch["Records"], events, strict=True)]
        }

    def envelope(self, fact: Fact | RideEvent, **attributes: Any) -> dict[str, Any]:
        """Return the EventBridge event of a fact."""
        event = fact if isinstance(fact, RideEvent) else RideEvent.of(fact, source=SOURCE, time=NOW, **attributes)
        return eventbridge_event(
            event.to_detail(), event_id=f"delivery-of-{event.id}", source=event.source, clock=self.clock
        )

    def given_up(self) -> list[DeadLetter]:
        """Return what was given up since the last time."""
        letters, self.dead_letters.letters = self.dead_letters.letters, []
        return letters

    # ── The bus ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _inserted(self, table: str, item: Item) -> None:
        if table == "outbox":
            self.put_on_the_bus(piped(marshalling.values(item)))

    def hearers(self, detail: Mapping[str, Any]) -> list[str]:
        """Return the consumers that get an event."""
        return [consumer for consumer, consumed in CONSUMED.items() if FACTS[detail["type"]] in consumed]

    def put_on_the_bus(self, detail: Mapping[str, Any]) -> None:
        """Have an event on its way to its consumers."""
        for consumer in self.hearers(detail):
            self.carry(consumer, detail)

    def carry(self, consumer: str, detail: Mapping[str, Any]) -> None:
        """Have an event on its way to a consumer."""
        event = {"id": f"{UUID(int=next(self._numbers))}", "source": detail["source"], "detail": detail}
        self.waiting.append(Delivery(consumer, event))

    def publish(self, *facts: Fact, lost: Lost = lambda *_: False) -> None:
        """Publish facts that no booking knows of, each when the one before has run its course."""
        for fact in facts:
            self.put_on_the_bus(RideEvent.of(fact, source=SOURCE, time=self.now()).to_detail())
            self.flow(lost)

    def flow(self, lost: Lost = lambda *_: False) -> None:
        """Deliver events until there are no more."""
        while self.waiting:
            consumer, event, _ = self.waiting.pop(0)
            if not lost(consumer, event["detail"]["type"]):
                self.deliver(consumer, event)

    # ── Bookings ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, event: dict[str, Any]) -> Answer:
        """Send the API a request, a millisecond after the last one."""
        self.clock.advance(0.001)
        with self.installed():
            return Answer.of(self.handlers["api"](event, Invocation(self.clock)))

    def book(self, *, key: str = "key-1", authorizer: Mapping[str, Any] | None = None, **changes: Any) -> Answer:
        """Book a ride, as the caller of an authorizer."""
        return self.ask(request("POST", "/carrides", BOOKING | changes, key=key, authorizer=authorizer))

    def booked(self, *actions: str, name: str = "customer_a") -> str:
        """Book a ride, change it so, and return its id."""
        order_id: str = self.book(key=name, customerID=name).body["orderID"]
        for version, action in enumerate(actions, 1):
            self.change(order_id, action, version)
        return order_id

    def change(self, order_id: str, action: str, version: int, *, key: str = "", **more: Any) -> Answer:
        """Change a ride, by default under a key of the change."""
        reason = {"reason": "changed my mind"} if action == "cancel" else {}
        body = {"action": action, "version": version, **reason, **more}
        return self.ask(request("PUT", f"/carrides/{order_id}", body, key=key or f"{action}-{version}-{order_id}"))

    def update_read_model(self, ride: str | None = None) -> None:
        """Deliver every event, or those of one ride, to the read model, the latest first."""
        for event in reversed([event for event in self.outbox() if ride in {None, event.subject}]):
            self.deliver("ride-history", self.envelope(event))

    def reconcile(self, *, lost: Lost = lambda *_: False, timeout_s: float = 120) -> dict[str, int]:
        """Let the clock pass the deadline of every open ride, run the reconciler, and have its events delivered."""
        self.clock.advance(LIMIT.total_seconds() + 60)
        return self.tick(lost=lost, timeout_s=timeout_s)

    def tick(self, *, lost: Lost = lambda *_: False, timeout_s: float = 120, fault: Fault = NO_FAULT) -> dict[str, int]:
        """Run the reconciler now, and have its events delivered."""
        event, request_id = {"time": self.now().isoformat()}, f"tick-{next(self._numbers)}"
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reconciler, "lambda_deadline", partial(lambda_deadline, clock=self.clock))
                counts: dict[str, int] = self.run("reconciler", event, request_id, timeout_s, fault)
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

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return every item of a table, as Python values; one for each ride."""
        items = map(marshalling.values, self.dynamodb.all(table))
        return list(merged(items) if table == "rides" else items)

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
