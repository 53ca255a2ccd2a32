"""HTTP: a request that is sent again under its idempotency key takes effect once, and is answered as before.

Three payload formats bring requests. Each is recognised by fields that AWS always sends, and a request is answered in
its own format, whichever format brought the one that took effect:

- 2.0, of HTTP APIs and function URLs: ``version``, ``rawPath``, ``rawQueryString``, ``requestContext.http.method``;
- 1.0, of REST APIs, and of HTTP APIs where asked for: ``resource``, ``path``, ``httpMethod``, ``requestContext``;
- a load balancer's: ``path``, ``httpMethod``, ``requestContext.elb``.
"""

import base64
import copy
import functools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypedDict, cast
from urllib.parse import parse_qsl, unquote_plus

from idempotency import observation
from idempotency.consumer import LambdaContext, lambda_deadline
from idempotency.errors import (
    BusyError,
    ConfigurationError,
    MissingKeyError,
    PayloadMismatchError,
    QuarantinedError,
    ResultOmittedError,
    RetryableError,
)
from idempotency.fingerprint import fingerprint
from idempotency.handlers import finished, require_plain
from idempotency.keys import TransportId, record_key
from idempotency.runner import Delivery

if TYPE_CHECKING:
    from idempotency.consumer import Consumer
    from idempotency.operation import Operation

type Event = Mapping[str, Any]
type HttpHandler = Callable[[dict[str, Any], LambdaContext], dict[str, Any]]

KEY_HEADER: Final = "Idempotency-Key"
KEY_PATTERN: Final = r'^(?:"(?:[ !#-\[\]-~]|\\["\\]){1,255}"|[!#-+\--~]{1,255})$(?!\n)'
"""Of the header: a quoted string, as draft-ietf-httpapi-idempotency-key-header has it, or the same without quotes if it
has no blanks, quotes or commas. A comma stands between the values of a header that was sent twice."""
REPLAYED_HEADER: Final = "Idempotency-Replayed"
MEDIA_TYPE: Final = "application/problem+json"
UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
PROBLEM_TYPES: Final = "urn:problem-type:"

_is_key: Final = re.compile(KEY_PATTERN).match
_JSON: Final = "application/json"
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_SERVER_ERROR: Final = 500
_NO_OPERATION: Final = cast("Operation", None)
_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class HttpOptions(TypedDict, total=False):
    """The keyword arguments of `Consumer.http_handler`."""

    methods: Collection[str]
    """The methods whose requests take effect once. Left out: POST, PUT, PATCH and DELETE."""
    problem_types: str
    """What goes before the ``type`` of a problem that is no URI by itself. Left out: ``urn:problem-type:``."""


class HttpProblemError(ValueError):
    """Raise it to answer with a problem as RFC 9457 has it, in ``application/problem+json``.

    Raised by ``parse`` or ``key``, it is answered without a record: nothing is remembered. Raised by the handler with a
    status below 500, it is stored and replayed like any other answer, and the effects registered before it are dropped.
    Raised by the handler with any other status, it is a failure of the attempt.

    Args:
        status: of the answer, 400 to 599.
        title: the kind of problem, in words. Left out, it is HTTP's phrase for the status.
        detail: what is wrong in this case.
        type: the kind of problem for programs: a URI, or a name without a colon that ``problem_types`` goes before.
        headers: of the answer, such as ``Retry-After``.
        members: further members of the problem; those that are None are left out.
    """

    def __init__(
        self,
        status: int,
        title: str | None = None,
        detail: str | None = None,
        *,
        type: str = "about:blank",  # noqa: A002 - RFC 9457's name
        headers: Mapping[str, str] | None = None,
        **members: object,
    ) -> None:
        super().__init__(f"{status} {type}: {detail or title}")
        self.status = status
        self.title = title or _PHRASES.get(status, "Problem")
        self.detail = detail
        self.type = type
        self.headers = headers or {}
        self.members = members

    def response(self, problem_types: str = PROBLEM_TYPES) -> dict[str, Any]:
        """Return the problem as an answer, in the form in which a handler returns one."""
        kind = self.type if ":" in self.type else problem_types + self.type
        body = {"type": kind, "title": self.title, "status": self.status, "detail": self.detail, **self.members}
        return {
            "statusCode": self.status,
            "headers": {"Content-Type": MEDIA_TYPE, **self.headers},
            "body": _to_json({name: value for name, value in body.items() if value is not None}),
        }


class _ServerAnswerError(RetryableError):
    """Raised inside the protocol for an answer of 5xx: a failure that is recorded, and that uses up no attempt."""

    def __init__(self, response: "_Response") -> None:
        super().__init__(f"the handler answered {response['statusCode']}")
        self.response = response


