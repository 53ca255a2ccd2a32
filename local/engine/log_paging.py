"""Reading a log group that holds more than one page.

AWS: `FilterLogEvents` answers at most 10,000 events and a `nextToken` with which the rest is read.

Stock MiniStack: answers the first 10,000 and no token, so that a caller takes them for all there are.

Plugs into `cloudwatch_logs._filter_log_events`, around it. A token is the time of the last event answered and how many
events of that millisecond were answered.
"""

import json
from typing import Any

from ministack.core.responses import json_response
from ministack.services import cloudwatch_logs

_PAGE = 10_000

_stock_filter = cloudwatch_logs._filter_log_events


def _filter_log_events(data: dict[str, Any]) -> Any:
    limit = min(int(data.get("limit") or _PAGE), _PAGE)
    request, skipped = dict(data), 0
    if token := request.pop("nextToken", None):
        request["startTime"], skipped = map(int, token.split("/"))
    stock = _stock_filter({**request, "limit": _PAGE})
    if stock[0] != 200:  # noqa: PLR2004 - HTTP
        return stock
    found = json.loads(stock[2])["events"]
    answered = found[: skipped + limit]
    page = answered[skipped:]
    answer: dict[str, Any] = {"events": page, "searchedLogStreams": []}
    if page and (len(found) > len(answered) or len(found) == _PAGE):
        last = answered[-1]["timestamp"]
        answer["nextToken"] = f"{last}/{sum(event['timestamp'] == last for event in answered)}"
    return json_response(answer)


def apply() -> None:
    """Page through what MiniStack finds."""
    cloudwatch_logs._filter_log_events = _filter_log_events
