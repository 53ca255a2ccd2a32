"""The functions over one DynamoDB, gateway and clock in this process, and a bus between them."""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import pytest
from msgspec.structs import replace

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
from carride import history
from carride.consumer import ConsumerSettings
from carride.dynamodb import DynamoDB
from carride.events import SOURCE, RideEvent, parse_event
from carride.facts import ALIASES, FACTS, Fact
from carride.overdue import LIMIT, Stage
from carride.settings import from_environment
from carride_idempotency import marshalling, testing
from carride_idempotency.dead_letters import DeadLetter
from carride_idempotency.observation import Observation
from carride_idempotency.testing import (
    FaultyTransport,
    Invocation,
    ManualClock,
    eventbridge_event,
    http_event,
    sqs_event,
)
from carride_idempotency.testing.expressions import Item
from carride_idempotency.testing.worlds import NO_FAULT, Fault, Run
from tests.functions.gateways import FakeGateway
from tests.kit.pipe import piped
from tests.kit.rides import NOW

CONSUMED: Final[Mapping[str, Collection[type]]] = {
    "ride-history": frozenset(FACTS.values()),
    "dispatch": assignments.CONSUMED,
    "payment": payments.CONSUMED,
}
"""The facts that the rule of each consumer passes on."""
TABLES: Final = {
    "history": ("idempotencyKey",),
    "operator": ("id",),
    "outbox": ("id",),
    "cars": ("zone", "carID"),
    "points": ("customerID",),
    **dict.fromkeys(("bookings", "assignments", "payments"), ("orderID",)),
}
HISTORY_STORE: Final = "dynamodb:history"
"""The store of ride_history; the other functions share one."""
RECONCILER_S: Final = 180.0
"""The reconciler's timeout."""
SETTINGS: Final = from_environment(Settings)  # of the API, in stage `local`
DEV: Final = replace(SETTINGS, stage="dev", staff_group="staff")
# A token of the staff of DEV.
STAFF: Final = {"jwt": {"claims": {"sub": "c", "cognito:groups": "[riders staff]"}}}
BOOKING: Final = {
    "customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03",
    "passengers": 2, "price": 1250,
}  # fmt: skip

# Whether a consumer, by its name, never gets an event, by its type.
type Lost = Callable[[str, str], bool]


