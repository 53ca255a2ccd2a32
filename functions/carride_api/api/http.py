"""Reads requests. Whatever is wrong with one is found here, before anything is written or a key is remembered."""

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from api.callers import Action, Caller, require
from api.commands import CHANGES, Book, Change, Simulate
from api.problems import Kind, refused
from carride.decoding import ShapeError, shaped
from carride.ride import CustomerID, OrderID
from carride.telemetry import current_trace
from idempotency.http import HttpProblemError, idempotency_key

type Event = Mapping[str, Any]
"""A request as API Gateway hands it over, in payload format 2.0."""

LARGEST_BODY: Final = 16_384
"""Bytes; the largest request of the API is a tenth of it."""

_is_trace: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_JSON_TYPES: Final = re.compile(r"application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE).fullmatch

DEFAULT_PAGE: Final = 20
"""How many rides a list shows at most."""

type PageSize = Annotated[int, Meta(ge=1, le=100)]
type PageToken = Annotated[str, Meta(min_length=1, max_length=256)]


class ListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a list of rides."""

    customer: CustomerID
    limit: PageSize = DEFAULT_PAGE
    next: PageToken | None = None


class RidePath(Struct, frozen=True):
    """The part of a path that names a ride."""

    id: OrderID


class Request[C](NamedTuple):
    """A request that asks for a change."""

    event: Event
    command: C
    caller: Caller

    @property
    def order_id(self) -> str:
        """The ride that the path names."""
        order_id: str = self.event["pathParameters"]["id"]
        return order_id

    @property
    def traceparent(self) -> str | None:
        """The trace that the request is part of, as W3C Trace Context writes it; None where there is none.

        It is the client's, or else the one that X-Ray began with this invocation.
        """
        traceparent: str = self.event["headers"].get("traceparent", "")
        return traceparent if _is_trace(traceparent) else current_trace()


def key_of(request: Request[Any]) -> tuple[str, str]:
    """Return who asks, and the idempotency key that they chose: callers cannot meet in one record."""
    return request.caller.subject, idempotency_key(request.event)


def asked_of(request: Request[Any]) -> object:
    """Return what is asked for, by which one request is told from another under the same key, besides the route.

    How it was asked (the trace) does not belong to it: a retry comes with another.
    """
    return msgspec.to_builtins(request.command)


def booking(event: Event, caller: Caller) -> Request[Book]:
    """Read a request to book a ride.

    Raises:
        HttpProblemError: it is none.
    """
    return Request(event, _shaped(_body_of(event), Book, Kind.INVALID_FIELD), caller)


def simulation(event: Event, caller: Caller, *, allowed: bool) -> Request[Simulate]:
    """Read a request to start a simulation.

    Raises:
        HttpProblemError: it is none, or not allowed here or to this caller.
    """
    if not allowed:
        raise refused(Kind.FORBIDDEN, "simulated rides would stand among the real ones")
    require(caller, Action.SIMULATE)
    return Request(event, _shaped(_body_of(event), Simulate, Kind.INVALID_FIELD), caller)


def change(event: Event, caller: Caller) -> Request[Change]:
    """Read a request to change a ride.

    Raises:
        HttpProblemError: it is none, no ride could be called so, or the caller may change no ride like this.
    """
    body = _body_of(event)
    action = body.pop("action", None)
    shape = CHANGES.get(action) if isinstance(action, str) else None
    if shape is None:
        raise refused(Kind.INVALID_FIELD, f"has to be one of {', '.join(CHANGES)}", field="action")
    command = _shaped(body, shape, Kind.INVALID_FIELD)
    order_id_of(event)
    require(caller, command.action)
    return Request(event, command, caller)


def list_query_of(event: Event) -> ListQuery:
    """Return the query of a list of rides.

    Raises:
        HttpProblemError: a parameter is missing, unknown, or has not its form.
    """
    query = event.get("queryStringParameters") or {}
    return _shaped(query, ListQuery, Kind.INVALID_REQUEST, strict=False)


def order_id_of(event: Event) -> str:
    """Return the ride that the path names.

    Raises:
        HttpProblemError: no ride could be called so.
    """
    order_id: str = event["pathParameters"]["id"]
    try:
        return shaped({"id": order_id}, RidePath).id
    except ShapeError as error:
        raise unknown_ride(order_id) from error


def unknown_ride(name: str) -> HttpProblemError:
    """Return the error to raise for a ride that is not there."""
    return refused(Kind.UNKNOWN_RIDE, f"no ride is known as {name}, or its first event is still under way")


def _body_of(event: Event) -> dict[str, Any]:
    text: str = event.get("body") or ""
    content = base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()
    if len(content) > LARGEST_BODY:
        raise refused(Kind.TOO_LARGE, f"{len(content)} bytes are more than {LARGEST_BODY}")
    media_type = event["headers"].get("content-type")
    if media_type is not None and not _JSON_TYPES(media_type):
        raise refused(Kind.UNSUPPORTED_MEDIA_TYPE, "send application/json", field="Content-Type")
    try:
        body = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refused(Kind.INVALID_REQUEST, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise refused(Kind.INVALID_REQUEST, "the body is no JSON object")
    return body


def _shaped[S: Struct](raw: object, shape: type[S], kind: Kind, *, strict: bool = True) -> S:
    try:
        return shaped(raw, shape, strict=strict)
    except ShapeError as error:
        raise refused(kind, error.problem, field=error.field) from error
