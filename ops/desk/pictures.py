"""What the desk's pictures show: looks of outcomes, and bars of charts. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from carride_idempotency import observation
from ops.desk.facts import CRASHED, LOST, WAITING

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
    """That of its `Count` in `ops.desk.counts`, so that a row and a number agree."""
    says: str = ""
    """What it is exactly, if its word has others, too."""


LOOKS: Final[Mapping[str, Look]] = {
    observation.NEW: Look("new", "check", "took effect"),
    observation.RETRIED: Look("new", "retry", "took effect", "on a retry"),
    observation.TAKEOVER: Look("take", "swap", "takeover"),
    observation.DUPLICATE: Look("dup", "same", "duplicate"),
    observation.BUSY: Look("dup", "dots", "duplicate", "busy: left to another delivery"),
    observation.FAILED: Look("fail", "cross", "failed"),
    CRASHED: Look("fail", "bolt", "crashed"),
    observation.LOST_LEASE: Look("fence", "shield", "late write fenced off"),
    observation.EXPIRED: Look("expired", "clock", "dropped as expired"),
    observation.QUARANTINED: Look("refused", "key", "refused", "its key is quarantined"),
    observation.DEAD_LETTERED: Look("dead", "mail", "given up", "dead-lettered"),
    observation.UNPROTECTED: Look("fail", "warn", "failed", "unprotected"),
    WAITING: Look("wait", "clock", "waiting"),
    LOST: Look("fail", "cross", "lost", "the audit says so"),
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
