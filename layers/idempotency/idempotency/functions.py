"""Calls of a decorated function: each is one operation, named by one of its arguments."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from idempotency.errors import ConfigurationError
from idempotency.handlers import finished
from idempotency.messages import Reader
from idempotency.observation import COMMITTED
from idempotency.operation import Operation
from idempotency.runner import Runner


class Function[R]:
    """A decorated function: `Consumer.function` explains the arguments."""

    def __init__(
        self,
        reader: Reader[Any],
        runner: Runner,
        work: Callable[..., R],
        *,
        name: str,
        key: str,
        payload: Sequence[str] | None,
    ) -> None:
        self._reader = reader
        self._runner = runner
        self._work = work
        self._name = name
        self._key = key
        self._signature = inspect.signature(work)
        parameters = self._signature.parameters
        self._takes_operation = "operation" in parameters
        self._defaults = {each.name: each.default for each in parameters.values() if each.name != "operation"}
        self._fingerprinted = payload or self._defaults
        for argument in (key, *(payload or ())):
            if argument not in self._defaults:
                raise ConfigurationError(
                    f"{reader.consumer}: {name} has no argument {argument!r}, but {list(self._defaults)}"
                )

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
        """Run the function for its key, or return the stored result of the call that did."""
        bound = self._signature.bind(*args, **kwargs)
        given = bound.arguments
        defaults = self._defaults
        key = given.get(self._key, defaults[self._key])
        payload = {
            argument: given[argument]
            for argument in self._fingerprinted
            if argument in given and not _equals(given[argument], defaults[argument])
        }
        returned: list[R] = []  # by the latest run: after a conflict there may be another one

        def run(operation: Operation) -> object:
            if self._takes_operation:
                given["operation"] = operation
            returned[:] = [finished(self._work(*bound.args, **bound.kwargs))]
            return returned[0]

        delivery = self._reader.call(None if key is inspect.Parameter.empty else key, payload, self._name)
        answer = self._runner.run(delivery, run)
        if answer.outcome in COMMITTED:
            return returned[0]  # the object itself, which may have no stored form
        stored: R = answer.value()
        return stored


def _equals(value: object, default: object) -> bool:
    """Return whether an argument equals its default. True does not equal 1; incomparable values differ."""
    if value is default:
        return True
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # noqa: BLE001 - raised by the values' own comparison: the argument is fingerprinted
        return False
