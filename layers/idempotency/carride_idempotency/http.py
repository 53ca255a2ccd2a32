"""Answers HTTP requests.

A request that is repeated with its idempotency key takes effect once, and gets the first answer
again. Each request is answered in its own payload format: see `http_formats`.
"""

import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from carride_idempotency import observation
from carride_idempotency.delivery import Delivery
from carride_idempotency.errors import (
    BusyError,
    ConfigurationError,
    MissingKeyError,
    PayloadMismatchError,
    QuarantinedError,
    ResultOmittedError,
    RetryableError,
    RetryLaterError,
)
from carride_idempotency.fingerprint import fingerprint
from carride_idempotency.handlers import checked, lambda_handler
from carride_idempotency.http_formats import (
    PHRASES,
    Request,
    Response,
    normal,
    to_json,
    values_of,
)
from carride_idempotency.invocation import LambdaContext, LambdaInvocation, lambda_deadline
from carride_idempotency.keys import Extract, TransportId, extractor
from carride_idempotency.messages import Reader
from carride_idempotency.runner import Runner
from carride_idempotency.unfinished import finished

if TYPE_CHECKING:
    from carride_idempotency.async_operation import AsyncOperation
    from carride_idempotency.operation import Operation

type HttpWork[E] = (
    Callable[[E, Operation | None], object]
    | Callable[[E, AsyncOperation | None], Awaitable[object]]
)
"""The operation is None for a method that is not protected."""

type HttpHandler = Callable[[dict[str, Any], LambdaContext], dict[str, Any]]

KEY_HEADER: Final = "Idempotency-Key"
KEY_PATTERN: Final = (
    r'^(?:"(?:[ !#-\[\]-~]|\\["\\]){1,255}"(?: *; *[*a-z][*a-z0-9_.-]*(?:=[!#-+\--:<-~]+)?)*'
    r"|[!#-+\--~]{1,255})$(?!\n)"
)
"""A quoted string, as in draft-ietf-httpapi-idempotency-key-header, or a value without quotes,
blanks and commas. A comma separates the values of a header that was sent twice. A quoted string may
have parameters, as every item of a structured field; they are not a part of the key."""
REPLAYED_HEADER: Final = "Idempotency-Replayed"
MEDIA_TYPE: Final = "application/problem+json"
UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
PROBLEM_TYPES: Final = "urn:problem-type:"

_is_key: Final = re.compile(KEY_PATTERN).match
_quoted: Final = re.compile(r'"((?:[^"\\]|\\.)*)"').match
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_MAY_CHANGE: Final = frozenset({401, 403, 408, 409, 423, 425, 429})
"""Refusals that the same request may not get later: of its caller, its time, or others' work."""
_LONGEST_WAIT_S: Final = 5
"""What a client is told to wait for a copy that runs. Few run until their lease ends."""


class AnyCaller:
    """Marks an API whose callers share their keys: see `ANY_CALLER`."""


ANY_CALLER: Final = AnyCaller()
"""Say that all callers may share keys: whoever sends a key again gets the stored answer."""


class HttpProblemError(ValueError):
    """Raise it to answer with a problem of RFC 9457, in ``application/problem+json``.

    From ``parse`` or ``key`` it is answered without a record. From the handler, one that is stored
    is replayed, without the effects registered before it; any other is a failure of the attempt.

    Args:
        status: the answer's status, 400 to 599.
        title: the kind of problem, in words. Default: HTTP's phrase for the status.
        detail: what is wrong in this case.
        type: the kind of problem for programs: a URI, or a name without a colon, which
            ``problem_types`` prefixes.
        headers: headers of the answer, such as ``Retry-After``.
        stored: whether a status below 500 is stored. Default: unless it is 401, 403, 408, 409, 423,
            425 or 429, which the same request may not get later.
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
        stored: bool | None = None,
        **members: object,
    ) -> None:
        phrase = PHRASES.get(status, "Problem")
        said = detail or title
        super().__init__(f"{status} {type}: {said}")
        self.status = status
        self.title = title or phrase
        self.detail = detail
        self.type = type
        self.headers = headers or {}
        self.stored = stored
        self.members = members

    def response(self, problem_types: str = PROBLEM_TYPES) -> dict[str, Any]:
        """Return the problem as a handler returns a response."""
        kind = self.type if ":" in self.type else problem_types + self.type
        body = {
            "type": kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        return {
            "statusCode": self.status,
            "headers": {"Content-Type": MEDIA_TYPE, **self.headers},
            "body": to_json({name: value for name, value in body.items() if value is not None}),
        }


class _UnstoredAnswerError(RetryableError):
    """Raised inside the protocol for an answer that is not stored.

    The record then says that the attempt failed. Such a failure uses up no attempt.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(f"the handler answered {response['statusCode']}")
        self.response = response


