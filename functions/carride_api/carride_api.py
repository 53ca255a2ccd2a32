"""The HTTP API: books, changes, lists and shows rides.

Each request takes effect once, however often it is sent: the idempotency layer commits the answer
together with the ride. The table of `api.routes` says how a request is read, who may send it and
what answers it.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from api import policies
from api.problems import TYPES, Kind, refused
from api.requests import fingerprinted, record_key
from api.routes import DESCRIPTION, ROUTES, Router
from api.service import Service, Settings, StartSimulator
from api.tables import Tables
from carride.dynamodb import DynamoDB
from carride.region_fence import RegionFence
from carride.settings import from_environment
from carride.telemetry import logger, observe
from carride_idempotency import (
    Consumer,
    DynamoDBStore,
    EffectConflictError,
    HttpHandler,
    HttpProblemError,
    LambdaContext,
    dynamodb_transport,
)
from carride_idempotency.stores.transport import NoAnswerError, ServiceError, Transport

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
    tables = Tables(dynamodb, settings.booking_table, settings.ride_history_table)
    service = Service(settings, tables, store, start_simulator, now)
    router = Router(service, settings.stage, settings.staff_group)
    fence = None
    if settings.stack_role != "standalone":  # a stack in one region is never fenced
        fence = RegionFence(dynamodb, settings.operator_table, settings.aws_region, now)

    def protected(name: str) -> HttpHandler:
        """Return the handler of requests that one consumer protects."""
        consumer = Consumer(
            name,
            store,
            parse=router.read_request,
            key=record_key,
            payload=fingerprinted,
            policy=policies.CONSUMERS[name],
            observe=observe,
            region=settings.aws_region,
        )
        return consumer.http_handler(problem_types=TYPES)(router.answer)

    handlers = {name: protected(name) for name in policies.CONSUMERS}

    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        if event["routeKey"] == DESCRIPTION:
            return _description()
        route = ROUTES[event["routeKey"]]
        if fence is not None and route.writes:
            refusal = _refusal(fence)
            if refusal is not None:
                return _unavailable(refusal).response(TYPES)
        try:
            return handlers[route.consumer](event, context)
        except EffectConflictError:
            # Only a booking comes here: a change is decided again, and is stale then.
            detail = "a ride was booked with this key, and the answer is no longer stored"
            return refused(Kind.KEY_FORGOTTEN, detail, field="Idempotency-Key").response(TYPES)

    return handler


def _description() -> dict[str, Any]:
    """Return the answer that holds the OpenAPI document."""
    from api.openapi import document  # noqa: PLC0415 - most processes are never asked for it

    headers = {"Content-Type": "application/json"}
    return {"statusCode": 200, "headers": headers, "body": json.dumps(document())}


def _refusal(fence: RegionFence) -> str | None:
    """Return why a write is refused, or None.

    If the fence cannot be read, the write could not be stored either.
    """
    try:
        is_up = fence.is_up()
    except (NoAnswerError, ServiceError) as error:
        logger.warning("DynamoDB did not answer", exc_info=error)
        return "an AWS service did not answer"
    if is_up:
        return "this region accepts no writes at present: the other one does"
    return None


def _unavailable(detail: str) -> HttpProblemError:
    return HttpProblemError(503, detail=detail, type=Kind.UNAVAILABLE, headers=_RETRY_AFTER)


handler = make_handler(from_environment(Settings))
