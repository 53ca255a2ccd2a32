"""The picture of a ride: its events and their deliveries over one axis of time. No I/O.

An event has a row with a diamond, and below it a lane for each consumer that takes it. Places run
from 0 to 100, from left to right. A pause in which nothing runs, and nothing is due, is cut::

    pieces    |<- piece ->|cut|<------ piece ------>|cut|<- piece ->| ahead |
    time        linear     6 min      linear         2 min          now
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from carride_idempotency import observation
from ops.audit.evidence import AuditedConsumer
from ops.desk.changes import Change
from ops.desk.index import ABSORBED, CRASHED, Fact, Run
from ops.desk.pictures import look
from ops.desk.words import clock_text, rough, span

_CUT_MS: Final = 20_000.0
"""A pause is cut from this length on."""
_MOST_CUTS: Final = 10
_CUT_WIDTH: Final = 2.0
_LEAST_WIDTH: Final = 9.0
"""Of a piece, so that its events, and the pauses beside it, can be told apart."""
_LEAST_WIDTHS: Final = 60.0
"""Of all pieces together: with many of them, each is narrower."""
_MARGIN: Final = 1.5
_AHEAD: Final = 8.0
"""The width of what is expected, right of now."""
ROOMS: Final = (240.0, 440.0, 560.0)
"""The widths of a picture in px from which on more labels have room, as in waterfall.css."""
_OF_LETTER_PX: Final = 6.2
_BETWEEN_LABELS_PX: Final = 8.0
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
_NO_ATTEMPTS: Final = ABSORBED | {observation.QUARANTINED, observation.EXPIRED}
"""Outcomes of deliveries that ran nothing."""


class Label(NamedTuple):
    """A text of the axis."""

    x: float
    text: str
    anchor: str = "start"
    """``start``, ``middle`` or ``end``: the part of it that is at its place."""
    padding_px: float = 0.0
    """Around the text, left and right together."""
    room: int = 1
    """Number of the first of `ROOMS` that has room for it, from 1."""

    @property
    def width_px(self) -> float:
        """How wide it is."""
        return self.padding_px + _OF_LETTER_PX * len(self.text)

    def span(self, picture_px: float) -> tuple[float, float]:
        """Return from where to where it reaches in a picture of this width."""
        width = 100 * self.width_px / picture_px
        begin = self.x
        if self.anchor == "middle":
            begin -= width / 2
        if self.anchor == "end":
            begin -= width
        return begin, begin + width


class Band(NamedTuple):
    """A pause that is cut."""

    x: float
    width: float
    label: Label | None
    """How long it was; None if no room has a place for it."""


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


class Redrive(NamedTuple):
    """An operator has sent a dead letter again."""

    time_ms: float
    plan: str
    trial: str
    """How it went: ``succeeded``, ``failed``, ``unknown``; empty if nobody waited for it."""


class Mark(NamedTuple):
    """A redrive in the picture."""

    id: str
    x: float
    redrive: Redrive


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
    """Redrives of it."""
    outcome: str
    skipped: int
    """Deliveries that were skipped, besides the one with the outcome."""
    took: str
    runs: tuple[Run, ...]
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


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────


type _Span = tuple[float, float]


_SHORTEST_MS: Final = 0.001
"""Whatever is shorter has no length: no clock here tells such times apart."""


class Axis:
    """The places of times, of which pauses are cut."""

    def __init__(self, busy: Iterable[_Span], *, has_ahead: bool) -> None:
        """``busy`` are the times in which something runs or is due, in milliseconds."""
        whole = _merged(busy)
        cut = _cuts(whole)
        self._pieces = _pieces(whole, cut)
        width = 100.0 - 2 * _MARGIN - _CUT_WIDTH * (len(self._pieces) - 1)
        self._least = min(_LEAST_WIDTH, _LEAST_WIDTHS / len(self._pieces))
        width -= self._least * len(self._pieces)
        self.end = 100.0 - _MARGIN
        self._has_ahead = has_ahead
        if has_ahead:
            width -= _AHEAD
            self.end -= _AHEAD
        length = sum(end - begin for begin, end in self._pieces)
        if length < _SHORTEST_MS:
            length = 0.0
        self._per_ms = width / length if length else 0.0
        self._starts = self._places(length, width)

    def _places(self, length: float, width: float) -> list[float]:
        """Return where each piece begins."""
        x = _MARGIN
        found = []
        alone = width / len(self._pieces) if not length else 0.0
        for begin, end in self._pieces:
            found.append(x)
            x += self._least + (end - begin) * self._per_ms + alone + _CUT_WIDTH
        return found

    def x(self, time_ms: float) -> float:
        """Return the place of a time."""
        x = _MARGIN
        for (begin, end), start in zip(self._pieces, self._starts, strict=True):
            if time_ms < begin:
                return x
            inside = min(time_ms, end) - begin
            x = start + self._least / 2 + inside * self._per_ms
        return min(x, self.end)

    def bands(self) -> Iterator[Band]:
        """Yield the pauses."""
        begins = [start - _CUT_WIDTH for start in self._starts[1:]]
        labels = []
        for x, ((_, before), (after, _)) in zip(begins, pairwise(self._pieces), strict=True):
            middle = x + _CUT_WIDTH / 2
            labels.append(Label(middle, rough(after - before), "middle", _PADDING_PX))
        placed = {label.x: label for label in _placed(labels, 100.0)}
        for x in begins:
            yield Band(x, _CUT_WIDTH, placed.get(x + _CUT_WIDTH / 2))

    def ticks(self, now_ms: float) -> Iterator[Label]:
        """Yield labels that do not overlap: each piece's begin, and round times in long ones."""
        taken = []
        if self._has_ahead:
            taken.append(Label(self.x(now_ms), "now", padding_px=_PADDING_PX))
        labels = []
        for text, x in [*self._begins(now_ms), *self._inner()]:
            label = Label(x, text)
            if label.span(ROOMS[1])[1] > self.end + _MARGIN:
                label = label._replace(x=self.end, anchor="end")
            labels.append(label)
        yield from _placed(labels, self.end + _MARGIN, taken)

    def _begins(self, now_ms: float) -> Iterator[tuple[str, float]]:
        """Yield the time at which each piece begins; the day stands at the first one only."""
        first, _ = self._pieces[0]
        for begin, _ in self._pieces:
            x = self.x(begin)
            yield clock_text(begin, now_ms if begin == first else begin), x

    def _inner(self) -> Iterator[tuple[str, float]]:
        """Yield round times: of the clock, or since the begin of the only piece if it is short."""
        if not self._per_ms:
            return
        least = 100 * (_OF_LETTER_PX * len("00:00:00") + _BETWEEN_LABELS_PX) / ROOMS[-1]
        step = _round_up(least / self._per_ms)
        is_short = step < _SECOND_MS
        if is_short and len(self._pieces) > 1:
            return
        for begin, end in self._pieces:
            first = begin + step if is_short else math.ceil(begin / step) * step
            for number in range(int(100 / least) + 1):
                time_ms = first + number * step
                if time_ms > end:
                    break
                text = f"+{span(time_ms - begin)}" if is_short else clock_text(time_ms, time_ms)
                yield text, self.x(time_ms)


