"""The OpenAPI document, generated from the types of requests and answers.

The API serves it, and `make contract` writes it to docs/openapi.json.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from api.commands import AnyChange, Book
from api.problems import Kind, Problem
from api.requests import DEFAULT_PAGE, PageSize, PageToken
from api.simulations import Simulate
from api.tables import Page, RideView
from carride.bookings import Booking
from carride.ride import CustomerID, OrderID, Ride
from carride_idempotency.http import KEY_PATTERN, MEDIA_TYPE, REPLAYED_HEADER

_JSON: Final = "application/json"
_SCHEMAS: Final = "#/components/schemas/{name}"
_EVERY_READ: Final = (Kind.FORBIDDEN, Kind.UNAVAILABLE)
_BODY: Final = (
    Kind.INVALID_REQUEST,
    Kind.TOO_LARGE,
    Kind.UNSUPPORTED_MEDIA_TYPE,
    Kind.INVALID_FIELD,
)
_EVERY_WRITE: Final = (*_BODY, Kind.FORBIDDEN, Kind.KEY_REUSED, Kind.IN_PROGRESS, Kind.UNAVAILABLE)
_CHANGE: Final = (
    Kind.UNKNOWN_RIDE,
    Kind.STALE_VERSION,
    Kind.ILLEGAL_TRANSITION,
    Kind.TOO_MANY_CHANGES,
)
_STORED: Final = {Kind.INVALID_FIELD, Kind.SIMULATION_RUNNING, *_CHANGE}
"""The refusals that are stored with the key and replayed."""
_RETRIED: Final = {Kind.IN_PROGRESS, Kind.UNAVAILABLE}
_RETRY_SECONDS: Final = {"type": "integer", "minimum": 1}
_HEADERS: Final = {
    REPLAYED_HEADER: {
        "description": "Marks a stored answer.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Location": {"description": "The path of the ride.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds to wait before sending the request again.",
        "schema": _RETRY_SECONDS,
    },
}


class Route(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    operation_id: str
    summary: str
    answer: tuple[int, str, Any]  # the status, its description, and the type of the body
    problems: tuple[Kind, ...]
    body: Any = None
    query: tuple[str, ...] = ()  # the names of the parameters in the query


ROUTES: Final = (
    Route(
        "post",
        "/carrides",
        "bookRide",
        "Book a ride",
        (201, "The ride is booked. The read model shows it a moment later.", Booking),
        (*_EVERY_WRITE, Kind.KEY_FORGOTTEN),
        Book,
    ),
    Route(
        "get",
        "/carrides",
        "listRides",
        "List a customer's rides, newest first",
        (200, "A page of rides. The newest rides may still be missing.", Page),
        (Kind.INVALID_REQUEST, *_EVERY_READ),
        query=("Customer", "Limit", "Next"),
    ),
    Route(
        "put",
        "/carrides/{id}",
        "changeRide",
        "Accept, start, complete or cancel a ride, or change its destination",
        (200, "The ride after the change.", Booking),
        (*_EVERY_WRITE, *_CHANGE),
        AnyChange,
    ),
    Route(
        "get",
        "/carrides/{id}",
        "readRide",
        "Show a ride and what happened to it",
        (200, "The ride, as far as its events have arrived.", RideView),
        (Kind.UNKNOWN_RIDE, *_EVERY_READ),
    ),
    Route(
        "post",
        "/carrides/simulate",
        "simulateRides",
        "Start a simulation, if the stage allows it",
        (202, "The simulation has started with these settings.", dict[str, Any]),
        (*_EVERY_WRITE, Kind.SIMULATION_RUNNING),
        Simulate,
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
    types: list[Any] = [route.answer[2] for route in ROUTES] + [
        route.body for route in ROUTES if route.body
    ]
    _, schemas = msgspec.json.schema_components([*types, Problem, Ride], ref_template=_SCHEMAS)
    for name in ("Booking", "RideView"):
        schemas[name] = {
            "title": name,
            "description": schemas[name]["description"],
        } | added_to_ride(schemas, name)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CarRide",
            "version": "1.0.0",
            "description": (
                "Books, changes, lists and shows rides. Every POST and PUT request has an `Idempotency-Key`. For 24 "
                "hours, further requests with the same key have no effect and get the stored answer, even if it is a "
                "refusal. Use a new key for a new try. The caller who books a ride owns it; only its owner and staff "
                "can see it. Errors are problem details of RFC 9457, whose `type` begins with "
                "`urn:acr:car-ride:problem:`."
            ),
        },
        "paths": paths,
        "components": {
            "headers": _HEADERS,
            "parameters": _parameters(),
            "responses": {
                name: response for route in ROUTES for _, name, response in _problems_of(route)
            },
            "schemas": {name: schemas[name] for name in sorted(schemas)},
        },
    }


def added_to_ride(schemas: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a ride's subclass as the ride's schema and what the subclass adds."""
    ride = schemas["Ride"]["properties"]
    schema = schemas[name]
    added = {field: rule for field, rule in schema["properties"].items() if field not in ride}
    required = [field for field in schema["required"] if field in added]
    reference = {"$ref": _SCHEMAS.format(name="Ride")}
    return {"allOf": [reference], "properties": added, "required": required} if added else reference


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.operation_id, "summary": route.summary}
    key = () if route.method == "get" else ("IdempotencyKey",)
    if names := (("RideID",) if "{id}" in route.path else ()) + route.query + key:
        operation["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": _schema(route.body)}},
        }
    status, meaning, body = route.answer
    location = ("Location",) if status == 201 else ()  # noqa: PLR2004 - HTTP's Created
    responses = {str(status): _response(meaning, _JSON, body, _replayed(route) + location)}
    for problem_status, name, _ in _problems_of(route):
        responses[str(problem_status)] = {"$ref": f"#/components/responses/{name}"}
    return operation | {"responses": responses}


