"""Runs the requests of an ASGI application once: FastAPI, Starlette and others.

What happens to a protected request, in this order::

    its body is read            up to a limit
    its key is claimed          a copy is answered here, or refused
    the application runs        with its background tasks; its answer is held back
    the commit                  effects, answer and record
    the answer is sent

So whoever has an answer can rely on it, and whoever has none can repeat the request. An answer
that is too large to be stored is sent as it comes, without its end: that follows the commit.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from carride_idempotency.async_calls import run_delivery
from carride_idempotency.async_operation import AsyncOperation
from carride_idempotency.concurrency import is_in_a_loop
from carride_idempotency.delivery import Delivery
from carride_idempotency.errors import RetryableError
from carride_idempotency.http import (
    ANY_CALLER,
    PROBLEM_TYPES,
    SHOWN,
    UNSAFE,
    AnyCaller,
    HttpProblemError,
    Requests,
    UnstoredAnswerError,
    is_stored,
    problem_of,
    replayed,
    without_cookies,
)
from carride_idempotency.http_formats import Request, Response, normal
from carride_idempotency.invocation import current
from carride_idempotency.messages import Reader
from carride_idempotency.observation import COMMITTED
from carride_idempotency.operation import Operation
from carride_idempotency.runner import Runner

if TYPE_CHECKING:
    from carride_idempotency.externals import Probe

type ASGIScope = MutableMapping[str, Any]
type ASGIMessage = MutableMapping[str, Any]
type ASGIReceive = Callable[[], Awaitable[ASGIMessage]]
type ASGISend = Callable[[ASGIMessage], Awaitable[None]]
type ASGIApp = Callable[[ASGIScope, ASGIReceive, ASGISend], Awaitable[None]]
"""An application in ASGI's form, as FastAPI and Starlette make it."""
type ASGICaller = Callable[[ASGIScope], object] | AnyCaller | None
"""Finds who sends a request: a function, which may be an ``async def``."""

_CLIENT_ERROR: Final = 400
_running: Final[ContextVar[AsyncOperation | None]] = ContextVar("request_operation", default=None)


def _is_unsafe(scope: ASGIScope) -> bool:
    return scope["method"] in UNSAFE


# ── What an endpoint asks for ─────────────────────────────────────────────────────────────────────


def request_operation() -> AsyncOperation:
    """Return the operation of the request that is running, for an ``async def`` endpoint.

    FastAPI's ``Depends`` takes it as it is.

    Raises:
        ConfigurationError: the request is not protected.
    """
    operation = _running.get()
    if operation is None:
        from carride_idempotency.misuse import no_request_operation

        raise no_request_operation()
    return operation


def request_operation_in_thread() -> Operation:
    """Return the operation of the request that is running, for a plain ``def`` endpoint.

    Raises:
        ConfigurationError: the request is not protected.
    """
    return _ThreadOperation(request_operation())


class _ThreadOperation(Operation):
    """An operation that asks its store in the thread of a plain endpoint, and in no event loop."""

    def __init__(self, operation: AsyncOperation) -> None:
        self.__dict__.update(operation.__dict__)  # the same attempt, with the same effects

    def heartbeat(self) -> bool:
        _refuse_in_a_loop("heartbeat()")
        return super().heartbeat()

    def external[T](
        self, name: str, call: Callable[[str], T], probe: "Probe[T] | None" = None
    ) -> T:
        _refuse_in_a_loop("external(...)")
        return super().external(name, call, probe)


def _refuse_in_a_loop(call: str) -> None:
    if is_in_a_loop():
        from carride_idempotency.misuse import operation_in_a_loop

        raise operation_in_a_loop(call)


# ── The middleware ────────────────────────────────────────────────────────────────────────────────


def protected[E](
    reader: Reader[E],
    runner: Runner,
    app: ASGIApp,
    *,
    caller: ASGICaller,
    protects: Callable[[ASGIScope], bool] | None,
    most_body_bytes: int,
    problem_types: str | None,
) -> ASGIApp:
    """Return the application that runs its requests once: see `Consumer.asgi`."""
    if not callable(app):
        from carride_idempotency.misuse import not_an_asgi_application

        raise not_an_asgi_application(reader.consumer, app)
    requests = Requests.of(reader, caller)
    if not (caller is None or isinstance(caller, AnyCaller) or callable(caller)):
        from carride_idempotency.misuse import not_a_caller

        raise not_a_caller(reader.consumer, caller)
    service = _Protected(
        requests,
        runner,
        app,
        caller,
        _is_unsafe if protects is None else protects,
        most_body_bytes,
        PROBLEM_TYPES if problem_types is None else problem_types,
    )
    return service.serve


