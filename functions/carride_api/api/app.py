"""The routes: what reads a request, and what does what it asks for."""

import functools
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from msgspec import Struct

from api import http
from api.callers import Action, Caller, caller_of, refusal
from api.http import Event, Request
from api.problems import TYPES, Kind, refused
from api.service import Service
from api.tables import Bookings, Histories, TokenError
from carride.clients import dynamodb_client
from carride.items import Outbox
from carride.telemetry import logger, observe
from idempotency import Consumer, DynamoDBStore, EffectConflictError, Operation, Policy, RetryableError
from idempotency.consumer import LambdaContext
from idempotency.errors import PayloadMismatchError
from idempotency.http import HttpHandler
from idempotency.stores.transport import Transport

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient

type Identify = Callable[[Event], Caller]
type StartSimulation = Callable[[Mapping[str, Any]], None]

WINDOW_S: Final = 86_400
"""For how long a key is remembered: longer than any client retries."""

# Nothing but an outage or a bug makes an attempt fail, and the client may retry for as long as it likes.
_CLAIMED: Final = Policy(window=WINDOW_S, max_attempts=1_000)
# A conflict on a ride is another request that was faster: run again, the decision sees what that one has done.
_ATOMIC: Final = Policy(window=WINDOW_S, max_attempts=1_000, atomic=True, conflict_reruns=2)

_TURN_S: Final = 900
"""For how long a simulation keeps others from beginning: the longest that the simulator can run."""
_TURN: Final = Policy(window=_TURN_S, max_attempts=1_000)
_MOST_EVENTS: Final = {"local": 31_000, "dev": 3_000, "prod": 0}
"""Of one simulation, by stage. With a turn every 15 minutes, that is 288,000 a day in `dev`."""


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
    staff_group: str = ""


class Reads:
    """What the API shows.

    Args:
        bookings: the rides, as they were booked and changed.
        histories: the rides, as the read model tells them.
        identify: says who sent a request, or raises HttpProblemError.
    """

    def __init__(self, bookings: Bookings, histories: Histories, identify: Identify) -> None:
        self._bookings = bookings
        self._histories = histories
        self._identify = identify

    def list_rides(self, event: Event, _: Operation) -> object:
        """List the rides of a customer that the caller may see."""
        caller = self._identify(event)
        query = http.list_query_of(event)
        try:
            page = self._bookings.of_customer(
                query.customer,
                query.limit,
                query.next,
                visible=lambda ride: refusal(caller, Action.LIST, ride.owner) is None,
            )
            return msgspec.to_builtins(page)
        except TokenError as error:
            raise refused(Kind.INVALID_REQUEST, "is no token of an earlier page", field="next") from error

    def read(self, event: Event, _: Operation) -> object:
        """Show a ride and what happened to it, if the caller may see it. Only for staff its owner does not matter."""
        caller = self._identify(event)
        order_id = http.order_id_of(event)
        booking = None if caller.staff else self._bookings.find(order_id)
        if refusal(caller, Action.READ, booking.owner if booking else None):
            raise http.unknown_ride(order_id)
        history = self._histories.find(order_id)
        if history is None:
            raise http.unknown_ride(order_id)
        return msgspec.to_builtins(history)

    def describe(self, _event: Event, _: Operation) -> object:
        """Describe the API."""
        from api.openapi import document  # noqa: PLC0415 - most processes are never asked

        return document()