def make_handler[E](
    reader: Reader[E],
    runner: Runner,
    work: "HttpWork[E]",
    *,
    caller: str | Callable[[E], object] | AnyCaller | None = None,
    methods: Collection[str] = UNSAFE,
    problem_types: str = PROBLEM_TYPES,
) -> HttpHandler:
    """Return the Lambda handler: see `Consumer.http_handler`."""
    if isinstance(reader.key, TransportId):
        raise ConfigurationError(
            f"{reader.consumer}: leave key= out, and the {KEY_HEADER} header is the key"
        )
    run = checked(work, "http_handler")
    if reader.key is None and caller is None:
        raise ConfigurationError(
            f"{reader.consumer}: with the {KEY_HEADER} header alone as the key, one caller can get "
            "another caller's answer: say who calls with caller=, or caller=ANY_CALLER"
        )
    service = _Service(
        reader,
        runner,
        run,
        _caller_of(caller),
        frozenset(method.upper() for method in methods),
        problem_types,
    )

    @wraps(run)
    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        request = Request.of(event)
        try:
            with lambda_deadline(context, runner.clock):
                response = service.answer(request, context)
        except HttpProblemError as problem:
            response = normal(problem.response(problem_types))
        except RetryableError as error:
            response = normal(_problem_of(error).response(problem_types))
        return request.render(response)

    return lambda_handler(run, handler)


class _Caller(NamedTuple):
    """How the caller of a request is found."""

    find: Extract | None
    """None if the caller is not a part of the key."""
    searches_request: bool
    """Search the raw request, as an expression does. A function is given the parsed one."""


def _caller_of(caller: object) -> _Caller:
    if isinstance(caller, str):
        return _Caller(extractor(caller, "caller"), searches_request=True)
    return _Caller(caller if callable(caller) else None, searches_request=False)


