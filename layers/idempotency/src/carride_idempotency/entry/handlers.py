"""Checks what is decorated: it does its work when it is run, as a generator would not."""

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Final

from carride_idempotency.errors import ConfigurationError

_HANDLER_ARGUMENTS: Final = 2


def plain[W](work: W | None, decorator: str) -> W:
    """Return ``work``; raise a ConfigurationError unless it does its work when it is run."""
    if work is None:
        raise ConfigurationError(f"write @{decorator} without parentheses")
    if not callable(work):
        raise ConfigurationError(f"@{decorator} decorates a function, not a {type(work).__name__}")
    function = _function_of(work)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(work, "__qualname__", None) or type(work).__qualname__
        raise ConfigurationError(
            f"@{decorator} cannot run {name}, a generator: return instead of yielding"
        )
    return work


def checked(work: Any, decorator: str) -> Callable[[Any, Any], object]:
    """Return ``work(event, operation)`` as a plain function, if it can be decorated.

    Raises:
        ConfigurationError: it is not a function of two arguments that does its work.
    """
    work = plain(work, decorator)
    require_two_arguments(work, decorator)
    if not is_asynchronous(work):
        function: Callable[[Any, Any], object] = work
        return function
    from carride_idempotency.aio.loops import run_to_end

    return run_to_end(work)


def lambda_handler[**P, R](work: object, handler: Callable[P, R]) -> Callable[P, R]:
    """Return the Lambda handler of some work; an asynchronous one needs a thread without a loop."""
    if not is_asynchronous(work):
        return handler
    from carride_idempotency.aio.loops import outside_of_loops

    return outside_of_loops(handler)


def is_asynchronous(work: object) -> bool:
    """Return whether a function is an ``async def``, also behind a partial or a wrapper."""
    return inspect.iscoroutinefunction(_function_of(work))


def _function_of(work: Any) -> Any:
    """Return the function that a callable calls in the end."""
    function: Any = inspect.unwrap(work)
    if isinstance(function, functools.partial):
        return _function_of(function.func)
    if isinstance(function, FunctionType | MethodType):
        return function
    return type(function).__call__


def require_two_arguments(work: Any, decorator: str) -> None:
    """Check that a handler can be called with an event and an operation.

    Only plain functions are looked at: no signature has to be computed when a process starts.

    Raises:
        ConfigurationError: it takes fewer arguments, or needs more, or expects Lambda's context.
    """
    if not isinstance(work, FunctionType):
        return
    code = work.__code__
    if code.co_varnames[1 : code.co_argcount][:1] == ("context",):
        from carride_idempotency.errors.misuse import not_lambdas_context

        raise not_lambdas_context(work.__name__, decorator)
    needed = code.co_argcount - len(work.__defaults__ or ())
    takes_any_number = bool(code.co_flags & inspect.CO_VARARGS)
    takes_two = takes_any_number or code.co_argcount >= _HANDLER_ARGUMENTS
    if takes_two and needed <= _HANDLER_ARGUMENTS:
        return
    from carride_idempotency.errors.misuse import not_two_arguments

    raise not_two_arguments(work.__name__, decorator)
