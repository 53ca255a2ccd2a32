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


type Bar = tuple[str, int, int, int]
"""CSS class, x, y and height of a part of a bucket's bar; 1 is a bucket's width and an event's
height."""


def stacked(
    buckets: Sequence[Counter[str]], parts: Mapping[str, Iterable[str]]
) -> tuple[list[Bar], int]:
    """Stack the counts of time buckets, the oldest first.

    Return the bars, and the height of the highest bucket.

    ``parts`` are the outcomes that each part adds up, by CSS class, from the bottom up.
    """
    peak = max(bucket.total() for bucket in buckets)
    bars = list[Bar]()
    for x, bucket in enumerate(buckets):
        top = peak
        for kind, outcomes in parts.items():
            if count := sum(bucket[outcome] for outcome in outcomes):
                top -= count
                bars.append((kind, x, top, count))
    return bars, peak


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
