"""The JSON paths of EventBridge and its pipes: names, indices and wildcards.

Such as ``$.detail.cars[0].seats`` and ``$.detail.cars[*].seats``.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

_STEP: Final = re.compile(r"[^.\[\]]+")
_EVERY: Final = "*"


def find(document: Any, path: str, missing: Any = None) -> Any:
    """Return the value at a path, or ``missing``; with a wildcard the list of all values."""
    try:
        return _follow(document, _STEP.findall(path.removeprefix("$")))
    except LookupError:
        return missing


def _follow(value: Any, steps: Sequence[str]) -> Any:
    if not steps:
        return value
    step, *rest = steps
    if step == _EVERY:
        return _each(value, rest)
    if isinstance(value, dict):
        return _follow(value[step], rest)
    if isinstance(value, list) and step.isdecimal():
        return _follow(value[int(step)], rest)
    raise LookupError(step)


def _each(value: Any, steps: Sequence[str]) -> list[Any]:
    """Return what the steps find in the members of a value that have it."""
    found = list[Any]()
    for member in _members(value):
        with suppress(LookupError):
            found.append(_follow(member, steps))
    return found


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()
