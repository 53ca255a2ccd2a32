"""The HTTP API: books, changes, lists and shows rides.

Each request takes effect once, however often it is sent.

`Requests.read` reads a request, `Service.answer` decides it, and the idempotency layer commits it
with its answer.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from api import policies
from api.problems import TYPES, Kind, refused
from api.requests import Requests, fingerprinted, record_key
from api.service import Service, Settings, StartSimulator
from api.tables import Tables
from carride.dynamodb import DynamoDB
from carride.region_fence import RegionFence
from carride.settings import from_environment
from carride.telemetry import logger, observe
from carride_idempotency import Consumer, DynamoDBStore, EffectConflictError, Policy
from carride_idempotency.http import HttpHandler, HttpProblemError
from carride_idempotency.invocation import LambdaContext
from carride_idempotency.stores.default_transport import dynamodb_transport
from carride_idempotency.stores.transport import NoAnswerError, ServiceError, Transport

_WRITES: Final = ("POST ", "PUT ")  # how the routes begin that a fenced region refuses
_RETRY_AFTER: Final = {"Retry-After": "30"}  # seconds; a fence stays up for longer than a request


def make_handler(
    settings: Settings,
    *,
    transport: Transport | None = None,
    start_simulator: StartSimulator | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> HttpHandler:
    """Return the Lambda handler.

    By default a simulation is started by an asynchronous invocation.
    """
    transport = transport or dynamodb_transport()
    dynamodb = DynamoDB(transport)
    # Always on DynamoDB, so that an answer is committed together with its ride.
    store = DynamoDBStore(settings.idempotency_table, transport=transport)
    tables = Tables(dynamodb, settings.booking_table, settings.idempotency_table)
    service = Service(settings, tables, store, start_simulator, now)
    requests = Requests(settings.stage, settings.staff_group)
    # A stack in one region is never fenced, and spends no read on it.
    has_peer = settings.stack_role != "standalone"
    fence = (
        RegionFence(dynamodb, settings.idempotency_table, settings.aws_region, now)
        if has_peer
        else None
    )

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

    rides = http_handler("carride-api", policies.RIDES)
    simulations = http_handler("carride-api-simulate", policies.SIMULATIONS)

    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        if fence and event.get("routeKey", "").startswith(_WRITES) and (refusal := _refusal(fence)):
            problem = HttpProblemError(
                503, detail=refusal, type=Kind.UNAVAILABLE, headers=_RETRY_AFTER
            )
            return problem.response(TYPES)
        match event.get("routeKey"):
            case "GET /openapi.json":
                from api.openapi import document  # noqa: PLC0415 - most processes are never asked for it

                headers = {"Content-Type": "application/json"}
                return {"statusCode": 200, "headers": headers, "body": json.dumps(document())}
            case "POST /carrides/simulate":
                return simulations(event, context)
        try:
            return rides(event, context)
        except (
            EffectConflictError
        ):  # only of a booking: a change is decided again, and is stale then
            detail = "a ride was booked with this key, and the answer is no longer stored"
            return refused(Kind.KEY_FORGOTTEN, detail, field="Idempotency-Key").response(TYPES)

    return handler


def _refusal(fence: RegionFence) -> str | None:
    """Return why a write is refused, or None.

    If the fence cannot be read, the write could not be stored either.
    """
    try:
        return (
            "this region accepts no writes at present: the other one does"
            if fence.is_up()
            else None
        )
    except (NoAnswerError, ServiceError) as error:
        logger.warning("DynamoDB did not answer", exc_info=error)
        return "an AWS service did not answer"


handler = make_handler(from_environment(Settings))
