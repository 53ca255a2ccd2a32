"""How the desk's pages write times, spans, sizes, money and ids. No I/O."""

import json
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from ops.text import rough, span, visible

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_TENS: Final = 10 * _SECOND
_JUST_NOW: Final = 2 * _SECOND
LONGEST: Final = 300
"""The most characters of a stranger's text in a sentence or a cell."""
_MOST: Final = 20_000
"""The most characters of any text on a page, unless it is `Whole`."""
_UUID_LENGTH: Final = 36
_UUID_HYPHENS: Final = 4
_KIB: Final = 1024
_EVER: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp() * _SECOND


class Whole(str):
    """Text that a page shows in full, however long it is."""

    __slots__ = ()


def finished(value: object) -> object:
    """Return what a template prints for a value: no control characters, and never without end."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if isinstance(value, Whole):
        return visible(value)
    return visible(clip(value, _MOST))


def clip(text: str, longest: int = LONGEST) -> str:
    """Return a text, or its beginning and its size."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({size(len(text.encode(errors='replace')))})"


def part(text: str) -> str:
    """Return a text as a part of an address."""
    return quote(text, safe="", errors="replace")


def size(count: int) -> str:
    """Return a number of bytes with its unit: ``812 bytes``, ``1.1 KB``, ``1.0 MB``."""
    if count < _KIB:
        return f"{count:,} bytes"
    if count < _KIB * _KIB:
        return f"{count / _KIB:.1f} KB"
    return f"{count / _KIB / _KIB:.1f} MB"


def money(cents: int, currency: str) -> str:
    """Return an amount of money: ``12.40 EUR``."""
    return f"{cents / 100:,.2f} {currency}"


def moment(time_ms: float) -> datetime:
    """Return a time in UTC; one beyond the calendar is its end."""
    return datetime.fromtimestamp(min(max(0.0, time_ms), _EVER) / _SECOND, UTC)


def status_text(status: str) -> str:
    """Return a status of a record or of a replay in words: ``in progress`` for IN_PROGRESS."""
    return status.lower().replace("_", " ")


def exact(time_ms: float) -> str:
    """Return a time to the millisecond, with its day."""
    return f"{moment(time_ms):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def clock_text(time_ms: float, now_ms: float) -> str:
    """Return a time of day, with the day if it is not today's."""
    time = moment(time_ms)
    if time.date() == moment(now_ms).date():
        return f"{time:%H:%M:%S}"
    return f"{time.day} {time:%b %H:%M:%S}"


def moment_text(time_ms: float, now_ms: float) -> str:
    """Return a time of day to the millisecond, with the day if it is not today's."""
    milliseconds = exact(time_ms)[19:23]
    return clock_text(time_ms, now_ms) + milliseconds


def ago_text(time_ms: float, now_ms: float) -> str:
    """Return how long ago a time was, up to an hour; else the time.

    In one unit: a list whose rows change every second cannot be read.
    """
    age = now_ms - time_ms
    if abs(age) < _JUST_NOW:
        return "just now"
    if 0 <= age < _HOUR:
        return f"{rough(age)} ago"
    return clock_text(time_ms, now_ms)


def until_text(time_ms: float, now_ms: float) -> str:
    """Return in how long a time will be, up to a day; ``now`` if it is over."""
    left = time_ms - now_ms
    if left <= 0:
        return "now"
    return f"in {span(left)}" if left < _DAY else clock_text(time_ms, now_ms)


def marked(time_ms: float, text: str) -> Markup:
    """Return a text for a time, which shows the exact time when one points at it."""
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment(time_ms).isoformat(timespec="milliseconds"), exact(time_ms), text
    )


def shortened_id(text: str) -> str:
    """Return an id as lists show it: of a UUID the first 8 and the last 4 characters."""
    before, mark, name = text.rpartition("#")
    is_uuid = len(name) == _UUID_LENGTH and name.count("-") == _UUID_HYPHENS
    if not is_uuid:
        return clip(text, 80)
    beginning = name[:8]
    end = name[-4:]
    return f"{before}{mark}{beginning}…{end}"


def published_text(published: int, replayed: int) -> str:
    """Return how an event got onto the bus: ``published once, replayed twice``."""
    counts = {"published": published, "replayed": replayed}
    parts = [f"{how} {_times(count)}" for how, count in counts.items() if count]
    return ", ".join(parts) or "not seen on the bus"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def indented(found: object) -> str:
    """Return a JSON document as text with an entry a line; a text stays as it is."""
    return found if isinstance(found, str) else json.dumps(found, indent=2)