_PADDING_PX: Final = 10.0
"""Around the length of a pause."""


def _placed(labels: Sequence[Label], limit: float, taken: Sequence[Label] = ()) -> list[Label]:
    """Return the labels that have room, each with the width of a picture that it needs.

    The first ones have precedence, and before them those that are drawn in any case. None reaches
    beyond ``limit``, or the left edge.
    """
    found = dict[int, Label]()
    for room, width in enumerate(ROOMS, 1):
        gap = 100 * _BETWEEN_LABELS_PX / width
        for number, label in enumerate(labels):
            begin, end = label.span(width)
            if number in found or begin < 0 or end > limit:
                continue
            others = [other.span(width) for other in (*taken, *found.values())]
            if all(end + gap <= other[0] or other[1] + gap <= begin for other in others):
                found[number] = label._replace(room=room)
    return [found[number] for number in sorted(found)]


def _round_up(milliseconds: float) -> float:
    """Return the next longer span that people count in."""
    for unit in (1.0, 1_000.0, 60_000.0, 3_600_000.0):
        for count in (1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500):
            if count * unit >= milliseconds:
                return count * unit
    return milliseconds


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Return spans in order, with those that overlap as one."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _cuts(spans: Sequence[_Span]) -> set[int]:
    """Return the numbers of the spans after which the pause is cut: the longest ones."""
    pauses = []
    for number, ((_, end), (next_begin, _)) in enumerate(pairwise(spans)):
        if next_begin - end >= _CUT_MS:
            pauses.append((next_begin - end, number))
    pauses.sort(reverse=True)
    return {number for _, number in pauses[:_MOST_CUTS]}


