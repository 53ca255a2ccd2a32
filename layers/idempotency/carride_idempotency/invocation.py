"""The Lambda invocation that the code runs in: its deadline and its context."""

import contextvars
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import ConfigurationError


class LambdaContext(Protocol):
    """The part of Lambda's context object that the layer uses; Powertools' type of that name has it."""

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
            return cls(clock() + int(context.get_remaining_time_in_millis()), context)
        except AttributeError as error:
            raise ConfigurationError(
                f"a handler needs Lambda's context, not {context!r}; "
                "a test passes carride_idempotency.testing.Invocation"
            ) from error


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
