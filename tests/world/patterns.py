"""Event patterns, as far as the template uses them.

https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-patterns.html
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_ABSENT: Final = object()


def matches(pattern: Mapping[str, Any], event: object) -> bool:
    """Return whether an event, or a part of one, has what a pattern asks for."""
    for name, wanted in pattern.items():
        if name == "$or":
            if not any(matches(each, event) for each in wanted):
                return False
            continue
        found = event.get(name, _ABSENT) if isinstance(event, Mapping) else _ABSENT
        if isinstance(wanted, Mapping):
            if not matches(wanted, found):
                return False
        elif not any(_is_met(each, found) for each in wanted):
            return False
    return True


def _is_met(wanted: object, found: object) -> bool:
    """Return whether a value, or one of a list, meets one condition."""
    if wanted == {"exists": False}:
        return found is _ABSENT
    if isinstance(found, Sequence) and not isinstance(found, str):
        return any(_is_met(wanted, each) for each in found)
    match wanted:
        case {"exists": True}:
            return found is not _ABSENT
        case {"prefix": str(prefix)}:
            return isinstance(found, str) and found.startswith(prefix)
        case {"numeric": [">", int(least)]}:
            return isinstance(found, int | float) and found > least
        case {"anything-but": {"prefix": str(prefix)}}:
            return isinstance(found, str) and not found.startswith(prefix)
        case {"anything-but": refused}:
            listed = refused if isinstance(refused, list) else [refused]
            return found is not _ABSENT and found not in listed
        case Mapping():
            raise NotImplementedError(f"teach tests/world/patterns.py the condition {wanted}")
        case _:
            return found is not _ABSENT and found == wanted
