"""The Lambda invocation that the code runs in: its deadline and its context."""

import contextvars
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import ConfigurationError


class LambdaContext(Protocol):
    """The part of Lambda's context object that the layer uses; Powertools' type has it too."""

    @property
    def aws_request_id(self) -> str:
        """Identify the invocation."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how much time is left before the invocation is stopped."""


class LambdaInvocation(NamedTuple):
    """One Lambda invocation; both fields are None outside Lambda."""

    deadline_ms: int | None = None
    """When Lambda stops it, in epoch milliseconds."""
    context: Any = None

    @classmethod
    def of(cls, context: LambdaContext, clock: Clock) -> "LambdaInvocation":
        """Return the invocation that ``context`` describes.

        Raises:
            ConfigurationError: ``context`` is not a Lambda context.
        """
        try:
            left_ms = context.get_remaining_time_in_millis()
            request_id = context.aws_request_id
        except AttributeError as error:
            raise _not_a_context(context, error.name) from error
        if not isinstance(left_ms, int | float):  # a mock's number is 1
            raise _not_a_context(context, "get_remaining_time_in_millis")
        if not isinstance(request_id, str):
            raise _not_a_context(context, "aws_request_id")
        return cls(clock() + int(left_ms), context)


def _not_a_context(context: object, attribute: str | None) -> ConfigurationError:
    from carride_idempotency.errors.misuse import not_a_context

    return not_a_context(context, attribute or "get_remaining_time_in_millis")


_OUTSIDE_LAMBDA: Final = LambdaInvocation()
_current: Final = contextvars.ContextVar("idempotency_invocation", default=_OUTSIDE_LAMBDA)
current = _current.get
"""Return the invocation in which functions and blocks are called."""
enter = _current.set
leave = _current.reset


@contextmanager
def lambda_deadline(context: LambdaContext, clock: Clock = epoch_ms) -> Generator[None]:
    """Tell functions and blocks called inside when Lambda stops the invocation.

    Handlers do so by themselves.
    """
    token = enter(LambdaInvocation.of(context, clock))
    try:
        yield
    finally:
        leave(token)
