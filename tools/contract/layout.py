"""JSON for readers: lines of up to 150 columns, after which closing brackets may stand."""

import json
from typing import Any, Final

_WIDTH: Final = 150


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
    items = value.items() if isinstance(value, dict) else (("", each) for each in value)
    lines: list[str] = []
    for name, each in items:
        label = f"{json.dumps(name, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        part = label + _laid_out(each, indent, len(indent) + len(label) + len(","))
        joins = lines and "\n" not in lines[-1] + part and not (label and isinstance(each, dict))
        if joins and len(indent) + len(lines[-1]) + len(part) + len(", ,") <= _WIDTH:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{indent}" + f",\n{indent}".join(lines) + closing
