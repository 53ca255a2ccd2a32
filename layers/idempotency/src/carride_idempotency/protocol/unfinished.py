"""Finds work that a result only promises: a coroutine, a generator, a future."""

import sys
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from carride_idempotency.errors import UnfinishedWorkError

_LAZY: Final = (CoroutineType, GeneratorType, AsyncGeneratorType, map, filter)
_COLLECTIONS: Final = (list, tuple, set, frozenset, dict)
_HELP: Final = "decorate an async def function, or call asyncio.run(...) inside a plain one"


def finished(value: Any) -> Any:
    """Return a handler's result.

    Raises:
        UnfinishedWorkError: it is an awaitable, a generator, a `map` or `filter`, or a future; or a
            collection that holds one.
    """
    if value is None:
        return None
    unfinished = [value] if _is_unfinished(value) else _unfinished_in(value)
    if not unfinished:
        return value
    kinds = sorted({type(each).__name__ for each in unfinished})
    for each in unfinished:
        if isinstance(each, CoroutineType | GeneratorType):
            each.close()  # otherwise Python warns later about a coroutine that was never awaited
    what = kinds[0] if unfinished[0] is value else f"collection that holds a {kinds[0]}"
    raise UnfinishedWorkError(
        f"the handler returned a {what}, so its work has not been done: {_help(kinds[0])}"
    )


def registered(value: Any) -> Any:
    """Return the result of a handler of messages, which nobody reads.

    Raises:
        UnfinishedWorkError: it is an effect, or a list of effects, that was not registered.
    """
    first = value[0] if isinstance(value, list) and value else value
    effects = sys.modules.get("carride_idempotency.effects")
    if effects is not None and effects.is_effect(first):
        raise UnfinishedWorkError(
            f"the handler returned a {type(first).__name__}, which takes no effect: register it "
            "with operation.write(...)"
        )
    return value


def _is_unfinished(value: Any) -> bool:
    if isinstance(value, _LAZY) or hasattr(type(value), "__await__"):
        return True
    futures = sys.modules.get("concurrent.futures")
    return futures is not None and isinstance(value, futures.Future)


def _unfinished_in(value: Any) -> list[Any]:
    """Return the elements of a collection that are not finished."""
    if not isinstance(value, _COLLECTIONS):
        return []
    elements = value.values() if isinstance(value, dict) else value
    return [element for element in elements if _is_unfinished(element)]


def _help(kind: str) -> str:
    if kind == "Future":
        return "return what its result() gives"
    if kind in ("map", "filter"):
        return "return a list of it"
    return _HELP