class _Service[E](NamedTuple):
    """A handler's work, and what runs it once."""

    reader: Reader[E]
    runner: Runner
    work: Callable[[E, Any], object]
    """Gets None as the operation, for methods that are not protected."""
    caller: _Caller
    methods: frozenset[str]
    problem_types: str

    def answer(self, request: Request, context: LambdaContext) -> Response:
        """Do what the request asks for, or return its stored answer."""
        event, body = self._read(request)
        if request.method not in self.methods:
            return normal(self.work(event, None))
        run = _Run(self.work, event, self.problem_types)
        try:
            delivery = self._delivery(request, event, body, context)
            answer = self.runner.run_delivery(delivery, run)
            if answer.outcome not in observation.COMMITTED:
                return _replayed(answer.value())
        except _UnstoredAnswerError as unstored:
            return unstored.response
        except (RetryableError, *_SHOWN) as error:
            # The work may raise such an error too, of another operation inside it.
            if error is run.error and not isinstance(error, RetryableError):
                raise
            raise _problem_of(error) from error
        return run.sendable_response()

    def _read(self, request: Request) -> tuple[E, bytes]:
        parse = self.reader.parse
        event: Any = request.event
        try:
            if parse is not None:
                event = parse(event)
            return event, request.body()
        except HttpProblemError:
            raise
        except ValueError as error:
            raise HttpProblemError(
                400, "The request cannot be read", type="invalid-request"
            ) from error

    def _delivery(
        self, request: Request, event: E, body: bytes, context: LambdaContext
    ) -> Delivery:
        reader = self.reader
        key, protected = self._key(request, event)
        asked: dict[str, object] = {
            "method": request.method,
            "path": request.path,
            "query": request.query,
        }
        return Delivery(
            key=key,
            fingerprint=self._fingerprint(asked, request, event, body),
            id=context.aws_request_id,
            deadline_ms=LambdaInvocation.of(context, self.runner.clock).deadline_ms,
            context=context,
            acknowledges=False,
            protected=protected,
            dead_letters=False,  # the client gets the error at once, and can repeat its request
            # No headers: they hold the caller's credentials.
            event={**asked, "body": body.decode(errors="replace")},
            message=request.event,
            labels=reader.labels_of(event),
        )

    def _key(self, request: Request, event: E) -> tuple[str, bool]:
        """Return the record's key, and whether the request has an idempotency key."""
        reader = self.reader
        try:
            found = self._found_key(request, event)
        except HttpProblemError as problem:
            is_about_the_header = problem.members.get("field") == KEY_HEADER
            if not is_about_the_header or values_of(request.event, KEY_HEADER):
                raise
            if reader.policy.missing_key != "run":
                raise
            found = None
        try:
            return reader.record_key(found)
        except MissingKeyError as error:
            raise _key_problem("missing") from error

    def _found_key(self, request: Request, event: E) -> object:
        if self.reader.key is not None:
            key = self.reader.find_key(request.event, event)
        else:
            key = idempotency_key(request.event)
        find, searches_request = self.caller
        if find is None:
            return key
        caller = find(request.event if searches_request else event)
        if caller is None or caller == "":
            raise HttpProblemError(401, "The caller is not known", type="unknown-caller")
        if isinstance(key, list | tuple):
            return (caller, *key)
        return caller, key

    def _fingerprint(
        self, asked: dict[str, object], request: Request, event: E, body: bytes
    ) -> str:
        reader = self.reader
        if reader.payload is not None:
            return fingerprint({**asked, "payload": reader.find_payload(request.event, event)})
        try:
            return fingerprint({**asked, "json": json.loads(body)})
        except (ValueError, RecursionError):
            # Not JSON, or a number that JSON does not have: compared byte by byte.
            return fingerprint({**asked, "body": body})


class _Run[E]:
    """Runs the work of one request, and remembers how its last run ended."""

    def __init__(
        self, work: Callable[[E, "Operation"], object], event: E, problem_types: str
    ) -> None:
        self._work = work
        self._event = event
        self._problem_types = problem_types
        self._response: Response | None = None
        self.error: Exception | None = None
        """What the work raised, or why its response cannot be sent."""

    def __call__(self, operation: "Operation") -> object:
        """Run the work; return the response to store.

        Raises:
            _UnstoredAnswerError: the response is sent, but not stored.
        """
        self._response = None
        self.error = None
        try:
            given = self._given(operation)
        except Exception as error:
            self.error = error
            raise
        try:
            response = normal(given)
        except (TypeError, ValueError, RecursionError) as unsendable:
            self.error = unsendable
            has_called = operation._held.record.externals is not None
            if operation._store.transactional and not has_called:
                raise  # nothing is committed, so a copy runs again
            return given  # the request took effect, and is completed without an answer
        self._response = response
        if not _is_stored(response["statusCode"], given):
            raise _UnstoredAnswerError(response)
        if response["cookies"]:  # they may be a session, and belong to whoever asked first
            return response | {"cookies": []}
        return response

    def _given(self, operation: "Operation") -> object:
        """Return what the work returns, or the problem that it raises."""
        try:
            return finished(self._work(self._event, operation))
        except HttpProblemError as problem:
            operation._effects.clear()
            return problem.response(self._problem_types) | {"stored": problem.stored}

    def sendable_response(self) -> Response:
        """Return the response of a run that is committed, or raise why it cannot be sent."""
        if self.error is not None:
            raise self.error
        assert self._response is not None  # noqa: S101 - a run ends with one of both
        return self._response