def _pieces(spans: Sequence[_Span], cut: set[int]) -> list[_Span]:
    """Return the spans of time that are drawn, each from the first to the last that happened."""
    found = [spans[0]]
    for number, (begin, end) in enumerate(spans[1:]):
        if number in cut:
            found.append((begin, end))
        else:
            found[-1] = found[-1][0], end
    return found


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────


class Delivered(NamedTuple):
    """What became of an event at a consumer."""

    fact: Fact
    consumer: str
    runs: tuple[Run, ...]
    """The oldest first, with the crashes that a takeover shows."""
    outcome: str
    letter_queue: str | None
    """The queue with its dead letter; None if it was not given up."""
    skipped: int
    retry_due_ms: float | None
    """When it is tried again; None if it is not, or nobody knows when."""
    letters: int = 0
    """How many dead letters it has: copies of an event may have one each."""
    redrives: tuple[Redrive, ...] = ()
    """What operators did about its letters, the oldest first."""

    @property
    def has_letter(self) -> bool:
        """Whether the event was given up here."""
        return self.letter_queue is not None

    @property
    def counting(self) -> list[Run]:
        """The runs that were not skipped."""
        return [run for run in self.runs if run.outcome not in ABSORBED]

    @property
    def series(self) -> list[list[Run]]:
        """The attempts, in a list for each time that they began with the first one."""
        return _series(self.counting)


def _series(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the attempts among runs: a new list after each one that gave the event up."""
    found: list[list[Run]] = []
    for run in runs:
        if run.outcome in _NO_ATTEMPTS:
            continue
        if not found or found[-1][-1].outcome == observation.DEAD_LETTERED:
            found.append([])
        found[-1].append(run)
    return found


def deliveries_of(
    fact: Fact,
    consumers: Iterable[AuditedConsumer],
    retries: Mapping[str, float],
    changes: Collection[Change] = (),
) -> list[Delivered]:
    """Return what became of an event at each consumer that takes it.

    ``retries`` are the times at which keys are tried again, ``changes`` what operators did.
    """
    found = []
    for each in consumers:
        outcome = fact.outcome(each)
        if outcome is not None:
            found.append(
                Delivered(
                    fact,
                    each.name,
                    tuple(fact.attempts(each.name)),
                    outcome,
                    _letter_queue(fact, each, outcome),
                    fact.absorbed(each.name, outcome),
                    retries.get(f"{each.name}#{fact.id}"),
                    _letters_of(fact, each, outcome),
                    tuple(_redrives(f"{each.name}#{fact.id}", changes)),
                )
            )
    return found


def _letters_of(fact: Fact, consumer: AuditedConsumer, outcome: str) -> int:
    """Return how many letters of a consumer an event has, as far as they were counted."""
    if _letter_queue(fact, consumer, outcome) is None:
        return 0
    return max(1, fact.letter_counts[consumer.name])


def _redrives(key: str, changes: Iterable[Change]) -> Iterator[Redrive]:
    for change in changes:
        for each in change.sent:
            if each.key == key:
                yield Redrive(change.time_ms, change.plan, each.trial)


def _letter_queue(fact: Fact, consumer: AuditedConsumer, outcome: str) -> str | None:
    """Return the queue of a dead letter: as it was read, or the one that the consumer sends to."""
    if consumer.name in fact.letters:
        return fact.letters[consumer.name].queue
    if outcome == observation.DEAD_LETTERED:
        return f"{consumer.resources}Dlq"
    return None


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
) -> Iterator[_Span]:
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
            for redrive in each.redrives:
                yield redrive.time_ms, redrive.time_ms


def began_ms(fact: Fact, run: Run) -> float:
    """Return when a run began. That of a batch may begin before the event was published."""
    return max(run.began_ms, min(fact.time_ms, run.ended_ms))


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
    for number, redrive in enumerate(each.redrives, 1):
        yield Mark(f"{name}-redrive-{number}", axis.x(redrive.time_ms), redrive)


def _note(runs: Sequence[Run], *, shares: bool) -> str:
    """Return which attempts a lane has: their number, or their names if other lanes have some."""
    series = _series(runs)
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
    for some in _series(attempts):
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
    attempts = [run for some in _series(runs) for run in some] or runs
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
