"""The routes of the API, in one table.

From it follow how a request is read, who may send it, what answers it, and the OpenAPI document.
The template has the same routes, because API Gateway matches them; a test compares the two.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from api import policies
from api.callers import Action, Who, caller_of, require
from api.commands import AnyChange, Book, Simulate
from api.problems import Kind, refused
from api.requests import (
    ApiRequest,
    Event,
    ListRides,
    ReadRide,
    in_body,
    in_body_by_action,
    in_path,
    in_query,
)
from api.service import Service
from api.tables import Page, RideView
from carride.bookings import Booking
from carride.telemetry import logger
from carride_idempotency import Operation, RetryableError
from carride_idempotency.stores.transport import NoAnswerError, ServiceError


class Success(NamedTuple):
    """The answer to a request that is not refused."""

    status: int
    description: str
    body: Any  # its type


class Route(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    operation_id: str
    summary: str
    may: Mapping[Action, Who]
    """Who may send the request, by what it asks for."""
    request: Any
    """The type of what it asks for."""
    read: Callable[[Event, Any], Any]
    """Reads what it asks for, given the type."""
    handler: Callable[..., object]
    """Answers an `ApiRequest`: a method of `Service`, which gets a write's `Operation` as well."""
    consumer: str
    """Whose policy protects the request: one of `policies.CONSUMERS`."""
    success: Success
    problems: tuple[Kind, ...] = ()
    """The problems besides those that every such request has."""

    @property
    def key(self) -> str:
        """What API Gateway calls the route."""
        return f"{self.method} {self.path}"

    @property
    def writes(self) -> bool:
        """Whether its requests change something."""
        return self.method != "GET"

    @property
    def sole_action(self) -> Action | None:
        """What every request of the route asks for; None if each request says it."""
        if len(self.may) > 1:
            return None
        (action,) = self.may
        return action


_OF_RIDES: Final = (
    Route(
        method="POST",
        path="/carrides",
        operation_id="bookRide",
        summary="Book a ride",
        may={Action.BOOK: Who.EVERY_CALLER},
        request=Book,
        read=in_body,
        handler=Service.book,
        consumer=policies.OF_RIDES,
        success=Success(
            201, "The ride is booked. The read model shows it a moment later.", Booking
        ),
        problems=(Kind.KEY_FORGOTTEN,),
    ),
    Route(
        method="GET",
        path="/carrides",
        operation_id="listRides",
        summary="List a customer's rides, newest first",
        may={Action.LIST: Who.EVERY_CALLER},
        request=ListRides,
        read=in_query,
        handler=Service.list_rides,
        consumer=policies.OF_RIDES,
        success=Success(200, "A page of rides. The newest rides may still be missing.", Page),
        problems=(Kind.INVALID_REQUEST,),
    ),
    Route(
        method="PUT",
        path="/carrides/{id}",
        operation_id="changeRide",
        summary="Accept, start, complete or cancel a ride, or change its destination",
        may={
            Action.ACCEPT: Who.STAFF,
            Action.START: Who.STAFF,
            Action.COMPLETE: Who.STAFF,
            Action.CANCEL: Who.OWNER,
            Action.CHANGE_DESTINATION: Who.STAFF,  # it sets the price
        },
        request=AnyChange,
        read=in_body_by_action,
        handler=Service.change,
        consumer=policies.OF_RIDES,
        success=Success(200, "The ride after the change.", Booking),
        problems=(
            Kind.UNKNOWN_RIDE,
            Kind.STALE_VERSION,
            Kind.ILLEGAL_TRANSITION,
            Kind.TOO_MANY_CHANGES,
        ),
    ),
    Route(
        method="GET",
        path="/carrides/{id}",
        operation_id="readRide",
        summary="Show a ride and what happened to it",
        may={Action.READ: Who.OWNER},
        request=ReadRide,
        read=in_path,
        handler=Service.read_ride,
        consumer=policies.OF_RIDES,
        success=Success(200, "The ride, as far as its events have arrived.", RideView),
        problems=(Kind.UNKNOWN_RIDE,),
    ),
    Route(
        method="POST",
        path="/carrides/simulate",
        operation_id="simulateRides",
        summary="Start a simulation, if the stage allows it",
        may={Action.SIMULATE: Who.STAFF},
        request=Simulate,
        read=in_body,
        handler=Service.simulate,
        consumer=policies.OF_SIMULATIONS,
        success=Success(202, "The simulation has started with these settings.", dict[str, Any]),
        problems=(Kind.SIMULATION_RUNNING,),
    ),
)

ROUTES: Final[Mapping[str, Route]] = {route.key: route for route in _OF_RIDES}
"""The routes of requests about rides, by what API Gateway calls them: ``routeKey``."""

DESCRIPTION: Final = "GET /openapi.json"
"""The route of the OpenAPI document, which depends on nothing of its request."""


class Router(NamedTuple):
    """Reads the requests of a stage, and has each answered by its route.

    In stage ``local`` every caller is staff. In ``prod`` nothing is simulated.
    """

    service: Service
    stage: Literal["local", "dev", "prod"]
    staff_group: str  # see `caller_of`

    def read_request(self, event: Event) -> ApiRequest:
        """Read a request.

        Raises:
            HttpProblemError: the request is invalid, or this caller may not send it.
        """
        caller = caller_of(event, staff_group=self.staff_group, everyone=self.stage == "local")
        route = ROUTES[event["routeKey"]]
        action = route.sole_action
        if action is Action.SIMULATE and self.stage == "prod":
            raise refused(Kind.FORBIDDEN, "production has no simulated rides")
        if action is not None:  # refused before the body is read
            require(caller, action, route.may[action])
        command = route.read(event, route.request)
        if action is None:
            action = command.action
        who = route.may[action]
        require(caller, action, who)
        return ApiRequest(event, caller, who, command)

    def answer(self, request: ApiRequest, operation: Operation | None) -> object:
        """Answer a request by its route, and register its writes with the operation.

        A GET has no operation.

        Raises:
            HttpProblemError: the request is refused.
            RetryableError: DynamoDB or the simulator did not answer; the client sends the request
                again.
        """
        handler = ROUTES[request.event["routeKey"]].handler
        try:
            if operation is None:
                return handler(self.service, request)
            return handler(self.service, request, operation)
        except (NoAnswerError, ServiceError) as error:
            logger.warning("DynamoDB did not answer", exc_info=error)
            raise RetryableError("DynamoDB did not answer") from error
