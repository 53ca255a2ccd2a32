"""Reading a log group that holds more than one page.

AWS: `FilterLogEvents` answers at most 10,000 events and a `nextToken` with which the rest is read.

Stock MiniStack: answers the first 10,000 and no token, so that a caller takes them for all there are.

Plugs into `cloudwatch_logs._filter_log_events`, around it. A token is the time of the last event answered and how many
events of that millisecond were.
"""

import json
from typing import Any

from ministack.core.responses import error_response_json, json_response
from ministack.services import cloudwatch_logs

_PAGE = 10_000

type _Answer = tuple[int, dict[str, str], bytes]

_stock_filter = cloudwatch_logs._filter_log_events


def _filter_log_events(data: dict[str, Any]) -> _Answer:
    limit = min(int(data.get("limit") or _PAGE), _PAGE)
    request, skipped = dict(data), 0
    if token := request.pop("nextToken", None):
        time, _, count = token.partition("/")
        if not (time.isdecimal() and count.isdecimal()):
            invalid: _Answer = error_response_json(
                "InvalidParameterException", "The specified nextToken is invalid.", 400
            )
            return invalid
        request["startTime"], skipped = int(time), int(count)
    stock: _Answer = _stock_filter({**request, "limit": _PAGE})
    if stock[0] != 200:  # noqa: PLR2004 - HTTP
        return stock
    found = json.loads(stock[2])["events"]
    page = found[skipped : skipped + limit]
    answer: dict[str, Any] = {"events": page, "searchedLogStreams": []}
    if page and (len(found) > skipped + limit or len(found) == _PAGE):
        last = page[-1]["timestamp"]
        answered = found[: skipped + len(page)]
        answer["nextToken"] = f"{last}/{sum(event['timestamp'] == last for event in answered)}"
    done: _Answer = json_response(answer)
    return done


def apply() -> None:
    """Page through what MiniStack finds."""
    cloudwatch_logs._filter_log_events = _filter_log_events