def make_handler(
    settings: Settings,
    *,
    dynamodb: "DynamoDBClient | None" = None,
    transport: Transport | None = None,
    simulate: StartSimulation | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> HttpHandler:
    """Return the Lambda handler.

    Args:
        settings: the function's environment.
        dynamodb: reads the tables; left out, a client of its own.
        transport: how the transactions reach DynamoDB; left out, a client of its own.
        simulate: starts a simulation; left out, by an asynchronous invocation of the simulator.
        now: the present, with a time zone.
    """
    client = dynamodb or dynamodb_client(connect_s=0.7, read_s=0.8)  # all tries fit inside a request
    # On the table wherever the consumers keep theirs: an answer is committed with the ride that it is about.
    store = DynamoDBStore(settings.idempotency_table, transport=transport)
    bookings = Bookings(client, settings.booking_table)
    is_local = settings.stage == "local"
    identify = functools.partial(caller_of, staff_group=settings.staff_group, everyone=is_local)
    reads = Reads(bookings, Histories(client, settings.ride_table), identify)
    turns = Consumer[None]("carride-api-simulation-turn", store, policy=_TURN)

    def take_turn(request: str) -> None:
        try:
            with turns.operation("turn", request):
                pass
        except PayloadMismatchError as error:
            detail = f"a simulation was started less than {_TURN_S // 60} minutes ago"
            raise refused(Kind.SIMULATION_RUNNING, detail) from error

    service = Service(
        bookings,
        settings.booking_table,
        Outbox(settings.outbox_table, settings.aws_region, timedelta(days=settings.outbox_days)),
        simulate=simulate or _invoker(settings.simulator_function_name),
        take_turn=(lambda _: None) if is_local else take_turn,
        most_events=_MOST_EVENTS[settings.stage],
        now=now,
    )

    def once[C](
        name: str,
        policy: Policy,
        read: Callable[[Event, Caller], Request[C]],
        work: Callable[[Request[C], Operation], object],
    ) -> HttpHandler:
        consumer = Consumer[Request[C]](
            name,
            store,
            parse=lambda event: read(event, identify(event)),
            key=http.key_of,
            payload=http.asked_of,
            policy=policy,
            observe=observe,
            region=settings.aws_region,
        )
        return consumer.http_handler(problem_types=TYPES)(_repeatable(work))

    def each_time(work: Callable[[Event, Operation], object]) -> HttpHandler:
        return Consumer[Event]("carride-api", store).http_handler(problem_types=TYPES)(_repeatable(work))

    simulation = functools.partial(http.simulation, allowed=settings.stage != "prod")
    routes = {
        "POST /carrides": once("carride-api", _ATOMIC, http.booking, service.book),
        "PUT /carrides/{id}": once("carride-api", _ATOMIC, http.change, service.change),
        # Starting a simulation is no write in a table: it is claimed first, and a copy meanwhile is told to wait.
        "POST /carrides/simulate": once("carride-api-simulate", _CLAIMED, simulation, service.simulate),
        "GET /carrides": each_time(reads.list_rides),
        "GET /carrides/{id}": each_time(reads.read),
        "GET /openapi.json": each_time(reads.describe),
    }

    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        try:
            return routes[event["routeKey"]](event, context)  # API Gateway lets no other request through
        except EffectConflictError:  # the ride that this key booked: an overtaken change runs again, and is stale then
            detail = "a ride was booked with this key, and its answer is no longer remembered"
            return refused(Kind.KEY_FORGOTTEN, detail, field="Idempotency-Key").response(TYPES)

    return handler


def _repeatable[**P, R](work: Callable[P, R]) -> Callable[P, R]:
    """Make a call of AWS that failed a failure that the client can mend by sending its request again."""

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except (ClientError, BotoCoreError) as error:
            logger.warning("a service gave no answer", exc_info=error)
            raise RetryableError("a service gave no answer") from error

    return call


def _invoker(function_name: str) -> StartSimulation:
    @cache
    def client() -> "LambdaClient":
        config = Config(connect_timeout=1, read_timeout=3, retries={"mode": "standard", "total_max_attempts": 2})
        return cast("LambdaClient", get_session().create_client("lambda", config=config))

    def simulate(request: Mapping[str, Any]) -> None:
        client().invoke(FunctionName=function_name, InvocationType="Event", Payload=json.dumps(request).encode())

    return simulate
