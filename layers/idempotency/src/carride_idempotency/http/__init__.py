"""The rules of HTTP requests.

A request that is repeated with its idempotency key takes effect once, and gets the first answer
again. `http.handler` runs requests by these rules.
"""

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from carride_idempotency.entry.messages import Reader
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
from carride_idempotency.http.formats import (
    PHRASES,
    Request,
    Response,
    normal,
    to_json,
    values_of,
)
from carride_idempotency.invocation import LambdaContext, LambdaInvocation
from carride_idempotency.keys import TransportId, record_key, scalar
from carride_idempotency.protocol.delivery import Delivery
from carride_idempotency.sources import payload_of

if TYPE_CHECKING:
    from carride_idempotency.aio.operation import AsyncOperation
    from carride_idempotency.protocol.operation import Operation

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
_NOTHING_FOUND: Final[tuple[object, ...]] = (None, "", [], ())
"""A request has none of these as its key: ``key=`` has found nothing."""
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


class UnstoredAnswerError(RetryableError):
    """Raised inside the protocol for an answer that is not stored.

    The record then says that the attempt failed. Such a failure uses up no attempt.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(f"the handler answered {response['statusCode']}")
        self.response = response


class Requests[E](NamedTuple):
    """How the requests of an API are read: their keys, and what is compared."""

    reader: Reader[E]

    @classmethod
    def of(cls, reader: Reader[E], caller: object) -> "Requests[E]":
        """Return it for a consumer whose API has the ``caller=``.

        Raises:
            ConfigurationError: callers could get each other's answers, or ``key=`` is of messages.
        """
        if isinstance(reader.key, TransportId):
            raise ConfigurationError(
                f"{reader.consumer}: leave key= out, and the {KEY_HEADER} header is the key"
            )
        if reader.key is None and caller is None:
            raise ConfigurationError(
                f"{reader.consumer}: with the {KEY_HEADER} header alone as the key, one caller can "
                "get another caller's answer: say who calls with caller=, or caller=ANY_CALLER"
            )
        return cls(reader)

    def read(self, request: Request) -> tuple[E, bytes]:
        """Return a request's event, as ``parse`` makes it, and its body.

        Raises:
            HttpProblemError: 400: it cannot be read; or what ``parse`` raised.
        """
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

    def delivery(
        self,
        request: Request,
        event: E,
        body: bytes,
        invocation: LambdaInvocation,
        caller: Callable[[], object],
    ) -> Delivery:
        """Return the delivery of a request.

        ``caller`` tells who sends it, and is asked if the request has a key.

        Raises:
            HttpProblemError: 400: its key is missing or malformed; 401: its caller is not known.
            ConfigurationError: its caller cannot be a part of a key.
        """
        reader = self.reader
        key, protected = self._key(request, event, caller)
        asked: dict[str, object] = {
            "method": request.method,
            "path": request.path,
            "query": request.query,
        }
        context = invocation.context
        return Delivery(
            key=key,
            fingerprint=self._fingerprint(asked, request, event, body),
            id=None if context is None else context.aws_request_id,
            deadline_ms=invocation.deadline_ms,
            context=context,
            acknowledges=False,
            protected=protected,
            repeats=True,
            # No headers: they hold the caller's credentials.
            event={**asked, "body": body.decode(errors="replace")},
            message=request.event,
            labels=reader.labels_of(event),
        )

    def _key(self, request: Request, event: E, caller: Callable[[], object]) -> tuple[str, bool]:
        """Return the record's key, and whether the request has an idempotency key."""
        reader = self.reader
        key = self._found_key(request, event)
        if key in _NOTHING_FOUND:
            if reader.policy.missing_key == "run":
                return reader.record_key(None)
            raise _key_problem("missing")
        whole = self._with_caller(key, caller())
        try:
            return record_key(reader.consumer, whole), True
        except MissingKeyError as error:
            raise _key_problem("malformed") from error

    def _found_key(self, request: Request, event: E) -> object:
        """Return the key of a request; None if it has none and runs all the same."""
        reader = self.reader
        try:
            if reader.key is not None:
                return reader.find_key(request.event, event)
            return idempotency_key(request.event)
        except HttpProblemError as problem:
            is_about_the_header = problem.members.get("field") == KEY_HEADER
            is_missing = is_about_the_header and not values_of(request.event, KEY_HEADER)
            if is_missing and reader.policy.missing_key == "run":
                return None
            raise

    def _with_caller(self, key: object, who: object) -> object:
        """Return the key together with who sends it.

        Raises:
            HttpProblemError: 401: nobody is known to send it.
            ConfigurationError: what ``caller=`` found cannot be a part of a key.
        """
        if who is ANY_CALLER:
            return key
        if who is None or who == "":
            raise HttpProblemError(401, "The caller is not known", type="unknown-caller")
        try:
            scalar(self.reader.consumer, who)
        except MissingKeyError as error:
            from carride_idempotency.errors.misuse import not_a_caller

            raise not_a_caller(self.reader.consumer, who) from error
        if isinstance(key, list | tuple):
            return (who, *key)
        return who, key

    def _fingerprint(
        self, asked: dict[str, object], request: Request, event: E, body: bytes
    ) -> str:
        reader = self.reader
        if reader.payload is not None:
            return fingerprint({**asked, "payload": reader.find_payload(request.event, event)})
        try:
            return fingerprint({**asked, "json": payload_of(json.loads(body))})
        except (ValueError, RecursionError):
            # Not JSON, or a number that JSON does not have: compared byte by byte.
            return fingerprint({**asked, "body": body})


def is_stored(status: int, said: object = None) -> bool:
    """Return whether an answer is stored; ``said`` is what the handler decided on a refusal."""
    if status >= _SERVER_ERROR:
        return False
    if status < _CLIENT_ERROR:
        return True
    if said is not None:
        return bool(said)
    return status not in _MAY_CHANGE


def without_cookies(response: Response) -> Response:
    """Return a response to store: cookies may be a session, and belong to whoever asked first."""
    if response["cookies"]:
        return {**response, "cookies": []}
    return response


def replayed(stored: object) -> Response:
    """Return a stored response, marked as replayed.

    Raises:
        ResultOmittedError: what is stored is not a response.
    """
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


SHOWN: Final = (PayloadMismatchError, QuarantinedError, ResultOmittedError)
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


def problem_of(error: Exception) -> HttpProblemError:
    """Return what the client is told about an error of the layer."""
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