# ── The handler ───────────────────────────────────────────────────────────────────────────────────────────────────────


def make_handler[E](
    consumer: "Consumer[E]",
    work: "Callable[[E, Operation], object]",
    *,
    methods: Collection[str] = UNSAFE,
    problem_types: str = PROBLEM_TYPES,
) -> HttpHandler:
    """Return the Lambda handler: see `Consumer.http_handler`."""
    require_plain(work, "http_handler")
    service = _Service(consumer, work, frozenset(method.upper() for method in methods), problem_types)

    @functools.wraps(work)
    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        request = _Request.of(event)
        try:
            with lambda_deadline(context, consumer._clock):
                response = service.answer(request, context)
        except HttpProblemError as problem:
            response = _normal(problem.response(problem_types))
        except RetryableError as error:
            response = _normal(_problem_of(error).response(problem_types))
        return request.render(response)

    return handler


class _Service[E]:
    """A handler's work, and what it takes to have it done once."""

    def __init__(
        self,
        consumer: "Consumer[E]",
        work: "Callable[[E, Operation], object]",
        methods: frozenset[str],
        problem_types: str,
    ) -> None:
        if isinstance(consumer._key, TransportId):
            raise ConfigurationError(f"{consumer.name}: leave key= out, and the {KEY_HEADER} header is the key")
        self._consumer = consumer
        self._work = work
        self._methods = methods
        self._problem_types = problem_types
        self._key = consumer._key
        self._runner = copy.copy(consumer._runner)
        self._runner._dead_letters = None  # the client is told at once, and sends its request again

    def answer(self, request: "_Request", context: LambdaContext) -> "_Response":
        """Do what the request asks for, or return what it was answered before.

        Raises:
            HttpProblemError: the request cannot be read, has no key, or must not be run.
            RetryableError: the work raised it, for a method that is not protected.
            Exception: what else the work raised.
        """
        event, body = self._read(request)
        if request.method not in self._methods:
            return _normal(self._work(event, _NO_OPERATION))
        delivery = self._delivery(request, event, body, context)
        ended: list[_Response | Exception] = []  # the latest run: a conflict may have it run again

        def once(operation: "Operation") -> object:
            ended[:] = []
            response = self._run(event, operation, ended)
            try:
                normal = _normal(response)
            except (TypeError, ValueError, RecursionError) as unsendable:  # it took effect all the same
                ended[:] = [unsendable]
                return response
            if normal["statusCode"] >= _SERVER_ERROR:
                raise _ServerAnswerError(normal)
            ended[:] = [normal]
            return normal

        try:
            answer = self._runner.run(delivery, once)
            if answer.outcome not in observation.COMMITTED:
                return _replayed(answer.value())
        except _ServerAnswerError as failure:
            return failure.response
        except (RetryableError, *_OWN) as error:
            if error in ended and not isinstance(error, RetryableError):
                raise  # the work's own, of another operation inside it
            raise _problem_of(error) from error
        if isinstance(ended[0], Exception):
            raise ended[0]
        return ended[0]

    def _run(self, event: E, operation: "Operation", ended: list["_Response | Exception"]) -> object:
        try:
            response = self._work(event, operation)
        except HttpProblemError as problem:
            operation._effects.clear()
            return problem.response(self._problem_types)
        except Exception as error:
            ended[:] = [error]
            raise
        return finished(response)

    def _read(self, request: "_Request") -> tuple[E, bytes]:
        parse = self._consumer._parse
        try:
            return cast("E", request.event) if parse is None else parse(request.event), request.body()
        except HttpProblemError:
            raise
        except ValueError as error:
            raise HttpProblemError(400, "The request cannot be read", type="invalid-request") from error

    def _delivery(self, request: "_Request", event: E, body: bytes, context: LambdaContext) -> Delivery:
        consumer = self._consumer
        if self._key is None:
            key: object = idempotency_key(request.event)
        else:
            key = self._key(request.event if consumer._key_of_message else event)
        protected = True
        try:
            name = record_key(consumer.name, key)
        except MissingKeyError as error:
            if consumer._policy.missing_key != "run":
                raise _key_problem("missing") from error
            name, protected = consumer._unprotected_key(), False
        asked: dict[str, object] = {"method": request.method, "path": request.path, "query": request.query}
        if consumer._payload is None:
            print_ = _fingerprint(asked, body)
        else:
            payload = consumer._payload(request.event if consumer._payload_of_message else event)
            print_ = fingerprint({**asked, "payload": payload})
        return Delivery(
            key=name,
            fingerprint=print_,
            id=context.aws_request_id,
            deadline_ms=consumer._invocation_of(context).deadline_ms,
            context=context,
            acknowledges=False,
            protected=protected,
            event={**asked, "body": body.decode(errors="replace")},  # no headers: they hold the caller's credentials
            labels=observation.NO_LABELS if consumer._labels is None else consumer._labels(event),
        )


