"""Calls of a decorated function: each is one operation, named by one of its arguments."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from idempotency.errors import ConfigurationError
from idempotency.handlers import finished
from idempotency.messages import Reader
from idempotency.observation import COMMITTED
from idempotency.operation import Operation
from idempotency.runner import Runner


def decorated[**P, R](
    reader: Reader[Any],
    runner: Runner,
    work: Callable[P, R],
    *,
    name: str,
    key: str,
    payload: Sequence[str] | None,
) -> Callable[P, R]:
    """Return the decorated function: `Consumer.function` explains the arguments."""
    signature = inspect.signature(work)
    takes_operation = "operation" in signature.parameters
    defaults = {each.name: each.default for each in signature.parameters.values() if each.name != "operation"}
    for argument in (key, *(payload or ())):
        if argument not in defaults:
            raise ConfigurationError(f"{reader.consumer}: {name} has no argument {argument!r}, but {list(defaults)}")

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        own_key = given.get(key, defaults[key])
        compared = {
            argument: given[argument]
            for argument in payload or defaults
            if argument in given and not _equals(given[argument], defaults[argument])
        }
        returned: list[R] = []  # by the latest run: after a conflict there may be another one

        def run(operation: Operation) -> object:
            if takes_operation:
                given["operation"] = operation
            returned[:] = [finished(work(*bound.args, **bound.kwargs))]
            return returned[0]

        answer = runner.run(reader.call(None if own_key is inspect.Parameter.empty else own_key, compared, name), run)
        if answer.outcome in COMMITTED:
            return returned[0]  # the object itself, which may have no stored form
        stored: R = answer.value()
        return stored

    return call


def _equals(value: object, default: object) -> bool:
    """Return whether an argument equals its default. True does not equal 1; incomparable values differ."""
    if value is default:
        return True
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # noqa: BLE001 - raised by the values' own comparison: the argument is fingerprinted
        return False
