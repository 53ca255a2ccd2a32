"""Decorates Lambda handlers of HTTP requests.

Each request is answered in its own payload format: see `http.formats`. The rules are in `http`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from carride_idempotency import observation
from carride_idempotency.entry.handlers import checked, lambda_handler
from carride_idempotency.entry.messages import Reader
from carride_idempotency.errors import RetryableError
from carride_idempotency.http import (
    ANY_CALLER,
    PROBLEM_TYPES,
    SHOWN,
    UNSAFE,
    AnyCaller,
    HttpHandler,
    HttpProblemError,
    HttpWork,
    Requests,
    UnstoredAnswerError,
    is_stored,
    problem_of,
    replayed,
    without_cookies,
)
from carride_idempotency.http.formats import Request, Response, normal
from carride_idempotency.invocation import LambdaContext, LambdaInvocation, enter, leave
from carride_idempotency.keys import Extract, extractor
from carride_idempotency.protocol.run import Runner
from carride_idempotency.protocol.unfinished import finished

if TYPE_CHECKING:
    from carride_idempotency.protocol.operation import Operation


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
    if isinstance(methods, str):
        from carride_idempotency.errors.misuse import one_text_as_methods

        raise one_text_as_methods(methods)
    run = checked(work, "http_handler")
    service = _Service(
        Requests.of(reader, caller),
        runner,
        run,
        _caller_of(caller),
        frozenset(method.upper() for method in methods),
        problem_types,
    )

    @wraps(run)
    def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        request = Request.of(event)
        invocation = LambdaInvocation.of(context, runner.clock)
        token = enter(invocation)
        try:
            response = service.answer(request, invocation)
        except HttpProblemError as problem:
            response = normal(problem.response(problem_types))
        except RetryableError as error:
            response = normal(problem_of(error).response(problem_types))
        finally:
            leave(token)
        return request.render(response)

    return lambda_handler(run, handler)


class _Caller(NamedTuple):
    """How the caller of a request is found."""

    find: Extract | None
    """None if the caller is not a part of the key."""
    searches_request: bool
    """Search the raw request, as an expression does. A function is given the parsed one."""

    def of(self, request: Request, event: Any) -> object:
        """Return who sends a request."""
        if self.find is None:
            return ANY_CALLER
        return self.find(request.event if self.searches_request else event)


def _caller_of(caller: object) -> _Caller:
    if isinstance(caller, str):
        return _Caller(extractor(caller, "caller"), searches_request=True)
    return _Caller(caller if callable(caller) else None, searches_request=False)


class _Service[E](NamedTuple):
    """A handler's work, and what runs it once."""

    requests: Requests[E]
    runner: Runner
    work: Callable[[E, Any], object]
    """Gets None as the operation, for methods that are not protected."""
    caller: _Caller
    methods: frozenset[str]
    problem_types: str

    def answer(self, request: Request, invocation: LambdaInvocation) -> Response:
        """Do what the request asks for, or return its stored answer."""
        event, body = self.requests.read(request)
        if request.method not in self.methods:
            return normal(self.work(event, None))

        def caller() -> object:
            return self.caller.of(request, event)

        run = _Run(self.work, event, self.problem_types)
        try:
            delivery = self.requests.delivery(request, event, body, invocation, caller)
            answer = self.runner.run_delivery(delivery, run)
            if answer.outcome not in observation.COMMITTED:
                return replayed(answer.value())
        except UnstoredAnswerError as unstored:
            return unstored.response
        except (RetryableError, *SHOWN) as error:
            # The work may raise such an error too, of another operation inside it.
            if error is run.error and not isinstance(error, RetryableError):
                raise
            raise problem_of(error) from error
        return run.sendable_response()


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
            UnstoredAnswerError: the response is sent, but not stored.
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
        said = given.get("stored") if isinstance(given, Mapping) else None
        if not is_stored(response["statusCode"], said):
            raise UnstoredAnswerError(response)
        return without_cookies(response)

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
