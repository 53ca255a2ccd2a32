"""The API on an in-process DynamoDB, with requests as API Gateway sends them."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

from botocore.exceptions import ClientError
from msgspec.structs import replace

import timeline
from api.service import Settings
from carride.events import RideEvent, parse_event
from carride.settings import from_environment
from carride_api import make_handler
from idempotency import marshalling
from idempotency.clock import epoch_ms
from idempotency.effects import action_of
from idempotency.http import HttpHandler
from idempotency.stores.transport import Transport
from idempotency.testing import FaultyTransport, Invocation
from ops.outbox import entry_of

SETTINGS: Final = from_environment(Settings)
DEV: Final = replace(SETTINGS, stage="dev", staff_group="staff")
STAFF: Final = {"jwt": {"claims": {"sub": "c", "cognito:groups": "[riders staff]"}}}
"""The authorizer of a token of the staff of `DEV`."""
RIDE: Final = {"customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03"}
BOOKING: Final = {**RIDE, "passengers": 2, "price": 1250}
INDEXED: Final = ("customerID", "bookedAt")
KEYS: Final = {"bookings": "orderID", "idempotency": "idempotencyKey", "outbox": "id", "rides": "orderID"}
"""The partition key of each table."""


def request(
    method: str,
    path: str,
    body: object = None,
    *,
    key: str | None = "key-1",
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str | None] | None = None,
    authorizer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a request in payload format 2.0. A body of bytes is sent as it is; anything else as JSON."""
    given = {"content-type": None if body is None else "application/json", "idempotency-key": key} | dict(headers or {})
    known = path in {"/carrides", "/carrides/simulate", "/openapi.json"}
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": f"{method} {path if known else '/carrides/{id}'}",
        "rawPath": path,
        "rawQueryString": urlencode(query or {}),
        "headers": {name: value for name, value in given.items() if value is not None},
        "requestContext": {"accountId": "123456789012", "http": {"method": method, "path": path}},
        "isBase64Encoded": isinstance(body, bytes),
    }
    if not known:
        event["pathParameters"] = {"id": path.removeprefix("/carrides/")}
    if query:
        event["queryStringParameters"] = dict(query)
    if authorizer:
        event["requestContext"]["authorizer"] = dict(authorizer)
    if body is not None:
        event["body"] = base64.b64encode(body).decode() if isinstance(body, bytes) else json.dumps(body)
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


class Network(FaultyTransport):
    """The connection to DynamoDB. ``kill`` ends the process before or after a round trip."""

    kill: str | None = None

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        answer = {} if self.kill == "before" else super().__call__(operation, request)
        if self.kill:
            raise SystemExit
        return answer


type Connections = tuple[Any, Any, Transport]
"""Connections of the in-process DynamoDB for tables, reads and writes; they are shared because they start slowly."""


class World:
    """New tables, and processes of the function over them."""

    def __init__(self, connections: Connections) -> None:
        self.dynamodb, self._reads, writes = connections
        keys = [{"AttributeName": name, "KeyType": kind} for name, kind in zip(INDEXED, ("HASH", "RANGE"), strict=True)]
        index = {"IndexName": "byCustomer", "KeySchema": keys, "Projection": {"ProjectionType": "ALL"}}
        for table, key in KEYS.items():
            names = (key, *INDEXED) if table == "bookings" else (key,)
            self.dynamodb.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
                BillingMode="PAY_PER_REQUEST",
                **({"GlobalSecondaryIndexes": [index]} if table == "bookings" else {}),
            )
        self.transport = Network(writes)
        self._reads.meta.events.register("before-call.dynamodb", self._count, unique_id="world")
        self.read_error: str | None = None
        """The error code of refused reads."""
        self.later = timedelta()
        """How far the clock of the function's processes is ahead."""
        self._spent: list[str] = []
        self.simulations: list[Mapping[str, Any]] = []
        self.simulator_error: Exception | None = None
        self.handler = self.process()

    def process(self, settings: Settings = SETTINGS) -> HttpHandler:
        """Start another process of the function, with an empty memory."""
        start = self._start_simulator
        return make_handler(
            settings,
            dynamodb=self._reads,
            transport=self.transport,
            start_simulator=start,
            now=lambda: datetime.now(UTC) + self.later,
        )

    def _start_simulator(self, function: str, spec: Mapping[str, Any]) -> None:
        assert function == SETTINGS.simulator_function_name
        if self.simulator_error:
            raise self.simulator_error
        self.simulations.append(spec)

    def close(self) -> None:
        """Remove the tables."""
        self._reads.meta.events.unregister("before-call.dynamodb", unique_id="world")
        for table in KEYS:
            self.dynamodb.delete_table(TableName=table)

    def _count(self, model: Any, params: Mapping[str, Any], **_: Any) -> None:
        consistent = json.loads(params["body"]).get("ConsistentRead", False)
        self._spent.append(f"consistent {model.name}" if consistent else model.name)
        if self.read_error is not None:
            raise ClientError({"Error": {"Code": self.read_error, "Message": "made by a test"}}, model.name)

    def spent(self) -> list[str]:
        """Return the round trips to DynamoDB since the last call, reads first."""
        trips = self._spent + self.transport.requests
        self._spent.clear()
        self.transport.requests.clear()
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
            self.dynamodb.transact_write_items(TransactItems=[action_of(timeline.effect("rides", event))])

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return the items of a table, without the attributes of the index of open rides."""
        items = [marshalling.values(item) for item in self.dynamodb.scan(TableName=table)["Items"]]
        return [
            {name: item[name] for name in item if name not in {"openSince", "openShard", "changedAt"}} for item in items
        ]

    def published(self) -> list[RideEvent]:
        """Return the events in the outbox, as consumers read them, in order."""
        items = self.dynamodb.scan(TableName="outbox")["Items"]
        events = [parse_event({"detail": json.loads(entry_of(item).detail)}) for item in items]
        return sorted(events, key=lambda event: (event.subject, event.sequence))