def _is_stored(status: int, given: object) -> bool:
    """Return whether an answer is stored; the handler may decide on a refusal."""
    if status >= _SERVER_ERROR:
        return False
    if status < _CLIENT_ERROR:
        return True
    said = given.get("stored") if isinstance(given, Mapping) else None
    if said is not None:
        return bool(said)
    return status not in _MAY_CHANGE


def _replayed(stored: object) -> Response:
    try:
        response = normal(stored)
    except (TypeError, ValueError, RecursionError) as unsendable:
        raise ResultOmittedError("the request", str(unsendable)) from unsendable
    response["headers"][REPLAYED_HEADER] = ["true"]
    return response


def idempotency_key(event: Mapping[str, Any]) -> str:
    """Return the content of a request's Idempotency-Key header.

    A ``key=`` that adds the caller calls it. ``"abc"`` in quotes, as in the IETF's draft, and
    ``abc`` are the same key.

    Raises:
        HttpProblemError: 400: the header is missing, sent twice, or malformed.
    """
    values = values_of(event, KEY_HEADER)
    if not values:
        raise _key_problem("missing")
    value = values[0].strip(" \t")
    if len(values) > 1 or not _is_key(value):
        raise _key_problem("malformed")
    quoted = _quoted(value)
    return value if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])


def _key_problem(what: str) -> HttpProblemError:
    rule = "Send 1 to 255 visible ASCII characters without quotes or commas, or a quoted string."
    return HttpProblemError(
        400, f"The {KEY_HEADER} is {what}", rule, type="invalid-request", field=KEY_HEADER
    )


_SHOWN: Final = (PayloadMismatchError, QuarantinedError, ResultOmittedError)
"""The errors that the client gets, besides RetryableError. Lambda logs and counts all others."""


class _Wording(NamedTuple):
    """How a problem tells the client about an error of the layer."""

    status: int
    type: str
    title: str
    detail: str | None = None


_PERHAPS: Final = "It may have taken effect."
_WORDINGS: Final[Mapping[type[Exception], _Wording]] = {
    BusyError: _Wording(409, "request-in-progress", "The same request is being processed"),
    PayloadMismatchError: _Wording(
        422,
        "idempotency-key-reused",
        "This key was sent with another request",
        "Choose a new key.",
    ),
    QuarantinedError: _Wording(
        500, "request-given-up", "The request has failed too often", _PERHAPS
    ),
    ResultOmittedError: _Wording(
        500, "answer-not-stored", "The request took effect, but its answer was not stored"
    ),
    RetryableError: _Wording(
        503, "unavailable", "Send the request again, with the same key", _PERHAPS
    ),
}
"""The first class of an error that stands here counts: a BusyError is also a RetryableError."""


def _wait_s(error: RetryableError) -> int:
    """Return the seconds after which the client should send its request again."""
    if isinstance(error, BusyError):
        return min(_LONGEST_WAIT_S, max(1, math.ceil(error.lease_left_ms / 1000)))
    if isinstance(error, RetryLaterError):
        return max(1, math.ceil(error.wait_ms / 1000))
    return 1


def _problem_of(error: Exception) -> HttpProblemError:
    wording = _wording_of(error)
    headers = None
    if isinstance(error, RetryableError):
        headers = {"Retry-After": str(_wait_s(error))}
    field = KEY_HEADER if isinstance(error, PayloadMismatchError) else None
    return HttpProblemError(
        wording.status,
        wording.title,
        wording.detail,
        type=wording.type,
        headers=headers,
        field=field,
    )


def _wording_of(error: Exception) -> _Wording:
    for kind, wording in _WORDINGS.items():
        if isinstance(error, kind):
            return wording
    raise error