class _Protected[E](NamedTuple):
    """An application, and what runs its requests once."""

    requests: Requests[E]
    runner: Runner
    app: ASGIApp
    caller: ASGICaller
    protects: Callable[[ASGIScope], bool]
    most_body_bytes: int
    problem_types: str

    async def serve(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve a connection, as an ASGI application does."""
        if scope["type"] != "http" or not self.protects(scope):
            await self.app(scope, receive, send)
            return
        try:
            body = await _body(receive, self.most_body_bytes)
            if body is None:
                return
            delivery = await self._delivery(scope, body)
            exchange = _Exchange(body, receive, send, self.runner.policy.max_result_bytes)
            run = _Run(self.app, scope, exchange, self.problem_types)
            stored = await self._stored(delivery, run)
            if stored is None:
                await exchange.send_rest()
            else:
                await _send_response(send, stored)
        except HttpProblemError as problem:
            await _send_response(send, normal(problem.response(self.problem_types)))

    async def _delivery(self, scope: ASGIScope, body: bytes) -> Delivery:
        request = Request.of(_event_of(scope, body))
        event, content = self.requests.read(request)
        who = await _caller_of(scope, self.caller)
        delivery = self.requests.delivery(request, event, content, current(), lambda: who)
        running = _running.get()
        if running is not None and running.key == delivery.key:
            from carride_idempotency.misuse import wrapped_twice

            raise wrapped_twice()
        return delivery

    async def _stored(self, delivery: Delivery, run: "_Run") -> Response | None:
        """Run a request; return the stored answer to send, or None to send the run's own.

        Raises:
            HttpProblemError: what the client is told in place of an answer.
        """
        try:
            answer = await run_delivery(self.runner, delivery, run)
            if answer.outcome in COMMITTED:
                return None
            run.refuse_if_sent("another attempt has completed the request")
            return replayed(answer.value())
        except UnstoredAnswerError:
            return None
        except (RetryableError, *SHOWN) as error:
            # The application may raise such an error too, of another operation inside it.
            is_its_own = error is run.error and not isinstance(error, RetryableError)
            if is_its_own or run.exchange.is_sending:
                raise
            raise problem_of(error) from error


class _Exchange:
    """The request's body for the application, and its answer, which is held back."""

    def __init__(self, body: bytes, receive: ASGIReceive, send: ASGISend, most_kept: int) -> None:
        self._body = body
        self._receive = receive
        self._send = send
        self._most_kept = most_kept
        self._sends = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        """Begin a run: the body is given anew, and no answer is there."""
        self._is_given = False
        self._held: list[ASGIMessage] = []
        self._start: ASGIMessage | None = None
        self._content = bytearray()
        self.is_complete = False

    @property
    def is_sending(self) -> bool:
        """Whether the beginning of the answer has been sent."""
        return self._sends.is_set()

    async def receive(self) -> ASGIMessage:
        """Give the application the body.

        A client that has gone ends no operation that has begun, since its copy needs the answer:
        the application learns about it only if it sends an answer that cannot be stored.
        """
        if not self._is_given:
            self._is_given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._sends.wait()
        return await self._receive()

    async def send(self, message: ASGIMessage) -> None:
        """Take a message of the answer."""
        self._held.append(message)
        if message["type"] == "http.response.start":
            self._start = message
        if message["type"] == "http.response.body":
            if len(self._content) <= self._most_kept:
                self._content += message.get("body", b"")
            self.is_complete = not message.get("more_body", False)
        if len(self._content) > self._most_kept and not self.is_complete:
            self._sends.set()
            await self.send_rest()

    async def send_rest(self) -> None:
        """Send what is held back."""
        held = self._held
        self._held = []
        for message in held:
            await self._send(message)

    def response(self) -> Response:
        """Return the answer in the form that is stored; too large a one is not whole."""
        if self._start is None or not self.is_complete:
            if self.is_sending:
                raise RetryableError("the client left before it had the whole answer")
            raise RuntimeError("the application has ended without a complete answer")
        headers: dict[str, list[str]] = {}
        for name, value in self._start.get("headers", ()):
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        content = bytes(self._content)
        body: str | bytes = content
        with suppress(UnicodeDecodeError):
            body = content.decode()
        return normal({"statusCode": self._start["status"], "headers": headers, "body": body})


class _Run:
    """Runs the application for one request, and remembers how its last run ended."""

    def __init__(
        self, app: ASGIApp, scope: ASGIScope, exchange: _Exchange, problem_types: str
    ) -> None:
        self._app = app
        # Extensions send files and trailers past what is held back.
        self._scope = {**scope, "extensions": {}} if scope.get("extensions") else scope
        self._problem_types = problem_types
        self.exchange = exchange
        self.error: Exception | None = None
        """What the application raised."""

    def refuse_if_sent(self, why: str) -> None:
        """Raise a RetryableError if the client has the beginning of this run's answer."""
        if self.exchange.is_sending:
            raise RetryableError(f"{why}, and the beginning of this answer was sent")

    async def __call__(self, operation: AsyncOperation) -> object:
        """Run the application; return the response to store.

        Raises:
            UnstoredAnswerError: the response is sent, but not stored.
        """
        self.refuse_if_sent("the effects met a conflict")
        self.error = None
        self.exchange.begin()
        token = _running.set(operation)
        said = None
        try:
            await self._app(self._scope, self.exchange.receive, self.exchange.send)
        except HttpProblemError as problem:
            self.refuse_if_sent("the application raised a problem")
            said = problem.stored
            self.exchange.begin()
            await _send_response(self.exchange.send, normal(problem.response(self._problem_types)))
        except Exception as error:
            self.error = error
            raise
        finally:
            _running.reset(token)
        response = self.exchange.response()
        if response["statusCode"] >= _CLIENT_ERROR:
            operation._effects.clear()  # a refusal has none, however the application gave it
        if not is_stored(response["statusCode"], said):
            raise UnstoredAnswerError(response)
        return without_cookies(response)


# ── Messages of ASGI ──────────────────────────────────────────────────────────────────────────────


async def _body(receive: ASGIReceive, most_bytes: int) -> bytes | None:
    """Read the body of a request; return None if its client has gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most_bytes:
            raise HttpProblemError(
                413,
                "The request is too large to be compared with its copies",
                f"At most {most_bytes} bytes.",
                type="request-too-large",
            )
        if not message.get("more_body", False):
            return bytes(body)


def _event_of(scope: ASGIScope, body: bytes) -> dict[str, Any]:
    """Return a request as a function URL's event, which `http` reads."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    event: dict[str, Any] = {
        "version": "2.0",
        "rawPath": scope["path"],
        "rawQueryString": scope.get("query_string", b"").decode("latin-1"),
        "headers": headers,
        "requestContext": {"http": {"method": scope["method"], "path": scope["path"]}},
    }
    try:
        return event | {"body": body.decode(), "isBase64Encoded": False}
    except UnicodeDecodeError:
        import base64

        return event | {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


async def _caller_of(scope: ASGIScope, caller: ASGICaller) -> object:
    """Return who sends a request."""
    if not callable(caller):
        return ANY_CALLER
    try:
        found = caller(scope)
        return await found if isawaitable(found) else found
    except Exception as error:
        status = getattr(error, "status_code", None)
        if isinstance(error, HttpProblemError) or not isinstance(status, int):
            raise
        # An HTTPException of FastAPI or Starlette: they answer those of endpoints only.
        headers = getattr(error, "headers", None)
        raise HttpProblemError(status, detail=str(error), headers=headers) from error


async def _send_response(send: ASGISend, response: Response) -> None:
    """Send a response in the form that is stored."""
    content = (response["body"] or "").encode()
    if response["isBase64Encoded"]:
        import base64

        content = base64.b64decode(content)
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, values in response["headers"].items()
        for value in values
    ]
    if content and not any(name == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(content)).encode()))
    start = {"type": "http.response.start", "status": response["statusCode"], "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": content, "more_body": False})
