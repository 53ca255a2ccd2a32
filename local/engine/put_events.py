"""PutEvents: refused calls and entries, and the event's own time.

Stock MiniStack accepts an empty `Source` and a malformed `Detail`, checks no sizes, and replaces `Time` by now. AWS
refuses a call with more than 10 entries, or with 1 MB or more by the documented formula. An entry without `Source`,
`DetailType` or `Detail` fails with ``InvalidArgument``, one whose `Detail` is no JSON object with ``MalformedDetail``.
The event carries the entry's `Time`, by which the archive is searched.
"""

import json
from contextvars import ContextVar
from typing import Any

from ministack.core.responses import error_response_json, json_response
from ministack.services import eventbridge

_MAX_ENTRIES = 10
_MAX_BYTES = 1024 * 1024
_MAX_DETAIL_TYPE = 128
_TEXTS = ("Source", "DetailType", "Detail")
_TIME_BYTES = 14

type _Entry = dict[str, Any]

_stock_put_events = eventbridge._put_events
_stock_now = eventbridge._now_ts
_time: ContextVar[float | None] = ContextVar("time", default=None)


def _size_of(entry: _Entry) -> int:
    """Return an entry's size in bytes: 14 for a `Time`, and the UTF-8 bytes of its texts and resources."""
    texts = [*(entry.get(name) or "" for name in _TEXTS), *(entry.get("Resources") or [])]
    return sum(len(str(text).encode()) for text in texts) + (_TIME_BYTES if entry.get("Time") else 0)


def _error_of(entry: _Entry) -> tuple[str, str] | None:
    """Return the code and message with which EventBridge refuses the entry; ``None`` if it takes it."""
    for name in _TEXTS:
        if not entry.get(name) or (name == "DetailType" and len(entry[name]) > _MAX_DETAIL_TYPE):
            return "InvalidArgument", f"Parameter {name} is not valid: it is missing or too long."
    try:
        is_object = isinstance(json.loads(entry["Detail"]), dict)
    except ValueError:
        is_object = False
    return None if is_object else ("MalformedDetail", "Detail is malformed.")


def put_events(data: dict[str, Any], allow_aws_source: bool = False) -> Any:
    """Put entries on their buses, and return MiniStack's answer."""
    entries: list[_Entry] = data.get("Entries") or []
    if len(entries) > _MAX_ENTRIES:
        message = f"Value '{len(entries)}' at 'entries' failed to satisfy constraint: at most {_MAX_ENTRIES}"
        return error_response_json("ValidationException", message)
    if sum(map(_size_of, entries)) >= _MAX_BYTES:
        return error_response_json("ValidationException", "Total size of the entries in the request is over the limit.")
    results = []
    for entry in entries:
        if error := _error_of(entry):
            results.append({"ErrorCode": error[0], "ErrorMessage": error[1]})
            continue
        # One entry a call: the event that MiniStack makes of it gets this entry's time.
        stamped = _time.set(eventbridge._coerce_timestamp(entry.get("Time")))
        try:
            _, _, body = _stock_put_events({**data, "Entries": [entry]}, allow_aws_source)
        finally:
            _time.reset(stamped)
        results += json.loads(body)["Entries"]
    return json_response({"FailedEntryCount": sum("ErrorCode" in each for each in results), "Entries": results})


def apply(_settings: object) -> None:
    """Check entries before MiniStack takes them."""
    eventbridge._put_events = put_events
    # From which MiniStack gets the time of an event.
    eventbridge._now_ts = lambda: _time.get() or _stock_now()
