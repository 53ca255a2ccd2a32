"""The OpenAPI document, generated from the table of routes and its types.

The API serves it, and `make contract` writes it to docs/openapi.json.
"""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec

from api.problems import Kind, Problem
from api.requests import DEFAULT_PAGE, PageSize, PageToken, in_query
from api.routes import DESCRIPTION, ROUTES, Route
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
_STORED: Final = {
    Kind.INVALID_FIELD,
    Kind.SIMULATION_RUNNING,
    Kind.UNKNOWN_RIDE,
    Kind.STALE_VERSION,
    Kind.ILLEGAL_TRANSITION,
    Kind.TOO_MANY_CHANGES,
}
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


type Operation = dict[str, Any]

_DESCRIPTION: Final = {
    "get": {
        "operationId": "describe",
        "summary": "Describe the API",
        "responses": {
            "200": {
                "description": "This document.",
                "content": {_JSON: {"schema": {"type": "object"}}},
            }
        },
    }
}


def document() -> dict[str, Any]:
    """Return the document, in JSON's types."""
    answers = [route.success.body for route in ROUTES.values()]
    bodies = [route.request for route in ROUTES.values() if route.writes]
    types: list[Any] = answers + bodies
    _, schemas = msgspec.json.schema_components([*types, Problem, Ride], ref_template=_SCHEMAS)
    for name in ("Booking", "RideView"):
        schemas[name] = {
            "title": name,
            "description": schemas[name]["description"],
        } | added_to_ride(schemas, name)
    paths: dict[str, Any] = {}
    for route in ROUTES.values():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths[DESCRIPTION.removeprefix("GET ")] = _DESCRIPTION
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CarRide",
            "version": "1.0.0",
            "description": (
                "Books, changes, lists and shows rides. Every POST and PUT request has an "
                "`Idempotency-Key`. For 24 hours, further requests with the same key have no "
                "effect and get the stored answer, even if it is a refusal. Use a new key for a "
                "new try. The caller who books a ride owns it; only its owner and staff "
                "can see it. Errors are problem details of RFC 9457, whose `type` begins with "
                "`urn:acr:car-ride:problem:`."
            ),
        },
        "paths": paths,
        "components": {
            "headers": _HEADERS,
            "parameters": _parameters(),
            "responses": {
                name: response
                for route in ROUTES.values()
                for _, name, response in _problems_of(route)
            },
            "schemas": {name: schemas[name] for name in sorted(schemas)},
        },
    }


def added_to_ride(schemas: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a ride's subclass as the ride's schema and what the subclass adds."""
    of_a_ride = schemas["Ride"]["properties"].keys()
    schema = schemas[name]
    added = dict(schema["properties"])
    for field in of_a_ride:
        added.pop(field, None)
    reference = {"$ref": _SCHEMAS.format(name="Ride")}
    if not added:
        return reference
    required = [field for field in schema["required"] if field in added]
    return {"allOf": [reference], "properties": added, "required": required}


def _operation(route: Route) -> Operation:
    operation: Operation = {"operationId": route.operation_id, "summary": route.summary}
    names = [*_parameters_of(route)]
    if names:
        operation["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    if route.writes:
        content = {_JSON: {"schema": _schema(route.request)}}
        operation["requestBody"] = {"required": True, "content": content}
    status, meaning, body = route.success
    headers: tuple[str, ...] = (REPLAYED_HEADER,) if route.writes else ()
    if status == HTTPStatus.CREATED:
        headers += ("Location",)
    responses = {str(status): _response(meaning, _JSON, body, headers)}
    for problem_status, name, _ in _problems_of(route):
        responses[str(problem_status)] = {"$ref": f"#/components/responses/{name}"}
    return operation | {"responses": responses}


def _parameters_of(route: Route) -> Iterator[str]:
    """Yield the names by which a route's parameters are described."""
    if "{id}" in route.path:
        yield "RideID"
    if route.read is in_query:
        for field in msgspec.structs.fields(route.request):
            yield field.encode_name.capitalize()
    if route.writes:
        yield "IdempotencyKey"


def _problems_of(route: Route) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield status, name and response of each status that a problem of the route has.

    Routes share the responses of one name.
    """
    common = _EVERY_WRITE if route.writes else _EVERY_READ
    problems = common + route.problems
    for status in sorted({kind.status for kind in problems}):
        kinds = [kind for kind in problems if kind.status == status]
        name = ".".join(kinds)
        headers: tuple[str, ...] = ()
        if route.writes and _STORED.intersection(kinds):
            name += ".replayed"
            headers = (REPLAYED_HEADER,)
        if _RETRIED.intersection(kinds):
            headers += ("Retry-After",)
        meaning = ", ".join(f"`{kind}`" for kind in kinds)
        yield status, name, _response(meaning, MEDIA_TYPE, Problem, headers)


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
    return {
        "IdempotencyKey": {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "Identifies the request, e.g. a new UUID for each.",
            "schema": key,
            "required": True,
        },
        "RideID": {
            "name": "id",
            "in": "path",
            "description": "The ride's orderID.",
            "schema": _schema(OrderID),
            "required": True,
        },
        "Customer": {
            "name": "customer",
            "in": "query",
            "description": "The customer.",
            "schema": _schema(CustomerID),
            "required": True,
        },
        "Limit": {
            "name": "limit",
            "in": "query",
            "description": "The largest number of rides in a page.",
            "schema": limit,
            "required": False,
        },
        "Next": {
            "name": "next",
            "in": "query",
            "description": "`next` of the previous page.",
            "schema": _schema(PageToken),
            "required": False,
        },
    }


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_SCHEMAS)
    return schema
