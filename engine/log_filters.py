"""Filter patterns of log groups, and their pages.

Stock MiniStack has a pattern in braces match every line, where AWS compares properties of the
line's JSON. Terms of another pattern are case-sensitive on AWS: all of them must be there, or any
of them with `?`; quoted ones may contain spaces. A `nextToken` leads to the events beyond the first
10,000. Stock MiniStack knows none of these.

Here a pattern in braces may have comparisons with `=` that `||` connects; others, and terms with
`-`, are refused.
"""

import json
import math
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final

from ministack.core.responses import error_response_json, json_response
from ministack.services import cloudwatch_logs

_PAGE: Final = 10_000
_TERM: Final = re.compile(r'([?-]?)(?:"([^"]*)"|(\S+))')
_COMPARISON: Final = re.compile(r'\s*\$((?:\.\w+)+)\s*=\s*(?:"([^"]*)"|([\w.*-]+))\s*')


def _compiled(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a line matches.

    Raise ValueError for a pattern that this module cannot read.
    """
    if pattern.startswith("{"):
        return _comparisons(pattern)
    return _terms(pattern)


def _comparisons(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a JSON line meets one of the pattern's comparisons."""
    wanted: list[tuple[list[str], str]] = []
    for text in pattern.strip("{}").split("||"):
        comparison = _COMPARISON.fullmatch(text)
        if comparison is None:
            raise _unreadable(pattern)
        path, quoted, plain = comparison.groups()
        operand = quoted or plain or ""
        _, *names = path.split(".")
        wanted.append((names, operand))

    def holds_one(line: str) -> bool:
        return any(_holds(line, names, operand) for names, operand in wanted)

    return holds_one


def _terms(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a line has every term, or one of those behind a `?`."""
    required: list[str] = []
    alternatives: list[str] = []
    for sign, quoted, plain in _TERM.findall(pattern):
        if sign == "-":
            raise _unreadable(pattern)
        (alternatives if sign else required).append(quoted or plain)
    if required or not alternatives:  # AWS ignores `?` beside other terms
        return lambda line: all(term in line for term in required)
    return lambda line: any(term in line for term in alternatives)


def _unreadable(pattern: str) -> ValueError:
    return ValueError(f"this engine cannot read the filter pattern {pattern}")


def _holds(line: str, path: list[str], operand: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return fnmatchcase(value if isinstance(value, str) else json.dumps(value), operand)


def _filter_log_events(request: dict[str, Any]) -> Any:
    name = cloudwatch_logs._resolve_log_group_name(request)
    if name not in cloudwatch_logs._log_groups:
        return error_response_json(
            "ResourceNotFoundException", f"The specified log group does not exist: {name}", 400
        )
    try:
        matches = _compiled(request.get("filterPattern", "").strip())
    except ValueError as error:
        return error_response_json("InvalidParameterException", str(error), 400)
    streams = cloudwatch_logs._log_groups[name]["streams"]
    start = request.get("startTime", 0)
    end = request.get("endTime", math.inf)
    with cloudwatch_logs._log_events_lock:
        found = [
            {**event, "logStreamName": stream}
            for stream in request.get("logStreamNames") or list(streams)
            for event in streams.get(stream, {"events": []})["events"]
            if start <= event["timestamp"] <= end and matches(event["message"])
        ]
    found.sort(key=lambda event: (event["timestamp"], event.get("ingestionTime", 0)))
    first = int(request.get("nextToken", 0))
    last = first + min(request.get("limit", _PAGE), _PAGE)
    following = {"nextToken": str(last)} if last < len(found) else {}
    return json_response({"events": found[first:last], "searchedLogStreams": [], **following})


def apply(_settings: object) -> None:
    """Have FilterLogEvents read patterns as AWS does, and page through what it finds."""
    cloudwatch_logs._filter_log_events = _filter_log_events
