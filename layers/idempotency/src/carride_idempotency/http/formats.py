"""Reads HTTP requests and renders responses in the payload formats of AWS.

HTTP APIs and function URLs send format 2.0, REST APIs 1.0, and load balancers a format of their
own. A format is recognised by fields that AWS always sends.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, Self, TypedDict
from urllib.parse import parse_qsl, unquote_plus
from uuid import UUID

from carride_idempotency.fingerprint import fields_of

type Event = Mapping[str, Any]

PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUSES: Final = range(100, 600)
_JSON: Final = "application/json"


def _jsonable(value: Any) -> object:
    """Return what JSON has for a value of another type.

    Raises:
        TypeError: JSON has nothing for it, or only what a reader would have to guess.
        ValueError: the number is not finite.
    """
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a JSON number")
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    kind: Any = type(value)
    if hasattr(kind, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    fields = fields_of(kind)
    if fields is None:
        raise TypeError(f"a {kind.__qualname__} cannot be the body of an answer, or a part of it")
    return {name: getattr(value, name) for name in fields}


to_json: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_jsonable
).encode


class Response(TypedDict):
    """A response in the one form that is stored.

    The body is text, or base64 if ``isBase64Encoded``.
    """

    statusCode: int
    headers: dict[str, list[str]]
    cookies: list[str]
    body: str | None
    isBase64Encoded: bool


class Request(NamedTuple):
    """A request in any of the formats."""

    event: Event
    format: Literal["1.0", "2.0", "alb"]
    method: str
    path: str
    query: list[tuple[str, str]]
    """Decoded, and sorted by name: format 1.0 does not keep the client's order."""

    @classmethod
    def of(cls, event: Event) -> Self:
        """Read an event.

        Raises:
            ConfigurationError: it is not an HTTP request: the function has another trigger.
        """
        match event:
            case {
                "version": "2.0",
                "rawPath": str(path),
                "requestContext": {"http": {"method": str(method)}},
            }:
                pairs = parse_qsl(event.get("rawQueryString") or "", keep_blank_values=True)
                return cls(event, "2.0", method, path, _by_name(pairs))
            case {"httpMethod": str(method), "path": str(path), "requestContext": {"elb": _}}:
                decoded = [
                    (unquote_plus(name), unquote_plus(value)) for name, value in _parameters(event)
                ]
                return cls(event, "alb", method, path, _by_name(decoded))
            case {
                "httpMethod": str(method),
                "path": str(path),
                "resource": str(),
                "requestContext": {},
            }:
                return cls(event, "1.0", method, path, _by_name(_parameters(event)))
        from carride_idempotency.errors.misuse import not_a_request

        raise not_a_request(event)

    def body(self) -> bytes:
        """Return the body.

        Raises:
            ValueError: it claims to be base64, and is not.
        """
        text: str = self.event.get("body") or ""
        if self.event.get("isBase64Encoded"):
            return base64.b64decode(text)
        return text.encode()

    def render(self, response: Response) -> dict[str, Any]:
        """Return a response in the format of this request.

        A load balancer without multi-value headers can send one cookie only: the last one.
        """
        status = response["statusCode"]
        headers = response["headers"]
        cookies = response["cookies"]
        rendered: dict[str, Any] = {
            "statusCode": status,
            "isBase64Encoded": response["isBase64Encoded"],
        }
        if response["body"] is not None:
            rendered["body"] = response["body"]
        if self.format == "alb":
            rendered["statusDescription"] = f"{status} {PHRASES.get(status, 'Unknown')}"
        if self.format != "2.0" and self.event.get("multiValueHeaders") is not None:
            rendered["multiValueHeaders"] = dict(headers)
            if cookies:
                rendered["multiValueHeaders"]["Set-Cookie"] = cookies
            return rendered
        rendered["headers"] = {name: ", ".join(values) for name, values in headers.items()}
        if cookies and self.format == "2.0":
            rendered["cookies"] = cookies
        elif cookies:
            rendered["headers"]["Set-Cookie"] = cookies[-1]
        return rendered


def _parameters(event: Event) -> Iterable[tuple[str, str]]:
    several = event.get("multiValueQueryStringParameters")
    if several:
        return _pairs(several)
    single: Mapping[str, str] = event.get("queryStringParameters") or {}
    return single.items()


def _pairs(many: Mapping[str, list[str]]) -> Iterable[tuple[str, str]]:
    """Yield each of several values with its name."""
    for name, values in many.items():
        for value in values:
            yield name, value


def _by_name(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(pairs, key=lambda pair: pair[0])


def values_of(event: Event, header: str) -> list[str]:
    """Return the values of a request's header."""
    wanted = header.lower()
    found = []
    for name, value in _header_lines(event):
        if name.lower() == wanted:
            found.append(value)
    return found


def _header_lines(event: Event) -> Iterable[tuple[str, str]]:
    several = event.get("multiValueHeaders")
    if several is not None:
        return _pairs(several)
    single: Mapping[str, str] = event.get("headers") or {}
    return single.items()


def normal(response: object) -> Response:
    """Return what a handler returned in the form that is stored.

    A response in that form stays as it is. A value without ``statusCode`` is the JSON body of a
    200. A body of bytes is sent as base64, any other body that is not text as JSON. JSON takes a
    Decimal as a number; a date, time, UUID or enum member as its text or value; a dataclass, Struct
    or pydantic model as an object.

    Raises:
        TypeError, ValueError, RecursionError: it has no form in JSON or UTF-8, or its status is not
        an HTTP status.
    """
    if isinstance(response, Mapping) and "statusCode" in response:
        given: Mapping[str, Any] = response
    else:
        given = {"statusCode": 200, "headers": {"Content-Type": _JSON}, "body": to_json(response)}
    status = int(given["statusCode"])
    if status not in STATUSES:
        raise ValueError(f"{status} is not an HTTP status")
    headers, cookies = _headers_of(given)
    is_base64 = bool(given.get("isBase64Encoded"))
    match given.get("body"):
        case bytes() | bytearray() as content:
            body = (content if is_base64 else base64.b64encode(content)).decode()
            is_base64 = True
        case None | str() as body:
            pass
        case value:
            body = to_json(value)
            if not any(name.lower() == "content-type" for name in headers):
                headers["Content-Type"] = [_JSON]
    if body is not None:
        body.encode()  # what UTF-8 cannot encode is refused now, not when the answer is sent
    return {
        "statusCode": status,
        "headers": headers,
        "cookies": cookies,
        "body": body,
        "isBase64Encoded": is_base64,
    }


def _headers_of(response: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """Return headers and cookies.

    A value that stands in both fields of headers counts once, as in format 1.0.
    """
    headers: dict[str, list[str]] = {}
    names = {"set-cookie": "Set-Cookie"}  # each name as it was spelt first
    for field in ("multiValueHeaders", "headers"):
        given: Mapping[str, object] = response.get(field) or {}
        for name, value in given.items():
            spelt = names.setdefault(name.lower(), name)
            kept = headers.setdefault(spelt, [])
            kept += [each for each in _texts(value) if each not in kept]
    cookies = [str(cookie) for cookie in response.get("cookies") or ()]
    cookies += headers.pop("Set-Cookie", [])
    used = {name: values for name, values in headers.items() if values}
    return used, cookies


def _texts(given: object) -> list[str]:
    """Return a header's values: one, several, or for None no value."""
    several = given if isinstance(given, list | tuple) else [given]
    return [str(value) for value in several if value is not None]