def _problems_of(route: Route) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield status, name and response of each problem status.

    Routes share the responses of one name.
    """
    for status in sorted({kind.status for kind in route.problems}):
        kinds = [kind for kind in route.problems if kind.status == status]
        headers = _replayed(route) if _STORED.intersection(kinds) else ()
        name = ".".join(kinds) + (".replayed" if headers else "")
        headers += ("Retry-After",) if _RETRIED.intersection(kinds) else ()
        yield (
            status,
            name,
            _response(", ".join(f"`{kind}`" for kind in kinds), MEDIA_TYPE, Problem, headers),
        )


def _replayed(route: Route) -> tuple[str, ...]:
    return () if route.method == "get" else (REPLAYED_HEADER,)


def _response(meaning: str, media_type: str, body: Any, headers: tuple[str, ...]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": meaning,
        "content": {media_type: {"schema": _schema(body)}},
    }
    if headers:
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    return response


def _parameters() -> dict[str, Any]:
    key = {"type": "string", "pattern": KEY_PATTERN}
    limit = {**_schema(PageSize), "default": DEFAULT_PAGE}
    parameters = {
        "IdempotencyKey": (
            "Idempotency-Key",
            "header",
            "Identifies the request, e.g. a new UUID for each.",
            key,
            True,
        ),
        "RideID": ("id", "path", "The ride's orderID.", _schema(OrderID), True),
        "Customer": ("customer", "query", "The customer.", _schema(CustomerID), True),
        "Limit": ("limit", "query", "The largest number of rides in a page.", limit, False),
        "Next": ("next", "query", "`next` of the previous page.", _schema(PageToken), False),
    }
    return {
        component: {
            "name": name,
            "in": place,
            "description": description,
            "schema": schema,
            "required": required,
        }
        for component, (name, place, description, schema, required) in parameters.items()
    }


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_SCHEMAS)
    return schema