def request(
    method: str,
    path: str,
    body: object = None,
    *,
    authorizer: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return a request to the API; ``options`` are those of `http_event`."""
    event = http_event(method, path, body, **options)
    known = path in {"/carrides", "/carrides/simulate", "/openapi.json"}
    event["routeKey"] = f"{method} {path if known else '/carrides/{id}'}"
    if not known:
        event["pathParameters"] = {"id": path.removeprefix("/carrides/")}
    if authorizer:
        event["requestContext"]["authorizer"] = dict(authorizer)
    return event


class Answer(NamedTuple):
    """The answer that a client of the API gets."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def replayed(self) -> Self:
        """The answer that a repeated request gets."""
        return self._replace(headers={**self.headers, "Idempotency-Replayed": "true"})

    @property
    def problem(self) -> str:
        """The kind of the problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.body["status"] == self.status
        kind: str = self.body["type"].removeprefix("urn:acr:car-ride:problem:")
        return kind


class Transport(FaultyTransport):
    """The API's way to its tables, which notes consistent reads as such.

    Attributes:
        scanned: how many items each query has read.
    """

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.scanned: list[int] = []

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        try:
            answer = super().__call__(operation, request)
            if operation == "Query":
                self.scanned.append(answer["ScannedCount"])
            return answer
        finally:
            if request.get("ConsistentRead"):
                self.requests[-1] = f"consistent {operation}"


class World(testing.World):
    """The functions, everything around them, and what is on its way between them.

    By default nobody is declined.

    Attributes:
        observations: what the consumers have observed.
        last: the last invocation.
    """

    timed = (DynamoDB,)

    def __init__(self, gateway: FakeGateway | None = None) -> None:
        indexes = {
            assignment_table.INDEX: ("freeShard", "freePlace"),
            "byCustomer": ("customerID", "bookedAt"),
            "byOwner": ("ownerCustomer", "bookedAt"),
            history.INDEX: ("orderID",),
        }
        super().__init__(TABLES, clock=ManualClock(int(NOW.timestamp() * 1000)), indexes=indexes)
        self.dynamodb.inserted = self._inserted
        self.transport = Transport(self.dynamodb)
        self.simulations: list[Mapping[str, Any]] = []
        self.simulator_error: Exception | None = None
        self.gateway = gateway or FakeGateway()
        self.observations = list[Observation]()
        self._on_the_bus: list[Mapping[str, Any]] = []
        self._requests = iter(range(1_000_000))
        self.last: Run | None = None

    def now(self, zone: tzinfo = UTC) -> datetime:
        """Return the present."""
        return datetime.fromtimestamp(self.clock() / 1000, zone)

    @cached_property
    def handlers(self) -> dict[str, Any]:
        """The handlers in a process that lives as long as the world."""
        return self.process()

    def process(self, *functions: str, api: Settings = SETTINGS) -> dict[str, Any]:
        """Start a process of some functions, or of all, and return their handlers.

        ``api`` are the API's settings.
        """
        with self.installed(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(carride.consumer, "observe", self.observations.append)
            make: dict[str, Callable[[], Any]] = {
                "api": lambda: carride_api.make_handler(
                    api,
                    transport=self.transport,
                    start_simulator=self._start_simulator,
                    now=self.now,
                ),
                "ride-history": lambda: ride_history.make_handler(
                    replace(from_environment(ConsumerSettings), idempotency_store=HISTORY_STORE)
                ),
                "dispatch": lambda: dispatch.make_handler(
                    from_environment(dispatch.Settings), now=self.now
                ),
                "payment": lambda: payment.make_handler(
                    from_environment(payment.Settings), self.gateway, now=self.now
                ),
                "reconciler": lambda: reconciler.make_handler(
                    from_environment(reconciler.Settings), clock=self.clock
                ),
            }
            return {name: make[name]() for name in functions or make}

    # ── Deliveries ────────────────────────────────────────────────────────────────────────────────

    def deliver(
        self,
        consumer: str,
        event: Mapping[str, Any],
        *,
        attempt: int = 1,
        delivery: str = "",
        fault: Fault = NO_FAULT,
    ) -> str:
        """Deliver an EventBridge event to a consumer, and return its outcome, if it tells it.

        A delivery is its event's own unless it is given an id.
        """
        raw = dict(event) | {"time": self.now().isoformat()}
        raw = self.batch(raw, attempt=attempt) if consumer == "dispatch" else raw
        outcome: str = self.run(consumer, raw, delivery or event["id"], 180, fault).get(
            "outcome", ""
        )
        return outcome

    def run(
        self, function: str, event: object, delivery: str, timeout_s: float, fault: Fault = NO_FAULT
    ) -> Any:
        """Invoke a function, and return its answer, or raise what it raised."""
        self.last = self.invoke(
            self.handlers[function], event, delivery=delivery, timeout_s=timeout_s, fault=fault
        )
        if self.last.error:
            raise self.last.error
        return self.last.answer

    def batch(self, *events: Mapping[str, Any], attempt: int = 1) -> dict[str, Any]:
        """Return events as a batch of the queue of dispatch."""
        batch = sqs_event(*events, clock=self.clock, received=attempt)
        return {
            "Records": [
                each | {"messageId": event["id"]}
                for each, event in zip(batch["Records"], events, strict=True)
            ]
        }

    def envelope(self, fact: Fact | RideEvent, **attributes: Any) -> dict[str, Any]:
        """Return the EventBridge event of a fact."""
        event = (
            fact
            if isinstance(fact, RideEvent)
            else RideEvent.of(fact, source=SOURCE, time=NOW, **attributes)
        )
        return eventbridge_event(
            event.to_detail(),
            event_id=f"delivery-of-{event.id}",
            source=event.source,
            clock=self.clock,
        )

    def given_up(self) -> list[DeadLetter]:
        """Return what was given up since the last time."""
        letters = self.dead_letters.letters
        self.dead_letters.letters = []
        return letters

    # ── The bus ───────────────────────────────────────────────────────────────────────────────────

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
            fact_type = ALIASES.get(detail["type"], detail["type"])
            for consumer, consumed in CONSUMED.items():
                if FACTS[fact_type] in consumed and not lost(consumer, fact_type):
                    self.deliver(
                        consumer,
                        {"id": f"{detail['id']}", "source": detail["source"], "detail": detail},
                    )

    # ── The API ───────────────────────────────────────────────────────────────────────────────────

    def restart(self, api: Settings = SETTINGS) -> None:
        """Have another process of the API, with an empty memory, answer from now on."""
        self.handlers |= self.process("api", api=api)

    def _start_simulator(self, function: str, spec: Mapping[str, Any]) -> None:
        assert function == SETTINGS.simulator_function_name
        if self.simulator_error:
            raise self.simulator_error
        self.simulations.append(spec)

    def ask(self, event: Mapping[str, Any]) -> Answer:
        """Send the API a request, a millisecond after the one before."""
        self.clock.advance(0.001)
        with self.installed():
            raw = self.handlers["api"](event, Invocation(self.clock))
        return Answer(raw["statusCode"], raw.get("headers", {}), json.loads(raw["body"]))

    def spent(self) -> list[str]:
        """Return the API's round trips to DynamoDB since the last call."""
        trips = self.transport.requests
        self.transport.requests = []
        return trips

    def book(
        self, *, key: str = "key-1", authorizer: Mapping[str, Any] | None = None, **changes: Any
    ) -> Answer:
        """Book a ride, as the caller of an authorizer."""
        return self.ask(
            request("POST", "/carrides", BOOKING | changes, key=key, authorizer=authorizer)
        )

    def change(
        self, order_id: str, action: str, version: int, *, key: str | None = None, **more: Any
    ) -> Answer:
        """Change a ride, by default under a new key for each change."""
        body = (
            {"action": action, "version": version}
            | ({"reason": "x"} if action == "cancel" else {})
            | more
        )
        return self.ask(
            request(
                "PUT", f"/carrides/{order_id}", body, key=key or f"{order_id}-{action}-{version}"
            )
        )

    def booked(self, *actions: str, customer: str = "customer_a") -> str:
        """Book a ride, change it so, and return its id."""
        order_id: str = self.book(key=f"of-{customer}", customerID=customer).body["orderID"]
        for version, action in enumerate(actions, 1):
            assert self.change(order_id, action, version).status == 200
        return order_id

    def read(self, order_id: str) -> Answer:
        """Read a ride."""
        return self.ask(request("GET", f"/carrides/{order_id}"))

    def reconcile(
        self, *, lost: Lost = lambda *_: False, timeout_s: float = RECONCILER_S
    ) -> dict[str, int]:
        """Let the clock pass each open ride's deadline, run the reconciler, deliver its events."""
        self.clock.advance(LIMIT.total_seconds() + 60)
        return self.tick(lost=lost, timeout_s=timeout_s)

    def tick(
        self,
        *,
        lost: Lost = lambda *_: False,
        timeout_s: float = RECONCILER_S,
        fault: Fault = NO_FAULT,
    ) -> dict[str, int]:
        """Run the reconciler now, and have its events delivered."""
        event = {"time": self.now().isoformat()}
        request_id = f"tick-{next(self._requests)}"
        try:
            counts: dict[str, int] = self.run("reconciler", event, request_id, timeout_s, fault)
        finally:
            self.flow(lost)
        return counts

    # ── The tables ────────────────────────────────────────────────────────────────────────────────

    def park(self, *car_ids: str, sector: str = "sector_01", ride: str | None = None) -> None:
        """Add cars: free ones, or ones with a ride."""
        for car_id in car_ids:
            more = (
                {"rideID": ride} if ride else assignment_table.free(assignments.Car(car_id, sector))
            )
            self.put(
                "cars",
                {"zone": assignments.zone(sector), "carID": car_id, "sector": sector, **more},
            )

    def put(self, table: str, item: Mapping[str, object]) -> None:
        """Write an item unconditionally."""
        self.dynamodb.put_item(TableName=table, Item=marshalling.item(item))

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return every item of a table, as Python values.

        Of ``rides`` one for each ride that has a timeline.
        """
        if table == "rides":
            return history.merged(item for item in self.items("history") if "entry" in item)
        return [*map(marshalling.values, self.dynamodb.all(table))]

    def item(self, table: str, order_id: str = "order_01") -> dict[str, Any]:
        """Return a ride's item; empty where there is none."""
        return next((item for item in self.items(table) if item["orderID"] == order_id), {})

    def state(self, table: str, order_id: str = "order_01") -> object:
        """Return the state of a ride's item."""
        return self.item(table, order_id).get("state")

    def open(self, stage: Stage | str = "") -> set[str]:
        """Return the rides that need something, in any table."""
        found = [
            item for table in ("bookings", "assignments", "payments") for item in self.items(table)
        ]
        return {
            item["orderID"]
            for item in found
            if "openSince" in item and item["openShard"].startswith(stage)
        }

    def cars(self) -> dict[str, str | None]:
        """Return the ride of each car."""
        return {item["carID"]: item.get("rideID") for item in self.items("cars")}

    def outbox(self) -> list[RideEvent]:
        """Return the outbox's events, in the order of their commits, as consumers read them."""
        return [parse_event({"detail": piped(item)}) for item in self.items("outbox")]

    def emitted(self) -> list[str]:
        """Return the types of the events in the outbox."""
        return [event.type for event in self.outbox()]
