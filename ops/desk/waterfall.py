"""The picture of a ride: its events and their deliveries over one axis of time. No I/O.

An event has a row with a diamond, and below it a lane for each consumer that takes it. Places are
those of `ops.desk.axis`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from carride_idempotency import observation
from ops.dead_letters import Redrives
from ops.desk.axis import Axis, Band, Label
from ops.desk.deliveries import Delivered, began_ms, series_of
from ops.desk.facts import ABSORBED, CRASHED, Fact, Run
from ops.desk.pictures import look
from ops.desk.words import clock_text
from ops.text import span

_SECOND_MS: Final = 1_000.0
_WORDS_FIT: Final = 8.0
"""A wait of this width has room for how long it is."""
_LEAST_WAIT_MS: Final = 100.0
_LOUD_ROWS: Final = 40
"""With more rows than this, the picture begins without what went well."""
MOST_EVENTS: Final = 100
_QUICK_MS: Final = 2_000.0
_PAIR: Final = 2
_TAKE: Final = frozenset({observation.NEW})


class Bar(NamedTuple):
    """A run."""

    kind: str
    x: float
    width: float
    title: str


class Wait(NamedTuple):
    """A time between two attempts, or until one begins."""

    x: float
    width: float
    text: str
    """How long it was; empty if there is no room for it."""


class Mark(NamedTuple):
    """The last redrive in the picture."""

    id: str
    x: float
    redrives: Redrives


class Lane(NamedTuple):
    """The deliveries of an event to a consumer, or those of them that do not overlap others."""

    id: str
    consumer: str
    fact: str
    note: str
    """Which attempts these are; empty for a single one."""
    bars: tuple[Bar, ...]
    waits: tuple[Wait, ...]
    letters: tuple[float, ...]
    """Where the event was dead-lettered."""
    marks: tuple[Mark, ...]
    """The last redrive of it, if there is one."""
    outcome: str
    skipped: int
    """Deliveries that were skipped, besides the one with the outcome."""
    took: str
    runs: tuple[Run, ...]
    begun: tuple[tuple[float, Run], ...]
    """The same, each after the time at which it began."""
    quiet: bool
    """Whether it is one quick run that took effect."""
    is_last: bool
    """Whether it has the deciding runs of its consumer."""


class Row(NamedTuple):
    """An event, with the lanes of its consumers."""

    fact: Fact
    x: float
    lanes: tuple[Lane, ...]
    from_lane: str | None
    """Id of the lane whose run emitted the event."""

    @property
    def quiet_bars(self) -> tuple[Bar, ...]:
        """The runs of the lanes that a phone does not draw."""
        return tuple(bar for lane in self.lanes if lane.quiet for bar in lane.bars)

    @property
    def quiet(self) -> bool:
        """Whether all went well."""
        return all(lane.quiet for lane in self.lanes)


class Picture(NamedTuple):
    """What a template draws."""

    ticks: tuple[Label, ...]
    bands: tuple[Band, ...]
    now_x: float | None
    """None if nothing is expected of the ride any more."""
    rows: tuple[Row, ...]
    lines: Mapping[str, tuple[float, ...]]
    """The places of lines from runs to events that pass a row, by the id of its event or lane."""
    begins: Mapping[str, tuple[tuple[float, float], ...]]
    """Where such lines begin, by the id of the lane: the end of the run, and the event's place."""
    events: int
    """How many are drawn or hidden."""
    hidden: int
    """Rows that are left out because all went well in them."""
    runs: int
    hides: bool
    """Whether what went well is left out."""
    older: int
    """Events that are left out because there are too many."""

    @property
    def drawn(self) -> frozenset[str]:
        """The kinds of bars that are drawn, and ``letter`` and ``wait`` if there are any."""
        lanes = [lane for row in self.rows for lane in row.lanes]
        found = {bar.kind for lane in lanes for bar in lane.bars}
        if any(lane.letters for lane in lanes):
            found.add("letter")
        if any(lane.waits for lane in lanes):
            found.add("wait")
        return frozenset(found)


def picture(
    found: Sequence[tuple[Fact, Sequence[Delivered]]],
    emitters: Mapping[str, tuple[str, str]],
    now_ms: float,
    *,
    expects: bool,
    hides: bool | None,
) -> Picture:
    """Return the picture of events in the order of their times, with their deliveries.

    ``emitters`` has the event and the consumer that an event follows from, by its id. ``expects``
    says whether more is to happen. ``hides`` leaves out what went well; None: if there is much.
    """
    shown = found[-MOST_EVENTS:]
    axis = Axis(_busy(shown, now_ms, expects=expects), has_ahead=expects)
    rows = [_row(axis, fact, delivered, emitters) for fact, delivered in shown]
    if hides is None:
        hides = sum(1 + len(row.lanes) for row in rows) > _LOUD_ROWS
    kept = rows
    if hides:
        kept = [_loud(row) for row in rows if not row.quiet]
    lines, begins = _lines(axis, kept)
    return Picture(
        ticks=tuple(axis.ticks(now_ms)),
        bands=tuple(axis.bands()),
        now_x=axis.x(now_ms) if expects else None,
        rows=tuple(kept),
        lines=lines,
        begins=begins,
        events=len(rows),
        hidden=_count(rows) - _count(kept),
        runs=sum(len(each.runs) for _, delivered in shown for each in delivered),
        hides=hides,
        older=len(found) - len(shown),
    )


