"""Render dead letters, redrives, rides, events and records for a terminal."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from textwrap import wrap
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from carride_idempotency import observation
from carride_idempotency.operators.changing import Change
from carride_idempotency.operators.choosing import consumer_of
from carride_idempotency.operators.explaining import Explained
from carride_idempotency.operators.redriving import (
    PlannedLetter,
    Redriven,
    RedrivePlan,
    released_keys,
)
from ops.audit.evidence import Delivered, Published, grouped
from ops.cli.show import as_fields, plain, show, table
from ops.dead_letters import SHORT_ID, DeadLetter, DeadLetters, Failure, copies_in, verdicts_in
from ops.doctor import Findings
from ops.holds import Hold, Kind
from ops.keys import Key, KeyList
from ops.lookup import IN_EFFECT, AtConsumer, Event, Ride, Settlement, Unread
from ops.payloads import readable
from ops.records import NO_RECORD, Changed
from ops.sentences import says
from ops.tail import RETRYING, Window
from ops.text import counted
from ops.verbs import spelt

_WIDTH: Final = 100
"""Columns of the dead letters, on a terminal and elsewhere."""
_UNITS: Final = (
    timedelta(days=1),
    timedelta(hours=1),
    timedelta(minutes=1),
    timedelta(seconds=1),
)
_NO_ITEM: Final = (
    "nothing: no event of the ride has taken effect here, or it was not booked through the API"
)
_GONE: Final = "no longer in the queue, or another operator has received them"
_HIDDEN: Final = (
    "another operator has received them, or a command was interrupted. "
    "They are shown again within minutes"
)


class _Paragraph:
    """A text in lines of up to `_WIDTH` columns, or of the terminal's width if that is less."""

    def __init__(self, text: str, indent: str = "") -> None:
        self._text = text
        self._indent = indent

    def __rich_console__(
        self, _console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the lines."""
        width = min(_WIDTH, options.max_width)
        for line in wrap(
            self._text,
            width,
            initial_indent=self._indent,
            subsequent_indent=self._indent,
            break_on_hyphens=False,
        ):
            yield Text(line)


# ── Dead letters ──────────────────────────────────────────────────────────────────────────────────


@show.register
def _letters(found: DeadLetters) -> RenderableType:
    lines: list[RenderableType] = []
    if not found.failures:
        lines.append("there are no dead letters")
    else:
        lines += [Text(_sum(found.failures), "bold"), ""]
    for failure in found.failures:
        lines += _failure(failure)
    for sentence in _hidden(found.hidden):
        lines.append(_Paragraph(sentence))
    return Group(*lines)


@show.register
def _letter(letter: DeadLetter) -> RenderableType:
    """Show one letter whole."""
    event = json.dumps(readable(letter.event), ensure_ascii=False, indent=2)
    title = f"{letter.id} in {letter.queue}: {letter.reason}"
    error = _Paragraph(letter.error, indent="  ")
    return Group(Text(title, "bold"), error, f"  {_in_a_line(letter)}", Text(event))


def _sum(failures: Iterable[Failure]) -> str:
    """Return how many letters there are, and how many of them a redrive can help."""
    total = sum(failure.count for failure in failures)
    goes = sum(failure.goes for failure in failures)
    which = f"{goes:,}" if goes else "none"
    return f"{counted(total, 'letter')}, of which {which} can be redriven"


def _failure(failure: Failure) -> Iterator[RenderableType]:
    """Yield a title, what can be done, the error, a line for each letter, and the first's content.

    The error is that of the first letter: the group's own has no ids and numbers.
    """
    yield _title(failure)
    yield from _next_step(failure)
    error = failure.letters[0].error
    yield _Paragraph(error, indent="  ")
    for letter in failure.letters:
        yield f"    {_in_a_line(letter)}"
    first = _detail(failure.letters[0])
    yield Text(f"    {first}"[:_WIDTH], style="dim")


def _next_step(failure: Failure) -> Iterator[RenderableType]:
    """Yield the command that shows what a redrive would do, and why letters would stay."""
    stay = failure.count - failure.goes
    if failure.command:
        which = "can be redriven"
        if stay:
            which = f"{failure.goes:,} of them can be redriven"
        yield Text.assemble(f"  {which}: ", (failure.command, "green"))
    if failure.stays is not None:
        which = f"{stay:,} stay" if failure.goes else "stays"
        yield _Paragraph(f"{which}: {failure.stays.says}", "  ")


def _title(failure: Failure) -> Text:
    letters = _letters_with_copies(failure.count, failure.copies)
    title = f"{failure.group}  {letters} in {failure.queue}: {failure.reason}"
    age = _age(failure.oldest)
    history = f", {age} old"
    if failure.redriven:
        times = counted(failure.redriven, "time")
        history += f", one of its events was redriven {times}"
    return Text.assemble((title, "bold"), history)


def _letters_with_copies(letters: int, copies: int) -> str:
    """Return how many letters there are, and how many of them are copies of another one."""
    which = f" ({copies:,} of them {'a copy' if copies == 1 else 'copies'})" if copies else ""
    return f"{counted(letters, 'letter')}{which}"


def _in_a_line(letter: DeadLetter) -> str:
    """Return what is known of a letter: the beginning of its id, its key, ride, type and age."""
    name = letter.key or letter.fact
    what = letter.type or "no event of a known type"
    known = [letter.id[:SHORT_ID], name, letter.ride, what, _age(letter.sent)]
    return "  ".join(filter(None, known))


def _detail(letter: DeadLetter) -> str:
    """Return the data of a letter's event as JSON, or all of what is not an event."""
    content = readable(letter.event)
    for name in ("detail", "data"):
        if isinstance(content, Mapping) and name in content:
            content = content[name]
    return json.dumps(content, ensure_ascii=False)


def _hidden(messages: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each queue with messages that could not be read."""
    for queue, count in messages.items():
        if count:
            yield f"{queue} hides {count} more: {_HIDDEN}"


def _age(since: datetime) -> str:
    """Return an age in its largest whole unit."""
    age = datetime.now(UTC) - since
    for unit in _UNITS:
        if age >= unit:
            return str(spelt(age // unit * unit))
    return str(spelt(timedelta()))


# ── Redrives ──────────────────────────────────────────────────────────────────────────────────────


@show.register(RedrivePlan)
def _redrive_plan(plan: RedrivePlan[DeadLetter]) -> RenderableType:
    goes = plan.goes
    stays = len(plan.letters) - goes
    sent = f"{counted(goes, 'letter')} would be sent to {plan.target}"
    left = f"{counted(stays, 'letter')} would stay" if stays else ""
    lines: list[RenderableType] = [Text("; ".join(filter(None, (sent, left))), "bold")]
    by_group = dict[str, list[PlannedLetter[DeadLetter]]]()
    for each in plan.letters:
        by_group.setdefault(each.letter.group, []).append(each)
    for letters in by_group.values():
        lines += _planned_group(letters)
    if plan.others:
        lines.append(f"{plan.queue} has more letters, which were not chosen: {plan.others}")
    lines += _hidden({plan.queue: plan.hidden})
    return Group(*lines)


def _planned_group(letters: list[PlannedLetter[DeadLetter]]) -> Iterator[RenderableType]:
    """Yield what letters of a group are, what a redrive does with them, and each key it releases.

    A letter that was chosen alone is named.
    """
    first = letters[0].letter
    redriven = max(each.letter.redriven for each in letters)
    history = f", one of its events was redriven {counted(redriven, 'time')}" if redriven else ""
    age = _age(min(each.letter.sent for each in letters))
    count = _letters_with_copies(len(letters), copies_in(each.letter.key for each in letters))
    title = f"{first.group}  {count} in {first.queue}: {first.reason}"
    yield Text.assemble((title, "bold"), f", {age} old{history}")
    if first.error:
        yield _Paragraph(first.error, indent="  ")
    if len(letters) == 1:
        yield f"  {_in_a_line(first)}"
    for line in verdicts_in(each.verdict for each in letters):
        yield _Paragraph(line, indent="  ")
    by_consumer = grouped((consumer_of(key), key) for key in released_keys(letters))
    for consumer, keys in by_consumer.items():
        named = ", ".join(keys)
        yield _Paragraph(f"releases {counted(len(keys), 'key')} of {consumer}: {named}", "  ")


@show.register
def _redriven(done: Redriven) -> RenderableType:
    counts = {("stay", why): count for why, count in done.stayed.items()}
    counts["sent", ""] = done.sent
    counts["gone", _GONE] = done.gone
    if done.planned:
        return _totals(counts)
    return Group("nothing was sent: no letter was to go", _totals(counts))


def _totals(counts: Mapping[tuple[str, str], int]) -> RenderableType:
    rows = table("", "letters", "why")
    for (what, why), count in sorted(counts.items()):
        if count:
            rows.add_row(what, str(count), why)
    return rows if rows.row_count else "no letters"


# ── Rides and events ──────────────────────────────────────────────────────────────────────────────

_COLOURS: Final = {
    "green": ("took effect", "COMPLETED", "New", "Retried", "paid"),
    "yellow": ("IN_PROGRESS", "FAILED", "Takeover", "Failed", "Busy", "LostLease", "open"),
    "red": (
        "dead-lettered",
        "QUARANTINED",
        "DeadLettered",
        "Quarantined",
        "broken",
        "waiting for redrive",
    ),
    "dim": ("Duplicate", "Expired"),
}
_COLOUR_OF: Final = {state: colour for colour, states in _COLOURS.items() for state in states}


def _state(state: str) -> Text:
    """Return a state or outcome in its colour."""
    return Text(state, _COLOUR_OF.get(state, ""))


@show.register
def _ride(ride: Ride) -> RenderableType:
    return Group(*_ride_lines(ride))


def _ride_lines(ride: Ride) -> Iterator[RenderableType]:
    yield Text.assemble(ride.order_id, " is ", _state(ride.state), _settled(ride.settled))
    for hold in ride.holds:
        yield Text(f"  {_held(hold)}", "red")
        if hold.command:
            yield Text(f"    {hold.command}", "green")
    for each in ride.unread:
        yield Text(f"  {each.queue}: {_unread(each)}", "red")
    for name, fields in ride.tables.items():
        yield f"  {name}: {_fields(fields) or _NO_ITEM}"
    for event in ride.events:
        yield ""
        yield from _event_lines(event)


def _settled(settled: Settlement | None) -> str:
    """Return as what a ride was settled and when, and when it was completed besides."""
    if settled is None:
        return ""
    said = f"; the reconciler settled it as {settled.outcome} at {_second(settled.time)}"
    if settled.completed is None:
        return said
    return f"{said}, and it was completed at {_second(settled.completed)}"


def _second(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S %Z}"


def _unread(unread: Unread) -> str:
    """Return which messages of a queue could not be read."""
    found = []
    if unread.hidden:
        found.append(f"another reader hides {counted(unread.hidden, 'message')}: try again later")
    if unread.left:
        found.append(f"{counted(unread.left, 'message')} not read in the time of a page")
    return "; ".join(found)


def _held(hold: Hold) -> str:
    """Return what holds a ride in a line."""
    since = "" if hold.since_ms is None else f" since {_clock(hold.since_ms)}"
    what = f"{hold.type or 'an event'} at {hold.consumer}"
    error = f": {hold.error}" if hold.error else ""
    if hold.audited is not None:
        return f"{hold.kind}: {says(hold.audited)}"
    match hold.kind:
        case Kind.GIVEN_UP:
            where = "and no letter was found in its queues"
            if hold.letters:
                where = f"{counted(hold.letters, 'letter')} in {hold.queue}"
            return f"{hold.kind}: {what}, {where}{since}{error}"
        case Kind.RETRYING | Kind.CRASHED | Kind.RUNNING:
            return f"{hold.kind}: {what}, attempt {hold.attempts}{since}{error}"
    return f"{hold.kind}: {what}{since}{error}"


def _clock(time_ms: float) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S UTC}"


def _fields(fields: Mapping[str, object]) -> str:
    """Return the fields of a table's item; empty if it has none."""
    return ", ".join(f"{name} {_value(value)}" for name, value in fields.items())


def _value(value: object) -> str:
    """Return the value of a field: a list or a map as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(plain(value), ensure_ascii=False)


@show.register
def _event(event: Event) -> RenderableType:
    lines = [*_event_lines(event), *_sent(event), ""]
    lines += map(show, event.copies)
    for at in event.consumers:
        lines += map(show, at.deliveries)
    detail = json.dumps(plain(event.detail), indent=2)
    lines.append(Text(detail, "dim"))
    return Group(*lines)


def _sent(event: Event) -> Iterator[str]:
    """Yield the times by which replays choose an event: neither the log's nor its own."""
    for time in sorted({copy.sent for copy in event.copies if copy.sent}):
        yield f"  a replay chooses it by its time on the bus, {time:%Y-%m-%d %H:%M:%S UTC}"


def _event_lines(event: Event) -> Iterator[RenderableType]:
    """Yield what an event is, and what became of it at each consumer."""
    yield Text(f"{event.type} of {event.ride}, version {event.version}, id {event.id}", "bold")
    missing = "; ".join(_whereabouts(event))
    if missing:
        yield Text(f"  {missing}", "red")
    if not event.consumers:
        yield "  no consumer acts on it"
    for at in event.consumers:
        yield Text.assemble(f"  {at.consumer}: ", _state(at.outcome), _of_outcome(event, at))
        yield from map(_where, at.dead_letters)


def _whereabouts(event: Event) -> Iterator[str]:
    """Yield how an event breaks the contract, and where it is if it is not on the bus."""
    if event.breach is not None:
        yield f"it breaks the contract: {event.breach}"
    for letter in event.letters:
        yield f"it is in {letter.queue}: {letter.reason}"
    if event.copies:
        return
    if event.in_outbox:
        yield "it is in the outbox, and not in the log of the bus: look at OutboxPipe"
    yield f"it is not in the log of events, {_kept(event)}"


def _kept(event: Event) -> str:
    return f"kept since {event.logged_since:%Y-%m-%d %H:%M UTC}"


def _of_outcome(event: Event, at: AtConsumer) -> str:
    """Return when an event took effect and in which attempt, or what is known instead."""
    done = [each for each in at.deliveries if each.outcome in observation.COMMITTED]
    if at.outcome != IN_EFFECT or not done:
        return f"; {'; '.join(_said_at(event, at))}"
    attempt = f", attempt {done[0].attempt}" if done[0].attempt else ""
    return f" {done[0].time:%H:%M:%S}{attempt}"


def _said_at(event: Event, at: AtConsumer) -> Iterator[str]:
    """Yield what the record of a consumer says, and why a part of the answer is missing."""
    if at.record is not None:
        yield at.record.says
    elif at.breaks_contract:
        yield "it breaks the contract, so it has no key and no record"
    else:
        yield NO_RECORD
    if not at.deliveries:
        why = _why_no_delivery(at.dead_letters)
        yield f"no delivery is in its log, {_kept(event)}: {why}"


def _why_no_delivery(letters: Sequence[DeadLetter]) -> str:
    """Return why a consumer's log names no delivery of an event, which may be dead-lettered."""
    if any(letter.queue.endswith("RuleDlq") for letter in letters):
        return "EventBridge could not deliver it"
    if letters:
        return "each attempt ended before it could log"
    return "it may be on its way, or an attempt crashed"


def _where(letter: DeadLetter) -> Text:
    """Return where a dead letter is, and why."""
    since = f"{letter.sent:%Y-%m-%d %H:%M UTC}"
    why = f"{letter.reason} {letter.error}"
    return Text(f"    in {letter.queue} since {since}: {why}", "red")


@show.register
def _window(found: Window) -> RenderableType:
    parts = []
    if found.published:
        parts.append(f"{counted(found.published, 'event')} on the bus")
    for consumer, states in found.consumers.items():
        began = found.retrying_since.get(consumer)
        told = ", ".join(_became(state, count, began) for state, count in states.items())
        parts.append(f"{consumer}: {told}")
    if not parts:
        parts.append(f"nothing since {found.since:%Y-%m-%d %H:%M:%S %Z}")
    return Text("; ".join(parts), "bold")


def _became(state: str, events: int, began: datetime | None) -> str:
    """Return what became of so many events; of those that are retried also since when."""
    since = ""
    if state == RETRYING and began is not None:
        since = f" since {began:%Y-%m-%d %H:%M:%S %Z}"
    return f"{events:,} {state}{since}"


@show.register
def _published(line: Published) -> RenderableType:
    order_id = line.named.order_id if line.named else None
    replayed = ", replayed" if line.replayed else ""
    return Text.assemble(
        _time(line),
        _what(line.type, order_id),
        ("on the bus", "blue"),
        f"{replayed}  EventBridge id {line.event_id}",
    )


@show.register
def _delivered(line: Delivered) -> RenderableType:
    attempt = f", attempt {line.attempt}" if line.attempt else ""
    why = f" ({line.reason})" if line.reason else ""
    return Text.assemble(
        _time(line),
        _what(line.type, line.ride),
        (f"{line.consumer}: ", "cyan"),
        _state(line.outcome),
        f"{attempt}{why}{_named(line.fact)}",
    )


def _named(fact: str | None) -> str:
    return f"  idempotency id {fact}" if fact else ""


def _what(event_type: str | None, ride: str | None) -> str:
    return f"{event_type or 'unreadable'} of {ride or 'an unknown ride'}  "


def _time(line: Published | Delivered) -> Text:
    milliseconds = line.time.microsecond // 1000
    return Text(f"  {line.time:%H:%M:%S}.{milliseconds:03}  ", "dim")


# ── This machine ──────────────────────────────────────────────────────────────────────────────────


@show.register
def _findings(found: Findings) -> RenderableType:
    """Render what is missing and how to get it, and then what is there."""
    rows = table("what", "found", "needed for")
    lines: list[RenderableType] = []
    for each in found.findings:
        if each.found:
            rows.add_row(each.what, each.found, each.why)
        else:
            need = "is needed for" if each.needed else "would be of use for"
            lines.append(Text(f"{each.what} is missing; it {need} {each.why}", "bold"))
            lines.append(Text(f"  {each.how}"))
    return Group(*lines, rows)


# ── Records ───────────────────────────────────────────────────────────────────────────────────────


@show.register
def _keys(found: KeyList) -> RenderableType:
    lines: list[RenderableType] = []
    if found.says:
        lines.append(found.says)
    lines += [show(key) for key in found.keys]
    if not found.complete:
        lines.append(f"there are more than {len(found.keys)}: give --limit, --ride or a key")
    return Group(*lines)


@show.register
def _key(found: Key) -> RenderableType:
    cause = f"  cause {found.cause}" if found.cause else ""
    title = (found.key, "bold")
    return Text.assemble(title, "  ", _state(found.status), f"{cause}\n  {found.says}")


@show.register
def _record(record: Explained) -> RenderableType:
    title = (record.key, "bold")
    return Text.assemble(title, "  ", _state(record.status), f"\n  {record.says}")


as_fields(Changed)


@show.register
def _change(change: Change) -> RenderableType:
    return Group(show(change.record), f"  after {change.action}: {change.then}")
