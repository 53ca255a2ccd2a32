"""Filter patterns of log groups.

AWS: a pattern in braces compares properties of a line's JSON; another one names terms: all of them, none with `-`, any
of them with `?`. Terms are case-sensitive, and quoted ones may contain spaces.

Stock MiniStack: a pattern in braces matches every line, `?` is part of the term, and quotes end at a space.

Plugs into `cloudwatch_logs._filter_log_events` and `_compile_filter_pattern`. Patterns in brackets, regular expressions
and wildcards for an array's index are not read.
"""

import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from ministack.core.responses import error_response_json
from ministack.services import cloudwatch_logs

type Matches = Callable[[Any], bool]

_TERM: Final = re.compile(r'([?-]?)(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|&&|\|\||[()]|[<>!]?=|[<>]|[^\s()=<>!&|]+)')
_PART: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_STATES: Final[dict[str, Any]] = {"NULL": None, "TRUE": True, "FALSE": False}
_ABSENT: Final = object()


def compiled(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that tells whether a line matches a filter pattern.

    Raises:
        ValueError: the pattern is not of a form that this module reads.
    """
    pattern = (pattern or "").strip()
    if pattern.startswith("{") and pattern.endswith("}"):
        tokens = _TOKEN.findall(pattern[1:-1])
        matches = _any(tokens)
        if tokens:
            raise ValueError(f"the filter pattern {pattern} goes on after its end: {' '.join(tokens)}")
        return lambda line: _in_json(line, matches)
    found = [(sign, quoted.replace('\\"', '"') or plain) for sign, quoted, plain in _TERM.findall(pattern)]
    every = [term for sign, term in found if not sign]
    some = [term for sign, term in found if sign == "?"] if not every else []  # AWS ignores `?` beside other terms
    none = [term for sign, term in found if sign == "-"]

    def in_text(line: str) -> bool:
        wanted = all(term in line for term in every) and (not some or any(term in line for term in some))
        return wanted and not any(term in line for term in none)

    return in_text


def _in_json(line: str, matches: Matches) -> bool:
    try:
        return matches(json.loads(line))
    except ValueError:
        return False


def _any(tokens: list[str]) -> Matches:
    found = list(_split(tokens, "||", lambda: _all(tokens)))
    return lambda value: any(matches(value) for matches in found)


def _all(tokens: list[str]) -> Matches:
    found = list(_split(tokens, "&&", lambda: _one(tokens)))
    return lambda value: all(matches(value) for matches in found)


def _split(tokens: list[str], by: str, read: Callable[[], Matches]) -> Iterator[Matches]:
    yield read()
    while tokens and tokens[0] == by:
        tokens.pop(0)
        yield read()


def _one(tokens: list[str]) -> Matches:
    """Read a comparison, or a pattern in parentheses."""
    try:
        first = tokens.pop(0)
        if first == "(":
            inner = _any(tokens)
            if tokens.pop(0) != ")":
                raise ValueError("a filter pattern lacks a closing parenthesis")
            return inner
        operator, operand = tokens.pop(0), tokens.pop(0)
    except IndexError:
        raise ValueError("a filter pattern ends too early") from None
    if not first.startswith("$"):
        raise ValueError(f"a filter pattern compares properties, which begin with $, not {first}")
    return lambda value: _holds(_property(value, first), operator, operand)


def _property(value: Any, path: str) -> Any:
    for name, index in _PART.findall(path):
        try:
            value = value[int(index)] if index else value[name]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return value


def _holds(value: Any, operator: str, operand: str) -> bool:
    if operator == "NOT":
        return value is _ABSENT
    if operator == "IS":
        return value is _STATES[operand]
    if value is _ABSENT:
        return False
    if operator in _ORDERS:
        return isinstance(value, int | float) and _ORDERS[operator](value, float(operand))
    if isinstance(value, int | float) and not isinstance(value, bool) and not operand.startswith('"'):
        equal = fnmatchcase(str(value), operand) if "*" in operand else value == float(operand)
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        equal = fnmatchcase(text, operand.strip('"').replace("[", "[[]").replace("?", "[?]"))
    return equal if operator == "=" else not equal


def apply() -> None:
    """Have FilterLogEvents read patterns as AWS does."""
    inner = cloudwatch_logs._filter_log_events

    def filter_log_events(data: dict[str, Any]) -> Any:
        try:
            return inner(data)
        except ValueError as error:
            return error_response_json("InvalidParameterException", str(error), 400)

    cloudwatch_logs._compile_filter_pattern = compiled
    cloudwatch_logs._filter_log_events = filter_log_events
