"""The API on an in-process DynamoDB: requests as API Gateway hands them over, and what is in the tables afterwards."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import boto3
from botocore.exceptions import ClientError
from msgspec.structs import replace

import timeline
from api.app import Settings, make_handler
from carride.clients import dynamodb_client
from carride.events import RideEvent, parse_event
from idempotency import Update, marshalling
from idempotency.clock import epoch_ms
from idempotency.http import HttpHandler
from idempotency.stores.transport import Transport, botocore_transport
from idempotency.testing import FaultyTransport, Invocation
from tests.unit.carride.pipe import piped

NOW: Final = datetime(2026, 11, 21, 8, tzinfo=UTC)

SETTINGS: Final = Settings(
    aws_region="us-east-1",
    booking_table="Bookings",
    idempotency_table="Idempotency",
    outbox_table="Outbox",
    ride_table="Rides",
    simulator_function_name="simulator",
    stage="local",
)

DEV: Final = replace(SETTINGS, stage="dev", staff_group="staff")
STAFF: Final = {"jwt": {"claims": {"sub": "c", "cognito:groups": "[riders staff]"}}}
"""What API Gateway says about a token of the staff of `DEV`."""

BOOKING: Final = {
    "customerID": "customer_a",
    "pickup": "sector_01",
    "destination": "sector_03",
    "passengers": 2,
    "price": 1250,
}

PATHS: Final = {"/carrides", "/carrides/simulate", "/openapi.json"}
"""The paths that name no ride."""

KEYS: Final = {"Idempotency": "idempotencyKey", "Outbox": "id", "Rides": "orderID"}
"""The tables with nothing but a partition key."""


def request(
    method: str,
    path: str,
    body: object = None,
    *,
    key: str | None = "key-1",
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    authorizer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a request in payload format 2.0. A body of bytes is sent as it is; anything else as JSON."""
    given = {"content-type": "application/json"} if body is not None else {}
    order_id = "" if path in PATHS else path.removeprefix("/carrides/")
    route = f"{method} {'/carrides/{id}' if order_id else path}"
    if key is not None:
        given["idempotency-key"] = key
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route,
        "rawPath": path,
        "rawQueryString": urlencode(query or {}),
        "headers": given | dict(headers or {}),
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "api",
            "domainName": "api.execute-api.us-east-1.amazonaws.com",
            "http": {
                "method": method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "test",
            },
            "requestId": "request-1",
            "routeKey": route,
            "stage": "$default",
            "time": "21/Nov/2026:08:00:00 +0000",
            "timeEpoch": 1_795_248_000_000,
        },
        "isBase64Encoded": False,
    }
    if order_id:
        event["pathParameters"] = {"id": order_id}
    if query:
        event["queryStringParameters"] = dict(query)
    if authorizer:
        event["requestContext"]["authorizer"] = dict(authorizer)
    if isinstance(body, bytes):
        event |= {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    elif body is not None:
        event["body"] = json.dumps(body)
    return event


class Answer(NamedTuple):
    """What a client gets."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Read what the function returns to API Gateway."""
        return cls(raw["statusCode"], raw.get("headers", {}), json.loads(raw["body"]))

    def replayed(self) -> "Answer":
        """The same answer as whoever asks again gets it."""
        return self._replace(headers={**self.headers, "Idempotency-Replayed": "true"})

    @property
    def problem(self) -> str:
        """The kind of problem that it is."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.body["status"] == self.status
        kind: str = self.body["type"].removeprefix("urn:acr:car-ride:problem:")
        return kind


class Clients(NamedTuple):
    """Clients to the DynamoDB in this process; making them takes longer than a test."""

    tables: Any
    reads: Any
    writes: Transport

    @classmethod
    def make(cls) -> Self:
        """Make them, in a mocked AWS."""
        return cls(boto3.client("dynamodb"), dynamodb_client(), botocore_transport())


class World:
    """New tables, and processes of the function over them."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.dynamodb = clients.tables
        for table, key in KEYS.items():
            self.dynamodb.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        self.dynamodb.create_table(
            TableName="Bookings",
            KeySchema=[{"AttributeName": "orderID", "KeyType": "HASH"}],
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": "S"} for name in ("orderID", "customerID", "bookedAt")
            ],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "byCustomer",
                    "KeySchema": [
                        {"AttributeName": "customerID", "KeyType": "HASH"},
                        {"AttributeName": "bookedAt", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        self.transport = FaultyTransport(clients.writes)
        clients.reads.meta.events.register("before-call.dynamodb", self._count, unique_id="world")
        self._read_error: str | None = None
        self._spent: list[str] = []
        self.now = NOW
        self.simulations: list[Mapping[str, Any]] = []
        self.handler = self.process()

    def process(self, settings: Settings = SETTINGS) -> HttpHandler:
        """Start another process of the function: it remembers nothing by itself."""
        return make_handler(
            settings,
            dynamodb=self.clients.reads,
            transport=self.transport,
            simulate=self.simulations.append,
            now=self._tick,
        )

    def _tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    def close(self) -> None:
        """Remove the tables."""
        self.clients.reads.meta.events.unregister("before-call.dynamodb", unique_id="world")
        for table in (*KEYS, "Bookings"):
            self.dynamodb.delete_table(TableName=table)

    def _count(self, model: Any, params: Mapping[str, Any], **_: Any) -> None:
        consistent = json.loads(params["body"]).get("ConsistentRead", False)
        self._spent.append(f"consistent {model.name}" if consistent else model.name)
        if self._read_error is not None:
            raise ClientError({"Error": {"Code": self._read_error, "Message": "made by a test"}}, model.name)

    def fail_reads(self, code: str | None) -> None:
        """Have every read refused from now on, or none."""
        self._read_error = code

    def spent(self) -> list[str]:
        """Return the round trips to DynamoDB since the last time, reads first."""
        trips = self._spent + self.transport.requests
        self._spent.clear()
        self.transport.requests.clear()
        return trips

    def send(self, event: dict[str, Any], handler: HttpHandler | None = None) -> Answer:
        """Send a request, to another process than this world's where one is given."""
        return Answer.of((handler or self.handler)(event, Invocation(epoch_ms)))

    def book(self, *, key: str = "key-1", authorizer: Mapping[str, Any] | None = None, **changes: Any) -> Answer:
        """Book a ride, as a caller that API Gateway describes so."""
        return self.send(request("POST", "/carrides", BOOKING | changes, key=key, authorizer=authorizer))

    def tell(self) -> None:
        """Have the read model hear of everything."""
        for event in reversed(self.told()):
            self.apply(timeline.effect("Rides", event))

    def change(self, order_id: str, action: str, version: int, *, key: str | None = None, **more: Any) -> Answer:
        """Change a ride, under a key of the change's own unless one is given."""
        body = {"action": action, "version": version, **more}
        return self.send(request("PUT", f"/carrides/{order_id}", body, key=key or f"{action}-{version}"))

    def apply(self, update: Update) -> None:
        """Have an effect take place."""
        self.dynamodb.transact_write_items(TransactItems=[update.action()])

    def items(self, table: str) -> list[dict[str, Any]]:
        """Return what is in a table."""
        return [marshalling.values(item) for item in self.dynamodb.scan(TableName=table)["Items"]]

    def bookings(self) -> list[dict[str, Any]]:
        """Return the rides, without what the index over open rides needs."""
        indexed = ("openSince", "openShard")
        return [{name: item[name] for name in item if name not in indexed} for item in self.items("Bookings")]

    def told(self) -> list[RideEvent]:
        """Return the events in the outbox, as consumers read them, in order."""
        events = [parse_event({"detail": piped(item)}) for item in self.items("Outbox")]
        return sorted(events, key=lambda event: (event.subject, event.sequence))
