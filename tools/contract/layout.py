"""JSON for readers: lines of up to 150 columns, after which closing brackets may stand."""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

_WIDTH: Final = 150


class _Part(NamedTuple):
    """A member of an object or an array, and whether it may stand beside others."""

    text: str
    joins: bool = True


def text(value: Any) -> str:
    """Return a value as a JSON file."""
    return _laid_out(value, "", 0) + "\n"


def compact(value: Any) -> str:
    """Return a value as JSON without any white space."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _laid_out(value: Any, indent: str, used: int) -> str:
    """Return JSON on one line if it fits beside ``used`` columns, else on filled lines."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or used + len(line) <= _WIDTH:
        return line
    indent += "  "
    if isinstance(value, list):
        parts = [_element(each, indent) for each in value]
        return f"[\n{indent}{_filled(parts, indent)}]"
    parts = [_member(name, each, indent) for name, each in value.items()]
    return f"{{\n{indent}{_filled(parts, indent)}}}"


def _element(value: Any, indent: str) -> _Part:
    """Return an element of an array."""
    used = len(indent) + len(",")
    text = _laid_out(value, indent, used)
    return _Part(text)


def _member(name: str, value: Any, indent: str) -> _Part:
    """Return a member of an object. Objects in objects begin on a line of their own."""
    label = json.dumps(name, ensure_ascii=False)
    label += ": "
    used = len(indent) + len(label) + len(",")
    text = label + _laid_out(value, indent, used)
    is_object = isinstance(value, dict)
    return _Part(text, joins=not is_object)


def _filled(parts: Iterable[_Part], indent: str) -> str:
    """Return parts on as few lines as hold them."""
    lines: list[str] = []
    for part in parts:
        if lines and part.joins and _fits_beside(lines[-1], part.text, indent):
            lines[-1] += f", {part.text}"
        else:
            lines.append(part.text)
    return f",\n{indent}".join(lines)


def _fits_beside(line: str, text: str, indent: str) -> bool:
    if "\n" in line or "\n" in text:
        return False
    width = len(indent) + len(line) + len(text) + len(", ,")
    return width <= _WIDTH