def _fingerprint(asked: Mapping[str, object], body: bytes) -> str:
    """Hash a request: a body of JSON by its content, any other byte by byte."""
    try:
        return fingerprint({**asked, "json": json.loads(body)})
    except (ValueError, RecursionError):  # no JSON, or a number that JSON does not have
        return fingerprint({**asked, "body": body})


def _replayed(stored: object) -> "_Response":
    try:
        response = _normal(stored)
    except (TypeError, ValueError, RecursionError) as unsendable:
        raise ResultOmittedError("the request", str(unsendable)) from unsendable
    response["headers"][REPLAYED_HEADER] = ["true"]
    return response


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_KEY_RULES: Final = {
    "missing": "Send one with this request, and the same one when you send the request again.",
    "malformed": "It is one value of 1 to 255 visible ASCII characters without quotes or commas; or a quoted string.",
}


def idempotency_key(event: Event) -> str:
    """Return the content of a request's Idempotency-Key header, for a ``key=`` that says whose key it is.

    ``"abc"`` in quotes, which is how the IETF's draft writes it, and ``abc`` are the same key.

    Raises:
        HttpProblemError: 400, because it is missing, sent twice, or not of its form.
    """
    values = _values_of(event, KEY_HEADER)
    if not values:
        raise _key_problem("missing")
    value = values[0].strip(" \t")
    if len(values) > 1 or not _is_key(value):
        raise _key_problem("malformed")
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _key_problem(what: str) -> HttpProblemError:
    title = f"The {KEY_HEADER} is {what}"
    return HttpProblemError(400, title, _KEY_RULES[what], type="invalid-request", field=KEY_HEADER)


# ── What the protocol says ────────────────────────────────────────────────────────────────────────────────────────────

_OWN: Final = (PayloadMismatchError, QuarantinedError, ResultOmittedError)
"""Besides RetryableError, what the client is told; anything else is for Lambda to log and to count."""

_WORDED: Final[Mapping[type[Exception], tuple[int, str, str, str]]] = {
    BusyError: (
        409,
        "request-in-progress",
        "The same request is being processed",
        "Another copy of this request is being processed.",
    ),
    PayloadMismatchError: (
        422,
        "idempotency-key-reused",
        "The idempotency key belongs to another request",
        "This key was sent with another request. Choose a new key for each request.",
    ),
    QuarantinedError: (
        500,
        "request-given-up",
        "The request has failed too often",
        "It is not tried again under this key, and it is not known whether it took effect.",
    ),
    ResultOmittedError: (
        500,
        "answer-not-stored",
        "The answer cannot be repeated",
        "The request took effect, once. Its answer was not stored.",
    ),
    RetryableError: (
        503,
        "unavailable",
        "Try again",
        "It is not known whether the request took effect. Send it again, with the same key.",
    ),
}


def _problem_of(error: Exception) -> HttpProblemError:
    status, kind, title, detail = next(words for of, words in _WORDED.items() if isinstance(error, of))
    headers = None
    if isinstance(error, RetryableError):
        wait_ms = getattr(error, "lease_left_ms", getattr(error, "wait_ms", 0))
        headers = {"Retry-After": str(max(1, math.ceil(wait_ms / 1000)))}
    field = KEY_HEADER if isinstance(error, PayloadMismatchError) else None
    return HttpProblemError(status, title, detail, type=kind, headers=headers, field=field)


# ── Payload formats ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Response(TypedDict):
    """An answer in the one form that is stored; the body is text, or base64 where it says so."""

    statusCode: int
    headers: dict[str, list[str]]
    cookies: list[str]
    body: str | None
    isBase64Encoded: bool