def _count(rows: Sequence[Row]) -> int:
    """Return how many rows are drawn, lanes too."""
    return sum(1 + len(row.lanes) + sum(len(lane.marks) for lane in row.lanes) for row in rows)


def _loud(row: Row) -> Row:
    return row._replace(lanes=tuple(lane for lane in row.lanes if not lane.quiet))


def _busy(
    found: Sequence[tuple[Fact, Sequence[Delivered]]], now_ms: float, *, expects: bool
) -> Iterator[tuple[float, float]]:
    """Yield the times in which something happened, ran, or was due."""
    if expects or not found:
        yield now_ms, now_ms
    for fact, delivered in found:
        yield fact.time_ms, fact.time_ms
        for each in delivered:
            for run in each.runs:
                yield began_ms(fact, run), run.ended_ms
            for attempts in each.series:
                for one, other in pairwise(attempts):
                    yield one.ended_ms, max(one.ended_ms, began_ms(fact, other))
            if each.retry_due_ms is not None and each.counting:
                last_ms = each.counting[-1].ended_ms
                yield last_ms, max(now_ms, last_ms)
            if each.redrives is not None:
                yield each.redrives.last_ms, each.redrives.last_ms


def _row(
    axis: Axis,
    fact: Fact,
    delivered: Sequence[Delivered],
    emitters: Mapping[str, tuple[str, str]],
) -> Row:
    lanes: list[Lane] = []
    for each in delivered:
        lanes += _lanes(axis, each)
    from_lane = None
    if fact.id in emitters:
        cause, consumer = emitters[fact.id]
        from_lane = f"{consumer}-{cause}"
    x = axis.x(fact.time_ms)
    return Row(fact, x, tuple(lanes), from_lane)


def _lanes(axis: Axis, each: Delivered) -> Iterator[Lane]:
    """Yield the lanes of a consumer: one, unless attempts overlap."""
    groups = _without_overlap(each)
    for number, runs in enumerate(groups, 1):
        is_last = number == len(groups)
        name = f"{each.consumer}-{each.fact.id}"
        attempts = [run for run in runs if run.outcome not in ABSORBED]
        outcome = each.outcome
        if not is_last and attempts:
            outcome = attempts[-1].outcome
        yield Lane(
            id=name if is_last else f"{name}-{number}",
            consumer=each.consumer,
            fact=each.fact.id,
            note=_note(attempts, shares=len(groups) > 1),
            bars=tuple(_bar(axis, each.fact, run) for run in runs),
            waits=tuple(_waits(axis, each, attempts, is_last=is_last)),
            letters=tuple(_letters(axis, each, attempts, is_last=is_last)),
            marks=tuple(_marks(axis, each, name)) if is_last else (),
            outcome=outcome,
            skipped=max(0, each.skipped) if is_last else 0,
            took=_took(attempts),
            runs=tuple(runs),
            begun=tuple((began_ms(each.fact, run), run) for run in runs),
            quiet=_is_quiet(each),
            is_last=is_last,
        )


def _without_overlap(each: Delivered) -> list[list[Run]]:
    """Return the runs of a consumer in lanes: each attempt in the first that is free by then.

    What was skipped stands in the last lane, whatever it overlaps.
    """
    lanes: list[list[Run]] = []
    for run in each.counting:
        begin = began_ms(each.fact, run)
        free = [lane for lane in lanes if lane[-1].ended_ms <= begin]
        if free:
            free[-1].append(run)
        else:
            lanes.append([run])
    lanes.sort(key=lambda lane: lane[-1].outcome in observation.COMMITTED)
    skipped = [run for run in each.runs if run.outcome in ABSORBED]
    if not lanes:
        return [skipped]
    lanes[-1] += skipped
    return lanes


def _marks(axis: Axis, each: Delivered, name: str) -> Iterator[Mark]:
    if each.redrives is not None:
        yield Mark(f"{name}-redrive", axis.x(each.redrives.last_ms), each.redrives)


