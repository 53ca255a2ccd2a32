"""JSON for readers: whatever fits is on one line of 120 columns."""

import json
from typing import Any, Final

_WIDTH: Final = 120
_STEP: Final = "  "


def text(value: Any) -> str:
    """Return a value as a JSON file."""
    return _laid_out(value, "", 0) + "\n"


def compact(value: Any) -> str:
    """Return a value as JSON without any white space."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _laid_out(value: Any, indent: str, used: int) -> str:
    """Return a value as JSON. ``used`` are the columns that its first line needs before and behind it."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or used + len(line) <= _WIDTH:
        return line
    inner = indent + _STEP
    if isinstance(value, dict):
        names = [f"{json.dumps(name, ensure_ascii=False)}: " for name in value]
        parts = [
            name + _laid_out(each, inner, len(inner) + len(name) + len(","))
            for name, each in zip(names, value.values(), strict=True)
        ]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    parts = [_laid_out(each, inner, len(inner) + len(",")) for each in value]
    if not any(isinstance(each, dict | list) for each in value):
        parts = _filled(parts, _WIDTH - len(inner))
    return "[\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}]"


def _filled(parts: list[str], width: int) -> list[str]:
    """Return short texts joined to lines."""
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + len(", ,") <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines
