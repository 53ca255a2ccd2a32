"""Reads requests, and refuses invalid ones before anything is written, even their key."""

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from api.callers import Caller, Who
from api.commands import CHANGES, AnyChange
from api.problems import Kind, refused
from carride.decoding import FieldError, shaped
from carride.ride import CustomerID, OrderID
from carride.telemetry import current_trace
from carride_idempotency import HttpProblemError, idempotency_key

type Event = Mapping[str, Any]  # a request in API Gateway's payload format 2.0

LARGEST_BODY: Final = 16_384  # bytes; ten times the largest valid request

_is_trace: Final = re.compile(
    r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
).fullmatch
_is_json_type: Final = re.compile(
    r"application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE
).fullmatch

DEFAULT_PAGE: Final = 20

type PageSize = Annotated[int, Meta(ge=1, le=100)]
type PageToken = Annotated[str, Meta(min_length=1, max_length=256)]


class ListRides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the rides of a customer: the query of the request."""

    customer: CustomerID
    limit: PageSize = DEFAULT_PAGE
    next: PageToken | None = None


class ReadRide(Struct, frozen=True):
    """Show a ride: the path of the request."""

    id: OrderID


class ApiRequest(NamedTuple):
    """A request that could be read."""

    event: Event
    caller: Caller
    who: Who  # may send it
    command: Any  # of the type that its route has

    @property
    def traceparent(self) -> str | None:
        """The client's trace, or else X-Ray's, in the format of W3C Trace Context; or None."""
        traceparent: str = self.event["headers"].get("traceparent", "")
        if _is_trace(traceparent):
            return traceparent
        return current_trace()


def record_key(request: ApiRequest) -> tuple[str, str]:
    """Return the caller and its idempotency key. Two callers never share a record."""
    return request.caller.subject, idempotency_key(request.event)


def fingerprinted(request: ApiRequest) -> object:
    """Return what must be the same under one key, besides the route. The trace may differ.

    The command stays a Struct, whose defaults are not fingerprinted. So a retry that arrives after
    a deployment has the same fingerprint, although the command has gained an optional field.
    """
    return [request.command.__struct_config__.tag, request.command]


def in_body[S: Struct](event: Event, shape: type[S]) -> S:
    """Read what the body asks for."""
    return _shaped(_body_of(event), shape)


def in_body_by_action(event: Event, _: object) -> AnyChange:
    """Read the change that the body's ``action`` names."""
    body = _body_of(event)
    action = body.pop("action", None)
    shape = CHANGES.get(action) if isinstance(action, str) else None
    if shape is None:
        raise refused(Kind.INVALID_FIELD, f"must be one of {', '.join(CHANGES)}", field="action")
    command = _shaped(body, shape)
    in_path(event, ReadRide)
    return command


def in_query[S: Struct](event: Event, shape: type[S]) -> S:
    """Read what the query asks for."""
    query = event.get("queryStringParameters") or {}
    return _shaped(query, shape, Kind.INVALID_REQUEST, strict=False)


def in_path[S: Struct](event: Event, shape: type[S]) -> S:
    """Read what the path asks for."""
    path: Mapping[str, str] = event["pathParameters"]
    try:
        return shaped(path, shape)
    except FieldError as error:
        raise unknown_ride(path["id"]) from error


def unknown_ride(order_id: str) -> HttpProblemError:
    """Return the error for a ride that does not exist, or that the caller may not see."""
    return refused(
        Kind.UNKNOWN_RIDE,
        f"no ride is known as {order_id!a}, or its first event has not arrived yet",
    )


def _body_of(event: Event) -> dict[str, Any]:
    text: str = event.get("body") or ""
    content = base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()
    if len(content) > LARGEST_BODY:
        raise refused(
            Kind.TOO_LARGE, f"the body has {len(content):,} bytes; {LARGEST_BODY:,} are allowed"
        )
    media_type = event["headers"].get("content-type")
    if media_type is not None and not _is_json_type(media_type):
        raise refused(Kind.UNSUPPORTED_MEDIA_TYPE, "send application/json", field="Content-Type")
    try:
        body = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refused(Kind.INVALID_REQUEST, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise refused(Kind.INVALID_REQUEST, "the body is not a JSON object")
    return body


def _shaped[S: Struct](
    raw: object, shape: type[S], kind: Kind = Kind.INVALID_FIELD, *, strict: bool = True
) -> S:
    try:
        return shaped(raw, shape, strict=strict)
    except FieldError as error:
        raise refused(kind, error.problem, field=error.field) from error
