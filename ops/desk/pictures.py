"""What the desk's pictures show: looks of outcomes, bars of charts, and a time axis. No I/O."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from idempotency import observation
from ops.audit.evidence import AuditedConsumer
from ops.desk.index import ABSORBED, CRASHED, DEAD, FAILURES, WAITING, Fact, Run

WIDTH: Final = 1000.0
"""Width of a picture in its own units."""
_INSTANT_MS: Final = 20.0
"""On the time axis, a gap counts by its logarithm, in units of this."""


class Look(NamedTuple):
    """How an outcome is shown: its CSS class, a sign and a word, so that colour says nothing alone."""

    kind: str
    sign: str
    word: str


LOOKS: Final[Mapping[str, Look]] = {
    observation.NEW: Look("new", "✓", "new"),
    observation.RETRIED: Look("new", "↻", "retried"),
    observation.TAKEOVER: Look("takeover", "⇄", "takeover"),
    observation.DUPLICATE: Look("duplicate", "=", "duplicate"),
    observation.BUSY: Look("duplicate", "…", "busy"),
    observation.FAILED: Look("failed", "✕", "failed"),
    CRASHED: Look("failed", "✕", "crashed"),
    observation.LOST_LEASE: Look("fenced", "⊘", "late write fenced off"),
    observation.EXPIRED: Look("duplicate", "⌀", "expired"),
    observation.QUARANTINED: Look("dead", "■", "quarantined"),
    observation.DEAD_LETTERED: Look("dead", "■", "dead"),
    observation.UNPROTECTED: Look("failed", "!", "unprotected"),
    WAITING: Look("waiting", "○", "waiting"),
}

STACKED: Final[Mapping[str, frozenset[str]]] = {
    "new": frozenset({observation.NEW, observation.RETRIED}),
    "takeover": frozenset({observation.TAKEOVER}),
    "duplicate": ABSORBED,
    "failed": FAILURES,
    "dead": DEAD,
}
"""The parts of a consumer's chart, from the bottom up."""


class Chip(NamedTuple):
    """What became of a fact at a consumer."""

    consumer: str
    look: Look
    absorbed: int


class Bar(NamedTuple):
    """A rectangle."""

    x: float
    width: float
    kind: str
    y: float = 0.0
    height: float = 0.0


class Chart(NamedTuple):
    """Stacked bars, in a picture of `WIDTH` by 100."""

    bars: Sequence[Bar]
    peak: int
    """The largest sum in a bucket."""


class Attempt(NamedTuple):
    """A run on the time axis."""

    run: Run
    look: Look
    bar: Bar
    guessed: bool = False
    """Whether only a later attempt's number shows that there was this run."""


def chips(fact: Fact, consumers: Iterable[AuditedConsumer]) -> list[Chip | None]:
    """Return a chip for each consumer; None where the consumer does not take the fact."""
    found: list[Chip | None] = []
    for each in consumers:
        outcome = fact.outcome(each)
        absorbed = fact.absorbed(each.name) - (outcome in ABSORBED)
        found.append(None if outcome is None else Chip(each.name, look(outcome), absorbed))
    return found


def look(outcome: str) -> Look:
    """Return the look of an outcome."""
    return LOOKS.get(outcome, Look("failed", "!", outcome.lower()))


def chart(buckets: Sequence[Counter[str]], parts: Mapping[str, Iterable[str] | None]) -> Chart:
    """Stack the counts of time buckets.

    Args:
        buckets: counts by outcome, the oldest first.
        parts: the outcomes that each part adds up, by CSS class; None is all of them.
    """
    peak = max((bucket.total() for bucket in buckets), default=0)
    step = WIDTH / max(len(buckets), 1)
    bars = []
    for number, bucket in enumerate(buckets):
        top = 100.0
        for kind, outcomes in parts.items():
            count = bucket.total() if outcomes is None else sum(bucket[outcome] for outcome in outcomes)
            if count:
                height = 100.0 * count / peak
                top -= height
                bars.append(Bar(round(number * step, 1), round(step * 0.8, 1), kind, round(top, 1), round(height, 1)))
    return Chart(bars, peak)


def axis(times_ms: Iterable[float]) -> Callable[[float], float]:
    """Return a function from a time to its place on an axis from 0 to `WIDTH`.

    Long gaps are compressed, so that milliseconds and minutes can be seen in one picture; the order is kept.
    """
    points = sorted(set(times_ms))
    gaps = [math.log1p((later - earlier) / _INSTANT_MS) for earlier, later in pairwise(points)]
    places = [0.0, *accumulate(gaps)]
    scale = WIDTH / places[-1] if places[-1] else 0.0

    def place(time_ms: float) -> float:
        at = min(max(bisect_right(points, time_ms) - 1, 0), max(len(gaps) - 1, 0))
        if not gaps:
            return 0.0
        share = (time_ms - points[at]) / (points[at + 1] - points[at])
        return round((places[at] + min(max(share, 0.0), 1.0) * gaps[at]) * scale, 1)

    return place


def began_ms(run: Run) -> float:
    """Return when a run's invocation began, as far as its report says."""
    return run.ended_ms - (run.duration_ms or 0.0)


def attempts(runs: Iterable[Run], place: Callable[[float], float]) -> list[Attempt]:
    """Return runs of one consumer as bars, with the crashed ones that only a takeover's attempt number shows."""
    found: list[Attempt] = []
    earlier = 0
    for run in sorted(runs, key=began_ms):
        if run.outcome == observation.TAKEOVER:
            for number in range(1 + earlier, run.attempt):
                crashed = Run(run.consumer, CRASHED, number, None, "it logged nothing", int(began_ms(run)))
                found.append(Attempt(crashed, look(CRASHED), _bar(crashed, place), guessed=True))
        earlier += run.outcome in FAILURES
        found.append(Attempt(run, look(run.outcome), _bar(run, place)))
    return found


def _bar(run: Run, place: Callable[[float], float]) -> Bar:
    begin, end = place(began_ms(run)), place(run.ended_ms)
    return Bar(begin, max(end - begin, 8.0), look(run.outcome).kind)
