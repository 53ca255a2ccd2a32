"""The OpenAPI document, made from the types that requests are read with.

The API serves it, and `docs/openapi.json` is a copy of what it serves.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from api.commands import Accept, Book, Cancel, ChangeDestination, Complete, Simulate, Start
from api.http import DEFAULT_PAGE, PageSize, PageToken
from api.problems import Kind, Problem, status_of
from api.tables import History, Page
from carride.bookings import Booking
from carride.ride import CustomerID, OrderID
from idempotency.http import KEY_PATTERN, MEDIA_TYPE, REPLAYED_HEADER

type AnyChange = Accept | Start | Complete | Cancel | ChangeDestination

_JSON: Final = "application/json"
_SCHEMAS: Final = "#/components/schemas/{name}"
_EVERY_READ: Final = (Kind.FORBIDDEN, Kind.UNAVAILABLE)
_EVERY_WRITE: Final = (
    Kind.INVALID_REQUEST,
    Kind.TOO_LARGE,
    Kind.UNSUPPORTED_MEDIA_TYPE,
    Kind.INVALID_FIELD,
    Kind.FORBIDDEN,
    Kind.KEY_REUSED,
    Kind.IN_PROGRESS,
    Kind.UNAVAILABLE,
)

_REMEMBERED: Final = {
    Kind.INVALID_FIELD,
    Kind.UNKNOWN_RIDE,
    Kind.STALE_VERSION,
    Kind.ILLEGAL_TRANSITION,
    Kind.TOO_MANY_CHANGES,
    Kind.SIMULATION_RUNNING,
}
"""What a ride or the simulator refuses is an answer: it is replayed to whoever sends the request again."""
_RETRIED: Final = {Kind.IN_PROGRESS, Kind.UNAVAILABLE}
_HEADERS: Final = {
    REPLAYED_HEADER: {
        "description": "The request was answered before, and this is that answer.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Location": {"description": "Path of the ride.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
}


class Route(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    operation_id: str
    summary: str
    answers: tuple[int, str, Any]
    """Status, what it means, and the type of the body."""
    problems: tuple[Kind, ...]
    body: Any = None
    parameters: tuple[str, ...] = ()
    """Names of `_PARAMETERS`."""


ROUTES: Final = (
    Route(
        "post",
        "/carrides",
        "bookRide",
        "Book a ride",
        (201, "The ride is booked. Its read model follows in a moment.", Booking),
        (*_EVERY_WRITE, Kind.KEY_FORGOTTEN),
        Book,
        ("IdempotencyKey",),
    ),
    Route(
        "get",
        "/carrides",
        "listRides",
        "List the rides of a customer, the newest first",
        (200, "A page of rides. One that was booked just now may be missing yet.", Page),
        (Kind.INVALID_REQUEST, *_EVERY_READ),
        parameters=("Customer", "Limit", "Next"),
    ),
    Route(
        "put",
        "/carrides/{id}",
        "changeRide",
        "Accept, start, complete or cancel a ride, or change its destination",
        (200, "The ride as it is now.", Booking),
        (*_EVERY_WRITE, Kind.UNKNOWN_RIDE, Kind.STALE_VERSION, Kind.ILLEGAL_TRANSITION, Kind.TOO_MANY_CHANGES),
        AnyChange.__value__,
        ("RideID", "IdempotencyKey"),
    ),
    Route(
        "get",
        "/carrides/{id}",
        "readRide",
        "Show a ride and what happened to it",
        (200, "The ride, as far as its events have arrived.", History),
        (Kind.UNKNOWN_RIDE, *_EVERY_READ),
        parameters=("RideID",),
    ),
    Route(
        "post",
        "/carrides/simulate",
        "simulateRides",
        "Start a simulation, where the stage allows it",
        (202, "The simulation has been started: what was asked of the simulator.", dict[str, Any]),
        (*_EVERY_WRITE, Kind.SIMULATION_RUNNING),
        Simulate,
        ("IdempotencyKey",),
    ),
    Route(
        "get",
        "/openapi.json",
        "describe",
        "Describe the API",
        (200, "This document.", dict[str, Any]),
        (),
    ),
)


def document() -> dict[str, Any]:
    """Return the document, in JSON's types."""
    types: list[Any] = [route.answers[2] for route in ROUTES] + [route.body for route in ROUTES if route.body]
    _, schemas = msgspec.json.schema_components([*types, Problem], ref_template=_SCHEMAS)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CarRide",
            "version": "1.0.0",
            "description": (
                "Books, changes and shows rides. Every request that changes something carries an `Idempotency-Key`: "
                "sent again with the same key, it takes effect once and is answered as before, refusals included, for "
                "24 hours. A new attempt at what was refused needs a new key. Whoever books a ride owns it: to others, "
                "staff aside, it is unknown. Problems have the form of RFC 9457; "
                "their `type` begins with `urn:acr:car-ride:problem:`."
            ),
        },
        "paths": _paths(),
        "components": {
            "headers": _HEADERS,
            "parameters": _parameters(),
            "responses": {name: response for route in ROUTES for _, name, response in _problems_of(route)},
            "schemas": {name: schemas[name] for name in sorted(schemas)},
        },
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return paths


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.operation_id, "summary": route.summary}
    if route.parameters:
        operation["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in route.parameters]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": _schema(route.body)}}}
    operation["responses"] = _responses(route)
    return operation


def _responses(route: Route) -> dict[str, Any]:
    status, meaning, body = route.answers
    made = ("Location",) if status == 201 else ()  # noqa: PLR2004 - HTTP's Created
    success = {str(status): _response(meaning, _JSON, body, _repeated(route) + made)}
    return success | {
        str(status): {"$ref": f"#/components/responses/{name}"} for status, name, _ in _problems_of(route)
    }


def _problems_of(route: Route) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield status, name and response of what can go wrong; routes share responses that have the same name."""
    for status in sorted({status_of(kind) for kind in route.problems}):
        kinds = list(dict.fromkeys(kind for kind in route.problems if status_of(kind) == status))
        headers = _repeated(route) if _REMEMBERED.intersection(kinds) else ()
        name = ".".join(kinds) + (".replayed" if headers else "")
        if _RETRIED.intersection(kinds):
            headers += ("Retry-After",)
        yield status, name, _response(", ".join(f"`{kind}`" for kind in kinds), MEDIA_TYPE, Problem, headers)


def _repeated(route: Route) -> tuple[str, ...]:
    return (REPLAYED_HEADER,) if "IdempotencyKey" in route.parameters else ()


def _response(meaning: str, media_type: str, body: Any, headers: tuple[str, ...]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": meaning, "content": {media_type: {"schema": _schema(body)}}}
    if headers:
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    return response


def _parameters() -> dict[str, Any]:
    def parameter(name: str, place: str, description: str, schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        return {"name": name, "in": place, "description": description, "schema": schema, **more}

    return {
        "IdempotencyKey": parameter(
            "Idempotency-Key",
            "header",
            "Names this request, however often it is sent: a new UUID for each.",
            {"type": "string", "pattern": KEY_PATTERN},
            required=True,
        ),
        "RideID": parameter("id", "path", "The ride's orderID.", _schema(OrderID), required=True),
        "Customer": parameter("customer", "query", "The customer.", _schema(CustomerID), required=True),
        "Limit": parameter("limit", "query", "How many rides at most.", {**_schema(PageSize), "default": DEFAULT_PAGE}),
        "Next": parameter("next", "query", "`next` of the page before.", _schema(PageToken)),
    }


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_SCHEMAS)
    return schema
