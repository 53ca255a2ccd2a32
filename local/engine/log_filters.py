"""Filter patterns of log groups, and their pages.

Stock MiniStack has a pattern in braces match every line, where AWS compares properties of the line's JSON. Terms of
another pattern are case-sensitive on AWS: all of them must be there, none with `-`, any of them with `?`; quoted ones
may contain spaces. A `nextToken` leads to the events beyond the first 10,000. Stock MiniStack knows none of these.

Here a pattern in braces is comparisons with `=`, any of which may hold (`||`); others are refused.
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
    """Return what tells whether a line matches; raise ValueError for a pattern that this module cannot read."""
    if pattern.startswith("{"):
        comparisons = [_COMPARISON.fullmatch(each) for each in pattern[1:].removesuffix("}").split("||")]
        if not (pattern.endswith("}") and all(comparisons)):
            raise ValueError(f"{pattern} is no filter pattern that this engine reads")
        wanted = [(each[1].split(".")[1:], each[2] or each[3] or "") for each in comparisons if each]
        return lambda line: any(
            (found := _property(line, path)) is not None and fnmatchcase(found, operand) for path, operand in wanted
        )
    found = [(sign, quoted or plain) for sign, quoted, plain in _TERM.findall(pattern)]
    every = [term for sign, term in found if not sign]
    some = [term for sign, term in found if sign == "?"] if not every else []  # AWS ignores `?` beside other terms
    none = [term for sign, term in found if sign == "-"]

    def in_text(line: str) -> bool:
        wanted = all(term in line for term in every) and (not some or any(term in line for term in some))
        return wanted and not any(term in line for term in none)

    return in_text


def _property(line: str, path: list[str]) -> str | None:
    """Return the text of a property of the line's JSON, if it has one."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value if isinstance(value, str) else json.dumps(value)


def _filter_log_events(request: dict[str, Any]) -> Any:
    name = cloudwatch_logs._resolve_log_group_name(request)
    if name not in cloudwatch_logs._log_groups:
        return error_response_json("ResourceNotFoundException", f"The specified log group does not exist: {name}", 400)
    try:
        matches = _compiled(request.get("filterPattern", "").strip())
    except ValueError as error:
        return error_response_json("InvalidParameterException", str(error), 400)
    streams = cloudwatch_logs._log_groups[name]["streams"]
    start, end = request.get("startTime", 0), request.get("endTime", math.inf)
    with cloudwatch_logs._log_events_lock:
        found = [
            {**event, "logStreamName": stream}
            for stream in request.get("logStreamNames") or streams
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