class _Request(NamedTuple):
    """What the formats have in common."""

    event: Event
    format: Literal["1.0", "2.0", "alb"]
    method: str
    path: str
    query: list[tuple[str, str]]
    """Decoded, and in the order of the names: format 1.0 does not keep the client's."""

    @classmethod
    def of(cls, event: Event) -> Self:
        """Read an event.

        Raises:
            ConfigurationError: it is no HTTP request: the function has a trigger that it is not made for.
        """
        match event:
            case {
                "version": "2.0",
                "rawPath": str(path),
                "rawQueryString": str(query),
                "requestContext": {"http": {"method": str(method)}},
            }:
                return cls(event, "2.0", method, path, _by_name(parse_qsl(query, keep_blank_values=True)))
            case {"httpMethod": str(method), "path": str(path), "requestContext": {"elb": _}}:
                decoded = ((unquote_plus(name), unquote_plus(value)) for name, value in _parameters(event))
                return cls(event, "alb", method, path, _by_name(decoded))
            case {"httpMethod": str(method), "path": str(path), "resource": str(), "requestContext": {}}:
                return cls(event, "1.0", method, path, _by_name(_parameters(event)))
        raise ConfigurationError("this is no request from API Gateway, a function URL or a load balancer")

    def body(self) -> bytes:
        """Return the content.

        Raises:
            ValueError: it is no base64, though it is said to be.
        """
        text: str = self.event.get("body") or ""
        return base64.b64decode(text) if self.event.get("isBase64Encoded") else text.encode()

    def render(self, response: _Response) -> dict[str, Any]:
        """Return an answer in the format of this request.

        A load balancer without multi-value headers can send one cookie: the last one.
        """
        status, headers, cookies = response["statusCode"], response["headers"], response["cookies"]
        rendered: dict[str, Any] = {"statusCode": status, "isBase64Encoded": response["isBase64Encoded"]}
        if response["body"] is not None:
            rendered["body"] = response["body"]
        if self.format == "alb":
            rendered["statusDescription"] = f"{status} {_PHRASES.get(status, 'Unknown')}"
        joined = {name: ", ".join(values) for name, values in headers.items()}
        if self.format == "2.0":
            return rendered | {"headers": joined} | ({"cookies": cookies} if cookies else {})
        if self.event.get("multiValueHeaders") is not None:
            return rendered | {"multiValueHeaders": headers | ({"Set-Cookie": cookies} if cookies else {})}
        return rendered | {"headers": joined | ({"Set-Cookie": cookies[-1]} if cookies else {})}


def _parameters(event: Event) -> Iterable[tuple[str, str]]:
    many: Mapping[str, list[str]] | None = event.get("multiValueQueryStringParameters")
    if many:
        return [(name, value) for name, values in many.items() for value in values]
    single: Mapping[str, str] = event.get("queryStringParameters") or {}
    return single.items()


def _by_name(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(pairs, key=lambda pair: pair[0])


def _values_of(event: Event, header: str) -> list[str]:
    many: Mapping[str, list[str]] | None = event.get("multiValueHeaders")
    if many is None:
        many = {name: [value] for name, value in (event.get("headers") or {}).items()}
    return [value for name, values in many.items() if name.lower() == header.lower() for value in values]


def _normal(response: object) -> _Response:
    """Return an answer in the form that is stored; one that has it already stays as it is.

    What has no ``statusCode`` is the JSON body of a 200, in every format as API Gateway has it in 2.0. A body of bytes
    is sent in base64; any other that is no text is sent as JSON.

    Raises:
        TypeError, ValueError, RecursionError: it has no form in JSON or UTF-8, or a status that is none of HTTP's.
    """
    if isinstance(response, Mapping) and "statusCode" in response:
        given: Mapping[str, Any] = response
    else:
        given = {"statusCode": 200, "headers": {"Content-Type": _JSON}, "body": _to_json(response)}
    status = int(given["statusCode"])
    if not 100 <= status <= 599:  # noqa: PLR2004 - HTTP's range
        raise ValueError(f"{status} is no status of HTTP")
    headers, cookies = _headers_of(given)
    body, encoded = given.get("body"), bool(given.get("isBase64Encoded"))
    if isinstance(body, bytes | bytearray):
        body, encoded = (bytes(body) if encoded else base64.b64encode(body)).decode(), True
    elif body is not None and not isinstance(body, str):
        body = _to_json(body)
        if not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = [_JSON]
    if body is not None:
        body.encode()
    return {"statusCode": status, "headers": headers, "cookies": cookies, "body": body, "isBase64Encoded": encoded}


def _headers_of(response: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """Return headers and cookies; where both fields of headers have the same value, it is one, as in format 1.0."""
    headers: dict[str, list[str]] = {}
    names = {"set-cookie": "Set-Cookie"}
    for field in (response.get("multiValueHeaders") or {}, response.get("headers") or {}):
        for name, given in field.items():
            several = given if isinstance(given, list | tuple) else [given]
            values = [str(value) for value in several if value is not None]
            kept = headers.setdefault(names.setdefault(name.lower(), name), [])
            kept += [value for value in values if value not in kept]
    cookies = [*map(str, response.get("cookies") or ()), *headers.pop("Set-Cookie", ())]
    return {name: values for name, values in headers.items() if values}, cookies
