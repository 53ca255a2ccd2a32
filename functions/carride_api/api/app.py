"""The routes: which request is handed to what, and how what they raise is worded."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response, content_types
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from msgspec import Struct

from api import http
from api.commands import Book, Simulate
from api.problems import Kind, ProblemError, problem, refused
from api.service import Service
from api.tables import Bookings, Histories, TokenError
from carride.clients import dynamodb_client
from carride.telemetry import logger, observe
from idempotency import BusyError, DynamoDBStore, EffectConflictError, RetryableError, within
from idempotency.consumer import LambdaContext
from idempotency.errors import PayloadMismatchError
from idempotency.stores.transport import Transport

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient

type Handler = Callable[[dict[str, Any], LambdaContext], dict[str, Any]]
type StartSimulation = Callable[[Mapping[str, Any]], None]


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    aws_region: str
    booking_table: str
    idempotency_table: str
    outbox_table: str
    ride_table: str
    simulator_function_name: str
    stage: Literal["local", "dev", "prod"]
    outbox_days: int = 7


class Routes:
    """What each route does.

    Args:
        app: says which request is being served.
        service: has it take effect.
        bookings: the rides, as they were booked and changed.
        histories: the rides, as the read model tells them.
        simulates: whether simulations may be started.
    """

    def __init__(
        self,
        app: APIGatewayHttpResolver,
        service: Service,
        bookings: Bookings,
        histories: Histories,
        *,
        simulates: bool,
    ) -> None:
        self._app = app
        self._service = service
        self._bookings = bookings
        self._histories = histories
        self._simulates = simulates
        app.post("/carrides")(self.book)
        app.get("/carrides")(self.list_rides)
        app.post("/carrides/simulate")(self.simulate)
        app.put("/carrides/<order_id>")(self.change)
        app.get("/carrides/<order_id>")(self.read)
        app.get("/openapi.json")(self.openapi)

    @property
    def _event(self) -> http.Event:
        return self._app.current_event.raw_event

    def book(self) -> Response[str]:
        """Book a ride."""
        key = http.key_of(self._event)
        command = http.command_of(self._event, Book)
        return http.respond(self._service.book(key, command, http.trace_of(self._event)))

    def change(self, order_id: str) -> Response[str]:
        """Have something become of a ride."""
        key = http.key_of(self._event)
        action, command = http.change_of(self._event)
        if not http.is_order_id(order_id):
            raise _unknown(order_id)
        return http.respond(self._service.change(key, order_id, action, command, http.trace_of(self._event)))

    def read(self, order_id: str) -> Response[str]:
        """Show a ride and what happened to it."""
        history = self._histories.find(order_id) if http.is_order_id(order_id) else None
        if history is None:
            raise _unknown(order_id)
        return http.respond({"status": 200, "body": msgspec.to_builtins(history)})

    def list_rides(self) -> Response[str]:
        """List the rides of a customer."""
        query = http.list_query_of(self._event)
        try:
            page = self._bookings.of_customer(query.customer, query.limit, query.next)
        except TokenError as error:
            raise refused(Kind.INVALID_REQUEST, "is no token of an earlier page", field="next") from error
        return http.respond({"status": 200, "body": msgspec.to_builtins(page)})

    def simulate(self) -> Response[str]:
        """Start a simulation."""
        if not self._simulates:
            raise refused(Kind.FORBIDDEN, "simulated rides would stand among the real ones")
        key = http.key_of(self._event)
        return http.respond(self._service.simulate(key, http.command_of(self._event, Simulate)))

    def openapi(self) -> Response[str]:
        """Describe the API."""
        from api.openapi import document  # noqa: PLC0415 - most processes are never asked

        return Response(200, content_types.APPLICATION_JSON, json.dumps(document()))


def make_handler(
    settings: Settings,
    *,
    dynamodb: "DynamoDBClient | None" = None,
    transport: Transport | None = None,
    simulate: StartSimulation | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Handler:
    """Return the Lambda handler.

    Args:
        settings: the function's environment.
        dynamodb: reads the tables; left out, a client of its own.
        transport: how the transactions reach DynamoDB; left out, a client of its own.
        simulate: starts a simulation; left out, by an asynchronous invocation of the simulator.
        now: the present, with a time zone.
    """
    client = dynamodb or dynamodb_client(connect_s=0.7, read_s=0.8)  # all tries fit inside a request
    bookings = Bookings(client, settings.booking_table)
    service = Service(
        # On the table wherever the consumers keep theirs: an answer is committed with the ride that it is about.
        DynamoDBStore(settings.idempotency_table, transport=transport),
        bookings,
        settings.outbox_table,
        settings.aws_region,
        simulate=simulate or _invoker(settings.simulator_function_name),
        now=now,
        observe=observe,
        kept=timedelta(days=settings.outbox_days),
    )
    app = APIGatewayHttpResolver()
    Routes(app, service, bookings, Histories(client, settings.ride_table), simulates=settings.stage != "prod")
    _word_errors(app)

    def handler(raw: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        with within(context):
            return app.resolve(raw, cast("Any", context))

    return handler


def _unknown(name: str) -> ProblemError:
    return refused(Kind.UNKNOWN_RIDE, f"no ride is known as {name}, or its first event is still under way")


def _word_errors(app: APIGatewayHttpResolver) -> None:
    """Word what routes raise. What is not named here is a bug: it is raised, logged and counted by Lambda."""

    def known(error: ProblemError) -> Response[str]:
        return http.respond_problem(error.problem)

    def nowhere(_: NotFoundError) -> Response[str]:
        # API Gateway lets no other path through than those of rides, whose names have characters that no ride's has.
        return known(_unknown("that"))

    def reused(_: PayloadMismatchError) -> Response[str]:
        detail = "this key was sent with another request: choose a new one for each"
        return http.respond_problem(problem(Kind.KEY_REUSED, detail, field="Idempotency-Key"))

    def forgotten(_: EffectConflictError) -> Response[str]:
        detail = "a ride was booked with this key, and its answer is no longer remembered"
        return http.respond_problem(problem(Kind.KEY_FORGOTTEN, detail, field="Idempotency-Key"))

    def busy(error: BusyError) -> Response[str]:
        detail = "another copy of this request is being processed"
        return http.respond_problem(problem(Kind.IN_PROGRESS, detail), error.lease_left_ms / 1000)

    def unavailable(error: Exception) -> Response[str]:
        logger.warning("a service gave no answer", exc_info=error)
        detail = "it is not known whether the request took effect: send it again, with the same key"
        return http.respond_problem(problem(Kind.UNAVAILABLE, detail), 1)

    app.exception_handler(ProblemError)(known)
    app.not_found(nowhere)
    app.exception_handler(PayloadMismatchError)(reused)
    app.exception_handler(EffectConflictError)(forgotten)
    app.exception_handler(BusyError)(busy)
    app.exception_handler([RetryableError, ClientError, BotoCoreError])(unavailable)


def _invoker(function_name: str) -> StartSimulation:
    @cache
    def client() -> "LambdaClient":
        config = Config(connect_timeout=1, read_timeout=3, retries={"mode": "standard", "total_max_attempts": 2})
        return cast("LambdaClient", get_session().create_client("lambda", config=config))

    def simulate(request: Mapping[str, Any]) -> None:
        client().invoke(FunctionName=function_name, InvocationType="Event", Payload=json.dumps(request).encode())

    return simulate
