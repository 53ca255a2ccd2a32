"""HTTP in, HTTP out: reads requests, and words the answers. Whatever is wrong with a request is found here or before.

Nothing is written, and no key is remembered, for a request that cannot be read.
"""

import base64
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from aws_lambda_powertools.event_handler import Response, content_types
from msgspec import Meta, Struct

from api.commands import CHANGES, Change
from api.problems import MEDIA_TYPE, Kind, Problem, refused
from api.service import Answer, Key
from carride.ride import CustomerID, OrderID
from carride.shapes import ShapeError, shaped
from carride.telemetry import current_trace

type Event = Mapping[str, Any]
"""A request as API Gateway hands it over, in payload format 2.0."""

LARGEST_BODY: Final = 16_384
"""Bytes; the largest request of the API is a tenth of it."""

KEY_HEADER: Final = "idempotency-key"
KEY_PATTERN: Final = r"^[!-~]{1,128}$(?!\n)"
"""Of the Idempotency-Key: printable ASCII without blanks."""

_is_key: Final = re.compile(KEY_PATTERN).search
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


def key_of(event: Event) -> Key:
    """Return who asks, and their idempotency key.

    Raises:
        ProblemError: there is no key, or it has not its form.
    """
    key = event["headers"].get(KEY_HEADER)
    if key is None:
        raise refused(
            Kind.INVALID_REQUEST,
            "send an Idempotency-Key with every POST and PUT, and the same one when you send it again",
            field="Idempotency-Key",
        )
    if not _is_key(key):
        raise refused(
            Kind.INVALID_REQUEST, "1 to 128 printable ASCII characters without blanks", field="Idempotency-Key"
        )
    return _caller(event), key


def _caller(event: Event) -> str:
    """Who asks, by what stays the same when their session changes; all the same where nobody is asked."""
    match event["requestContext"].get("authorizer"):
        case {"jwt": {"claims": {"sub": str(subject)}}}:
            return f"jwt:{subject}"
        case {"iam": {"userId": str(user)}}:
            return f"iam:{user.partition(':')[0]}"  # behind the colon is the name of a role's session
        case _:
            return "anyone"


def trace_of(event: Event) -> str | None:
    """Return the trace that the request is part of, as W3C Trace Context writes it; None where there is none.

    It is the client's, or else the one that X-Ray began with this invocation.
    """
    traceparent: str = event["headers"].get("traceparent", "")
    return traceparent if _is_trace(traceparent) else current_trace()


def command_of[S: Struct](event: Event, shape: type[S]) -> S:
    """Return the body as a command.

    Raises:
        ProblemError: it is none.
    """
    return _shaped(_body_of(event), shape, Kind.INVALID_FIELD)


def change_of(event: Event) -> tuple[str, Change]:
    """Return the body as a change, and the action that it asks for.

    Raises:
        ProblemError: it is none.
    """
    body = _body_of(event)
    action = body.pop("action", None)
    change = CHANGES.get(action) if isinstance(action, str) else None
    if change is None:
        raise refused(Kind.INVALID_FIELD, f"has to be one of {', '.join(CHANGES)}", field="action")
    return str(action), _shaped(body, change, Kind.INVALID_FIELD)


def list_query_of(event: Event) -> ListQuery:
    """Return the query of a list of rides.

    Raises:
        ProblemError: a parameter is missing, unknown, or has not its form.
    """
    query = event.get("queryStringParameters") or {}
    return _shaped(query, ListQuery, Kind.INVALID_REQUEST, strict=False)


def is_order_id(text: str) -> bool:
    """Say whether a ride could have this id."""
    try:
        shaped({"id": text}, RidePath)
    except ShapeError:
        return False
    return True


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


def respond(answer: Answer) -> Response[str]:
    """Word an answer."""
    is_problem = answer["status"] >= 400  # noqa: PLR2004 - HTTP's errors
    return Response(
        status_code=answer["status"],
        content_type=MEDIA_TYPE if is_problem else content_types.APPLICATION_JSON,
        body=msgspec.json.encode(answer["body"]).decode(),
        headers={"Location": answer["location"]} if "location" in answer else None,
    )


def respond_problem(problem: Problem, retry_after_s: float | None = None) -> Response[str]:
    """Word a problem."""
    return Response(
        status_code=problem.status,
        content_type=MEDIA_TYPE,
        body=msgspec.json.encode(problem).decode(),
        headers=None if retry_after_s is None else {"Retry-After": str(max(1, math.ceil(retry_after_s)))},
    )
