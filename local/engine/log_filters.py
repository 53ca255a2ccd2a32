"""Filter patterns of log groups, and their pages.

AWS: a pattern in braces compares properties of a line's JSON; another one names terms: all of them, none with `-`, any
of them with `?`. Terms are case-sensitive, and quoted ones may contain spaces. `FilterLogEvents` answers at most 10,000
events and a `nextToken` with which the rest is read.

Stock MiniStack: a pattern in braces matches every line, `?` is part of the term, and quotes end at a space. It answers
the first 10,000 events and no token.

Plugs into `cloudwatch_logs._filter_log_events` and `_compile_filter_pattern`. In braces it reads `=` and `!=` that `&&`
and `||` connect, without parentheses, and refuses others. A token is the time of the last event answered and how many
events of that millisecond were answered.
"""

import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final

from ministack.core.responses import error_response_json, json_response
from ministack.services import cloudwatch_logs

_PAGE: Final = 10_000
_TERM: Final = re.compile(r'([?-]?)(?:"([^"]*)"|(\S+))')
_COMPARISON: Final = re.compile(r'\s*\$((?:\.\w+)+)\s*(!?=)\s*(?:"([^"]*)"|([\w.*-]+))\s*')


def _compiled(pattern: str | None) -> Callable[[str], bool]:
    """Return what tells whether a line matches; raise ValueError for a pattern that this module cannot read."""
    pattern = (pattern or "").strip()
    if pattern.startswith("{") and pattern.endswith("}"):
        either = [[_comparison(each) for each in both.split("&&")] for both in pattern[1:-1].split("||")]
        return lambda line: any(all(holds(_object(line)) for holds in both) for both in either)
    found = [(sign, quoted or plain) for sign, quoted, plain in _TERM.findall(pattern)]
    every = [term for sign, term in found if not sign]
    some = [term for sign, term in found if sign == "?"] if not every else []  # AWS ignores `?` beside other terms
    none = [term for sign, term in found if sign == "-"]

    def in_text(line: str) -> bool:
        wanted = all(term in line for term in every) and (not some or any(term in line for term in some))
        return wanted and not any(term in line for term in none)

    return in_text


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _comparison(text: str) -> Callable[[Any], bool]:
    match = _COMPARISON.fullmatch(text)
    if match is None:
        raise ValueError(f"{text.strip()!r} is no comparison that this engine reads in a filter pattern")
    path, operator, operand = match[1].split(".")[1:], match[2], match[3] or match[4] or ""

    def holds(value: Any) -> bool:
        for name in path:
            if not isinstance(value, dict) or name not in value:
                return False
            value = value[name]
        written = value if isinstance(value, str) else json.dumps(value)
        return fnmatchcase(written, operand) is (operator == "=")

    return holds


def apply(_settings: object) -> None:
    """Have FilterLogEvents read patterns as AWS does, and page through what it finds."""
    stock = cloudwatch_logs._filter_log_events

    def filter_log_events(data: dict[str, Any]) -> Any:
        limit = min(int(data.get("limit") or _PAGE), _PAGE)
        request, skipped = data | {"limit": _PAGE}, 0
        if token := request.pop("nextToken", None):
            request["startTime"], skipped = map(int, token.split("/"))
        try:
            status, headers, body = stock(request)
        except ValueError as error:
            return error_response_json("InvalidParameterException", str(error), 400)
        if status != 200:  # noqa: PLR2004 - HTTP
            return status, headers, body
        found = json.loads(body)["events"]
        answered = found[: skipped + limit]
        answer: dict[str, Any] = {"events": answered[skipped:], "searchedLogStreams": []}
        if answer["events"] and (len(found) > len(answered) or len(found) == _PAGE):
            last = answered[-1]["timestamp"]
            answer["nextToken"] = f"{last}/{sum(event['timestamp'] == last for event in answered)}"
        return json_response(answer)

    cloudwatch_logs._compile_filter_pattern = _compiled
    cloudwatch_logs._filter_log_events = filter_log_events
