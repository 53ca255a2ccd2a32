"""What the desk's pictures show: looks of outcomes, bars of charts, and a time axis. No I/O."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from carride_idempotency import observation
from ops.desk.index import CRASHED, WAITING

WIDTH: Final = 1000.0
"""Width of the time axis in its own units."""
_INSTANT_MS: Final = 20.0
"""On the time axis, a gap counts by its logarithm, in units of this."""


_HEADROOM: Final = 22.0
"""The part of a chart above its highest bar, for words."""
_BAR: Final = 0.82
"""The width of a bar, as a part of its bucket."""


class Look(NamedTuple):
    """How an outcome is shown.

    Its CSS class, an icon and a word, so that colour says nothing alone.
    """

    kind: str
    icon: str
    word: str


LOOKS: Final[Mapping[str, Look]] = {
    observation.NEW: Look("new", "check", "new"),
    observation.RETRIED: Look("new", "retry", "retried"),
    observation.TAKEOVER: Look("take", "swap", "takeover"),
    observation.DUPLICATE: Look("dup", "same", "duplicate"),
    observation.BUSY: Look("dup", "dots", "busy"),
    observation.FAILED: Look("fail", "cross", "failed"),
    CRASHED: Look("fail", "bolt", "crashed"),
    observation.LOST_LEASE: Look("fence", "shield", "late write fenced off"),
    observation.EXPIRED: Look("dup", "clock", "expired"),
    observation.QUARANTINED: Look("dead", "key", "quarantined"),
    observation.DEAD_LETTERED: Look("dead", "mail", "dead-lettered"),
    observation.UNPROTECTED: Look("fail", "warn", "unprotected"),
    WAITING: Look("wait", "clock", "waiting"),
}


def look(outcome: str) -> Look:
    """Return the look of an outcome."""
    return LOOKS.get(outcome, Look("fail", "warn", outcome.lower()))


class Bar(NamedTuple):
    """A part of a bucket's bar. Places and sizes are from 0 to 100."""

    kind: str
    x: float
    y: float
    height: float


class Stacked(NamedTuple):
    """A chart."""

    bars: tuple[Bar, ...]
    peak: int
    """The total of the highest bucket."""
    width: float
    """Of each bar."""


def stacked(buckets: Sequence[Counter[str]], parts: Mapping[str, Iterable[str]]) -> Stacked:
    """Stack the counts of time buckets, the oldest first.

    ``parts`` are the outcomes that each part adds up, by CSS class, from the bottom up.
    """
    step = 100 / len(buckets)
    counts = [_counts(bucket, parts) for bucket in buckets]
    peak = max(sum(each.values()) for each in counts)
    bars = list[Bar]()
    for number, each in enumerate(counts):
        y = 100.0
        for kind, count in each.items():
            if count:
                height = count / peak * (100 - _HEADROOM)
                y -= height
                bars.append(Bar(kind, number * step, y, height))
    return Stacked(tuple(bars), peak, step * _BAR)


def _counts(bucket: Counter[str], parts: Mapping[str, Iterable[str]]) -> dict[str, int]:
    return {kind: sum(map(bucket.__getitem__, outcomes)) for kind, outcomes in parts.items()}


def axis(times_ms: Iterable[float]) -> dict[float, float]:
    """Return the places of times on an axis from 0 to `WIDTH`.

    Long gaps are compressed, so that milliseconds and minutes can be seen in one picture; the order
    is kept.
    """
    points = sorted(set(times_ms))
    gaps = (math.log1p((later - earlier) / _INSTANT_MS) for earlier, later in pairwise(points))
    places = [0.0, *accumulate(gaps)]
    return {
        point: place * WIDTH / (places[-1] or 1.0)
        for point, place in zip(points, places, strict=True)
    }