def _note(runs: Sequence[Run], *, shares: bool) -> str:
    """Return which attempts a lane has: their number, or their names if other lanes have some."""
    series = series_of(runs)
    attempts = [run for some in series for run in some]
    number = len(attempts)
    if shares and number == 1 and attempts[0].outcome == observation.LOST_LEASE:
        return "an earlier attempt"
    if shares and attempts and attempts[0].attempt:
        return _names_of(attempts)
    if len(series) > 1:
        return f"{number} attempts in {len(series)} rounds"
    if number > 1:
        return f"{number} attempts"
    return ""


def _names_of(attempts: Iterable[Run]) -> str:
    """Return the numbers of attempts in words, each once."""
    numbers = dict[str, None]()
    for run in attempts:
        if run.attempt:
            numbers[str(run.attempt)] = None
    listed = ", ".join(numbers)
    if len(numbers) == 1:
        return f"attempt {listed}"
    return f"attempts {listed}"


def _bar(axis: Axis, fact: Fact, run: Run) -> Bar:
    begin = began_ms(fact, run)
    x = axis.x(begin)
    found = look(run.outcome)
    title = f"{found.word}, {clock_text(begin, begin)}"
    if run.duration_ms:
        title += f", {span(run.duration_ms)}"
    kind = "crash" if run.outcome == CRASHED else found.kind
    return Bar(kind, x, axis.x(run.ended_ms) - x, title)


def _waits(
    axis: Axis, each: Delivered, attempts: Sequence[Run], *, is_last: bool
) -> Iterator[Wait]:
    """Yield the times between attempts, and until the first one or the next one.

    No retry is due after an attempt that gave the event up.
    """
    if not attempts:
        return
    first = attempts[0]
    last = attempts[-1]
    if first.outcome == observation.TAKEOVER:
        yield from _wait(axis, each.fact.time_ms, began_ms(each.fact, first))
    for some in series_of(attempts):
        for one, other in pairwise(some):
            yield from _wait(axis, one.ended_ms, began_ms(each.fact, other))
    if is_last and each.retry_due_ms is not None:
        x = axis.x(last.ended_ms)
        yield Wait(x, axis.end - x, "")


def _wait(axis: Axis, begin_ms: float, end_ms: float) -> Iterator[Wait]:
    if end_ms - begin_ms < _LEAST_WAIT_MS:
        return
    x = axis.x(begin_ms)
    width = axis.x(end_ms) - x
    yield Wait(x, width, span(end_ms - begin_ms) if width >= _WORDS_FIT else "")


def _letters(
    axis: Axis, each: Delivered, attempts: Sequence[Run], *, is_last: bool
) -> Iterator[float]:
    """Yield where the attempts of a lane gave the event up."""
    given_up = [run for run in attempts if run.outcome == observation.DEAD_LETTERED]
    for run in given_up:
        yield axis.x(run.ended_ms)
    if each.has_letter and is_last and not given_up:
        last_ms = attempts[-1].ended_ms if attempts else each.fact.time_ms
        yield axis.x(last_ms)


def _took(runs: Sequence[Run]) -> str:
    """Return how long the attempts took whose times are known: each of two, or all in all."""
    attempts = [run for some in series_of(runs) for run in some] or runs
    known = [run.duration_ms for run in attempts if run.duration_ms]
    if not known:
        return ""
    if len(known) == 1:
        return span(known[0])
    are_short = max(known) < _SECOND_MS - 1
    if len(known) == _PAIR and are_short:
        one, other = known
        return f"{one:.0f} + {span(other)}"
    return f"{span(sum(known))} in all"


def _is_quiet(each: Delivered) -> bool:
    is_single = len(each.counting) == 1 and each.outcome in _TAKE
    return is_single and not each.has_letter and each.counting[0].duration_ms < _QUICK_MS


def _lines(
    axis: Axis, rows: Sequence[Row]
) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[tuple[float, float], ...]]]:
    """Return the lines from runs to the events that they emitted, by the rows that they touch."""
    names = []
    ends = {}
    for row in rows:
        names.append(row.fact.id)
        for lane in row.lanes:
            names.append(lane.id)
            names += [mark.id for mark in lane.marks]
            ends[lane.id] = _end_x(axis, lane)
    passed: dict[str, tuple[float, ...]] = {}
    begins: dict[str, tuple[tuple[float, float], ...]] = {}
    for row in rows:
        if row.from_lane not in ends:
            continue
        begin = (ends[row.from_lane], row.x)
        begins[row.from_lane] = (*begins.get(row.from_lane, ()), begin)
        above = names.index(row.from_lane) + 1
        below = names.index(row.fact.id)
        for name in names[above:below]:
            passed[name] = (*passed.get(name, ()), row.x)
    return passed, begins


def _end_x(axis: Axis, lane: Lane) -> float:
    """Return where the run of a lane ended that took effect."""
    ended = [run.ended_ms for run in lane.runs if run.outcome in observation.COMMITTED]
    return axis.x(ended[-1]) if ended else axis.end
