"""Checks that handlers are plain functions: the layer runs no coroutines or generators."""

import functools
import inspect
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from carride_idempotency.errors import ConfigurationError, UnfinishedWorkError

_LAZY: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)
_HELP: Final = "call asyncio.run(...) inside a plain function, and decorate that"


def plain[W](work: W | None, decorator: str) -> W:
    """Return ``work``; raise a ConfigurationError unless it does its work when it is called."""
    if work is None:
        raise ConfigurationError(f"write @{decorator} without parentheses")
    if not callable(work):
        raise ConfigurationError(f"@{decorator} decorates a function, not a {type(work).__name__}")
    function: Any = inspect.unwrap(work)
    if not isinstance(function, functools.partial | FunctionType | MethodType):
        function = type(function).__call__
    name = getattr(work, "__qualname__", None) or type(work).__qualname__
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"@{decorator} cannot run {name}, which is asynchronous: {_HELP}")
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"@{decorator} cannot run {name}, a generator: return instead of yielding"
        )
    return work


def finished(value: Any) -> Any:
    """Return a handler's result; raise an UnfinishedWorkError for an awaitable or a generator."""
    if value is None:
        return None
    kind = type(value)
    if isinstance(value, _LAZY) or hasattr(kind, "__await__"):
        if isinstance(value, CoroutineType | GeneratorType):
            value.close()  # otherwise Python warns later about a coroutine that was never awaited
        raise UnfinishedWorkError(
            f"the handler returned a {kind.__name__}, so its work has not been done: {_HELP}"
        )
    return value
