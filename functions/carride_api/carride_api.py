"""The HTTP API: books, changes, lists and shows rides. Each request takes effect once, however often it is sent.

`Requests.read` reads a request, `Service.answer` decides it, and the idempotency layer commits it with its answer.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from botocore.session import get_session

from api.problems import TYPES, Kind, refused
from api.requests import Requests, fingerprinted, record_key
from api.service import Service, Settings, StartSimulator
from api.tables import Tables
from carride.clients import dynamodb_client
from carride.settings import from_environment
from carride.telemetry import observe
from idempotency import Consumer, DynamoDBStore, EffectConflictError, Policy
from idempotency.http import HttpHandler
from idempotency.invocation import LambdaContext
from idempotency.stores.transport import Transport, botocore_transport

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# A key is remembered for a day, longer than clients retry. Only outages and bugs fail an attempt, and clients may retry
# those without limit.
_CLAIMED: Final = Policy(window=86_400, max_attempts=1_000)
# A conflict means that another request has changed the ride: decide again, on the changed ride.
_ATOMIC: Final = Policy(window=86_400, max_attempts=1_000, atomic=True, conflict_reruns=2)


def make_handler(
    settings: Settings,
    *,
    dynamodb: "DynamoDBClient | None" = None,
    transport: Transport | None = None,
    start_simulator: StartSimulator | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> HttpHandler:
    """Return the Lambda handler.

    Args:
        settings: the function's environment.
        dynamodb: reads the tables; by default a client with timeouts shorter than a request's.
        transport: carries the transactions to DynamoDB; by default another client.
        start_simulator: starts a simulation; by default by an asynchronous invocation.
        now: the present, with a time zone.
    """
    if dynamodb is None or transport is None:
        session = get_session()  # shared, because a session reads the description of DynamoDB once
        dynamodb = dynamodb or dynamodb_client(session, connect_s=0.7, read_s=0.8)
        transport = transport or botocore_transport(session=session)
    # Always on DynamoDB, so that an answer is committed together with its ride.
    store = DynamoDBStore(settings.idempotency_table, transport=transport)
    tables = Tables(dynamodb, settings.booking_table, settings.ride_table)
    service = Service(settings, tables, store, start_simulator, now)
    requests = Requests(settings.stage, settings.staff_group)

    def http_handler(name: str, policy: Policy) -> HttpHandler:
        consumer = Consumer(
            name,
            store,
            parse=requests.read,
            key=record_key,
            payload=fingerprinted,
            policy=policy,
            observe=observe,
            region=settings.aws_region,
        )
        return consumer.http_handler(problem_types=TYPES)(service.answer)

    rides = http_handler("carride-api", _ATOMIC)
    simulations = http_handler("carride-api-simulate", _CLAIMED)  # an invocation is not part of a transaction

    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        match event.get("routeKey"):
            case "GET /openapi.json":
                from api.openapi import document  # noqa: PLC0415 - most processes are never asked for it

                headers = {"Content-Type": "application/json"}
                return {"statusCode": 200, "headers": headers, "body": json.dumps(document())}
            case "POST /carrides/simulate":
                return simulations(event, context)
        try:
            return rides(event, context)
        except EffectConflictError:  # only of a booking: a change is decided again, and is stale then
            detail = "a ride was booked with this key, and the answer is no longer stored"
            return refused(Kind.KEY_FORGOTTEN, detail, field="Idempotency-Key").response(TYPES)

    return handler


handler = make_handler(from_environment(Settings))
