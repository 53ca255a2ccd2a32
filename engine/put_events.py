"""PutEvents: refused entries, and the event's own time.

Stock MiniStack accepts an empty `Source` and a malformed `Detail`, and replaces `Time` by now. On
AWS an entry without `Source`, `DetailType` or `Detail` fails with ``InvalidArgument``. One whose
`Detail` is not a JSON object fails with ``MalformedDetail``. The event carries the entry's `Time`,
by which the archive is searched.

Here a request may have any size.
"""

import json
from contextvars import ContextVar
from typing import Any, NoReturn

from ministack.core.responses import json_response
from ministack.services import eventbridge

_MAX_ENTRIES = 10

type _Entry = dict[str, Any]

_stock_put_events = eventbridge._put_events
_stock_now = eventbridge._now_ts
_time: ContextVar[float | None] = ContextVar("time", default=None)


def _error_of(entry: _Entry) -> tuple[str, str] | None:
    """Return the code and message with which EventBridge refuses the entry, or None."""
    for name in ("Source", "DetailType", "Detail"):
        if not entry.get(name):
            return "InvalidArgument", f"Parameter {name} is missing."
    if not _is_object(entry["Detail"]):
        return "MalformedDetail", "Detail is malformed."
    return None


def _is_object(detail: str) -> bool:
    """Return whether a text is a JSON object. Python also reads NaN and Infinity, which are not."""
    try:
        return isinstance(json.loads(detail, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):  # the latter: nested too deeply
        return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def put_events(data: dict[str, Any], allow_aws_source: bool = False) -> Any:
    """Put entries on their buses, and return MiniStack's answer."""
    entries: list[_Entry] = data.get("Entries") or []
    if len(entries) > _MAX_ENTRIES:  # MiniStack refuses them
        return _stock_put_events(data, allow_aws_source)
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
    return json_response(
        {"FailedEntryCount": sum("ErrorCode" in each for each in results), "Entries": results}
    )


def apply(_settings: object) -> None:
    """Check entries before MiniStack takes them."""
    eventbridge._put_events = put_events
    # From which MiniStack gets the time of an event.
    eventbridge._now_ts = lambda: _time.get() or _stock_now()
