"""Counts over time: how often something happened in each bucket of a window. No I/O."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

BUCKETS: Final = 60
"""A window has so many buckets; that of all events has as many of them as it needs."""
_FEWEST: Final = 12
"""Buckets of the window of all events, so that a bar is not the whole picture."""
_MOST_TICKS: Final = 7
_TICKS_S: Final = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200)
_COARSE_S: Final = 1_440
_MOST_COARSE: Final = 1_000
"""Of the coarsest buckets, so many are kept: more than two weeks."""
_DAY_S: Final = 86_400


class Window(NamedTuple):
    """The last minutes, hours or days, in buckets of equal length."""

    name: str
    """In an address."""
    short: str
    words: str
    bucket_s: int
    tick_s: int
    """The time between two ticks of its axis."""
    buckets: int = BUCKETS

    @property
    def length_s(self) -> int:
        """Its length in seconds."""
        return self.buckets * self.bucket_s

    def end_s(self, now_s: float) -> int:
        """Return the end of its newest bucket, which is the current one."""
        return (int(now_s) // self.bucket_s + 1) * self.bucket_s

    def begin_s(self, now_s: float) -> int:
        """Return the begin of its oldest bucket."""
        return self.end_s(now_s) - self.length_s

    def place(self, time_ms: float, now_s: float) -> float:
        """Return the place of a time in its picture, from 0 to 100."""
        passed_s = time_ms / 1000 - self.begin_s(now_s)
        return min(100.0, max(0.0, 100 * passed_s / self.length_s))


WINDOWS: Final = (
    Window("5m", "5 min", "5 minutes", 5, 60),
    Window("15m", "15 min", "15 minutes", 15, 180),
    Window("1h", "1 h", "1 hour", 60, 600),
    Window("6h", "6 h", "6 hours", 360, 3_600),
    Window("24h", "24 h", "24 hours", _COARSE_S, 14_400),
)
ALL: Final = "all"


def window_of(name: str, begun_ms: float | None, now_s: float) -> Window:
    """Return a window by its name, the first one if there is no such name.

    It begins with the bucket of the oldest event if it would begin before; `ALL` always does.
    """
    begun_s = now_s if begun_ms is None else begun_ms / 1000
    if name == ALL:
        return _window_since(begun_s, now_s)
    window = next((each for each in WINDOWS if each.name == name), WINDOWS[0])
    return _cut(window, begun_s, now_s) if begun_s > window.begin_s(now_s) else window


def _window_since(begun_s: float, now_s: float) -> Window:
    """Return a window that begins at a time, with the shortest buckets that reach so far."""
    for each in WINDOWS:
        if each.begin_s(now_s) <= begun_s:
            return _cut(each._replace(name=ALL), begun_s, now_s)
    days = 1
    while True:
        days += 1
        found = Window(ALL, ALL, f"{days} days", days * _COARSE_S, _DAY_S)
        if found.begin_s(now_s) <= begun_s:
            return _cut(found, begun_s, now_s)


def _cut(window: Window, begun_s: float, now_s: float) -> Window:
    """Return a window without the buckets before a time, with round ticks."""
    needed = window.end_s(now_s) // window.bucket_s - int(begun_s) // window.bucket_s
    cut = window._replace(buckets=max(_FEWEST, needed))
    return cut._replace(tick_s=_tick_of(cut.length_s))


def _tick_of(length_s: int) -> int:
    """Return the shortest round time between ticks that has no more of them than have room."""
    for tick_s in _TICKS_S:
        if length_s <= _MOST_TICKS * tick_s:
            return tick_s
    return _DAY_S * math.ceil(length_s / (_MOST_TICKS * _DAY_S))


class Timeline:
    """How often something happened, by lane and bucket. Bounded."""

    def __init__(self) -> None:
        self._counts = {each.bucket_s: _buckets() for each in WINDOWS}

    def add(self, lane: str, what: str, time_ms: int) -> None:
        """Count that something happened."""
        for bucket_s, buckets in self._counts.items():
            buckets[time_ms // (1000 * bucket_s)][lane][what] += 1
            kept = _MOST_COARSE if bucket_s == _COARSE_S else BUCKETS
            if len(buckets) > 4 * kept:
                for old in sorted(buckets)[:-kept]:
                    del buckets[old]

    def recent(self, lane: str, now_s: float, window: Window = WINDOWS[0]) -> list[Counter[str]]:
        """Return what happened in a lane in each bucket of a window, the oldest first."""
        kept_s = min(window.bucket_s, _COARSE_S)
        buckets = self._counts[kept_s]
        share = window.bucket_s // kept_s
        first = window.begin_s(now_s) // kept_s
        found = []
        for number in range(window.buckets):
            total = Counter[str]()
            begin = first + number * share
            for each in range(begin, begin + share):
                total.update(_lane_of(buckets, each, lane))
            found.append(total)
        return found


type _Buckets = defaultdict[int, defaultdict[str, Counter[str]]]


def _buckets() -> _Buckets:
    return defaultdict(lambda: defaultdict(Counter))


def _lane_of(buckets: _Buckets, bucket: int, lane: str) -> Mapping[str, int]:
    """Return the counts of a bucket; none are added if it has none."""
    lanes = buckets.get(bucket)
    return {} if lanes is None else lanes.get(lane, {})
