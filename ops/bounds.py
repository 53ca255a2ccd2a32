"""Cuts the strings of what verbs return: one of a stranger may have a megabyte."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

LONGEST: Final = 1_000
"""The most characters of a string that is shown."""


def clipped(text: str, longest: int = LONGEST) -> str:
    """Return a text, or its beginning and how long it is."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text):,} characters)"


def abridged(text: str) -> str:
    """Return a text, or its beginning and its end: a message ends with what to do next."""
    if len(text) <= 2 * LONGEST:
        return text
    left_out = len(text) - 2 * LONGEST
    return f"{text[:LONGEST]}… ({left_out:,} characters) …{text[-LONGEST:]}"


def shortened(data: Any) -> Any:
    """Return data of the same types whose strings are clipped."""
    match data:
        case str() if type(data) is str:
            return clipped(data)
        case Mapping():
            return {shortened(key): shortened(value) for key, value in data.items()}
        case list():
            return [shortened(each) for each in data]
        case tuple() if hasattr(data, "_make"):
            return data._make(map(shortened, data))
        case tuple():
            return tuple(map(shortened, data))
        case msgspec.Struct():
            fields = msgspec.structs.asdict(data)
            return type(data)(**{name: shortened(value) for name, value in fields.items()})
    return data
