"""The API on an in-process DynamoDB, with requests as API Gateway sends them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace

from api.service import Settings
from carride import history
from carride.events import RideEvent, parse_event
from carride.settings import from_environment
from carride_api import make_handler
from idempotency import marshalling
from idempotency.clock import epoch_ms
from idempotency.http import HttpHandler
from idempotency.stores.transport import ServiceError
from idempotency.testing import FakeDynamoDB, FaultyTransport, Invocation, http_event
from ops.outbox import entry_of

SETTINGS: Final = from_environment(Settings)
DEV: Final = replace(SETTINGS, stage="dev", staff_group="staff")
STAFF: Final = {"jwt": {"claims": {"sub": "c", "cognito:groups": "[riders staff]"}}}
"""The authorizer of a token of the staff of `DEV`."""
RIDE: Final = {"customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03"}
BOOKING: Final = {**RIDE, "passengers": 2, "price": 1250}
KEYS: Final = {"bookings": "orderID", "idempotency": "idempotencyKey", "outbox": "id"}
"""The partition key of each table."""


def request(
    method: str, path: str, body: object = None, *, authorizer: Mapping[str, Any] | None = None, **options: Any
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
    """The answer that a client gets."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Read what the function returns to API Gateway."""
        return cls(raw["statusCode"], raw.get("headers", {}), json.loads(raw["body"]))

    def replayed(self) -> "Answer":
        """The answer that a repeated request gets."""
        return self._replace(headers={**self.headers, "Idempotency-Replayed": "true"})

    @property
    def problem(self) -> str:
        """The kind of the problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.body["status"] == self.status
        kind: str = self.body["type"].removeprefix("urn:acr:car-ride:problem:")
        return kind


class Tables(FakeDynamoDB):
    """The tables, and the round trips to them."""

    def __init__(self) -> None:
        keys = {table: [key] for table, key in KEYS.items()}
        super().__init__(keys, indexes={"byCustomer": ("customerID", "bookedAt"), history.INDEX: ("orderID",)})
        self.requests: list[str] = []
        self.read_error: str | None = None
        """The error code of refused reads."""

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        self.requests.append(f"consistent {operation}" if request.get("ConsistentRead") else operation)
        if self.read_error is not None and operation in {"GetItem", "Query"}:
            raise ServiceError(self.read_error, 400, "made by a test", {})
        return super().__call__(operation, request)


class World:
    """New tables, and processes of the function over them."""

    def __init__(self) -> None:
        self.dynamodb = Tables()
        self.transport = FaultyTransport(self.dynamodb)
        self.later = timedelta()
        """How far the clock of the function's processes is ahead."""
        self.simulations: list[Mapping[str, Any]] = []
        self.simulator_error: Exception | None = None
        self.handler = self.process()

    def process(self, settings: Settings = SETTINGS) -> HttpHandler:
        """Start another process of the function, with an empty memory."""
        start = self._start_simulator
        return make_handler(
            settings,
            transport=self.transport,
            start_simulator=start,
            now=lambda: datetime.now(UTC) + self.later,
        )

    def _start_simulator(self, function: str, spec: Mapping[str, Any]) -> None:
        assert function == SETTINGS.simulator_function_name
        if self.simulator_error:
            raise self.simulator_error
        self.simulations.append(spec)

    def spent(self) -> list[str]:
        """Return the round trips to DynamoDB since the last call."""
        trips, self.dynamodb.requests = self.dynamodb.requests, []
        return trips

    def send(self, event: dict[str, Any]) -> Answer:
        """Send a request."""
        return Answer.of(self.handler(event, Invocation(epoch_ms)))

    def book(self, *, key: str = "key-1", authorizer: Mapping[str, Any] | None = None, **changes: Any) -> Answer:
        """Book a ride, as the caller of an authorizer."""
        return self.send(request("POST", "/carrides", BOOKING | changes, key=key, authorizer=authorizer))

    def booked(self) -> str:
        """Book a ride and return its id."""
        order_id: str = self.book().body["orderID"]
        return order_id

    def change(self, order_id: str, action: str, version: int, *, key: str | None = None, **more: Any) -> Answer:
        """Change a ride, by default under a new key for each change."""
        body = {"action": action, "version": version, **more}
        return self.send(request("PUT", f"/carrides/{order_id}", body, key=key or f"{action}-{version}"))

    def update_read_model(self, ride: str | None = None) -> None:
        """Deliver every event, or those of one ride, to the read model, the latest first."""
        for event in reversed([event for event in self.published() if ride in {None, event.subject}]):
            item = {"idempotencyKey": f"ride-history#{event.idempotencyid}", **history.kept(event)}
            self.dynamodb.put_item(TableName="idempotency", Item=marshalling.item(item))

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return the items of a table, without the attributes of the index of open rides."""
        items = [marshalling.values(item) for item in self.dynamodb.all(table)]
        extra = {"openSince", "openShard", "changedAt"}
        return [{name: item[name] for name in item if name not in extra} for item in items]

    def published(self) -> list[RideEvent]:
        """Return the events in the outbox, as consumers read them, in order."""
        events = [parse_event({"detail": json.loads(entry_of(item).detail)}) for item in self.dynamodb.all("outbox")]
        return sorted(events, key=lambda event: (event.subject, event.sequence))
