"""How dead letters, redrives, rides, events and records look."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from textwrap import wrap
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from ops.audit.evidence import Delivered, Published
from ops.cli.show import plain, show, table
from ops.dead_letters import DeadLetters
from ops.lookup import Event, Ride
from ops.records import Change, Explained, RecordList
from ops.redrive import Redriven, RedrivePlan
from ops.text import counted
from ops.verbs import spelt

_WIDTH = 100
"""Columns of the dead letters, on a terminal and elsewhere."""
_SHOWN = 20
"""DeadLetters of a plan that are printed; JSON has all."""
_UNITS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))


@show.register
def _(found: DeadLetters) -> RenderableType:
    shown: list[RenderableType] = [] if found.failures else ["there are no dead letters"]
    for each in found.failures:
        again = f", redriven up to {counted(each.redriven, 'time')}" if each.redriven else ""
        title = f"{counted(each.count, 'letter')} in {each.queue}: {each.reason}"
        shown.append(
            Text.assemble((f"{each.group}  {title}", "bold"), f", {_age(each.oldest)} old{again}")
        )
        shown += wrap(each.error, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        for letter in each.letters:
            named = (letter.key or letter.fact, letter.ride, letter.type, _age(letter.sent))
            shown.append("    " + "  ".join(map(str, filter(None, named))))
        event = each.letters[0].event
        detail = json.dumps(
            event.get("detail") if isinstance(event, Mapping) else event, ensure_ascii=False
        )
        shown.append(Text(f"    {detail}"[:_WIDTH], style="dim"))
    hidden = (wrap(line, _WIDTH) for line in _hidden(found.hidden))
    return Group(*shown, *(line for lines in hidden for line in lines))


@show.register
def _(plan: RedrivePlan) -> RenderableType:
    rows = table("group", "reason", "key", "ride", "age", "redriven", "what happens")
    for letter, verdict in plan.letters[:_SHOWN]:
        named = (
            letter.group,
            letter.reason,
            letter.key or "",
            letter.ride or "",
            _age(letter.sent),
        )
        rows.add_row(
            *named, str(letter.redriven), f"{'goes' if verdict.goes else 'stays'}: {verdict.why}"
        )
    more = len(plan.letters) - _SHOWN
    return Group(
        *([rows] if plan.letters else []),
        *([f"… and {more} more, which --json lists"] if more > 0 else []),
        f"target: {plan.target}",
        _totals(
            Counter(
                ("go" if each.verdict.goes else "stay", each.verdict.why) for each in plan.letters
            )
        ),
        *(
            [f"{plan.queue} has more letters, which were not chosen: {plan.others}"]
            if plan.others
            else []
        ),
        *_hidden({plan.queue: plan.hidden}),
    )


@show.register
def _(done: Redriven) -> RenderableType:
    gone = {("gone", "no longer in the queue, or another operator has received them"): done.gone}
    return _totals(
        {
            ("sent", ""): done.sent,
            **{("stay", why): count for why, count in done.stayed.items()},
            **gone,
        }
    )


def _totals(counts: Mapping[tuple[str, str], int]) -> RenderableType:
    rows = table("", "letters", "why")
    for (what, why), count in sorted(counts.items()):
        if count:
            rows.add_row(what, str(count), why)
    return rows if rows.row_count else "no letters"


def _hidden(messages: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each queue with messages that could not be read."""
    why = "another operator has received them, or a command was interrupted. They are shown again within minutes"
    yield from (f"{queue} hides {count} more: {why}" for queue, count in messages.items() if count)


def _age(since: datetime) -> str:
    """Return an age in its largest whole unit."""
    age = datetime.now(UTC) - since
    unit = next((unit for unit in _UNITS if age >= unit), _UNITS[-1])
    return str(spelt(max(age // unit, 0) * unit))


_COLOURS: Final = {
    "green": "took effect, COMPLETED, New, Retried, paid",
    "yellow": "IN_PROGRESS, FAILED, Takeover, Failed, Busy, LostLease, open",
    "red": "dead-lettered, QUARANTINED, DeadLettered, Quarantined, broken, waiting for redrive",
    "dim": "Duplicate, Expired",
}


def _word(word: str) -> Text:
    return Text(
        word, next((colour for colour, words in _COLOURS.items() if word in words.split(", ")), "")
    )


@show.register
def _(shown: Ride) -> RenderableType:
    found: list[RenderableType] = [Text.assemble(shown.order_id, " is ", _word(shown.state))]
    found += [Text(problem, "red") for problem in shown.problems]
    for name, fields in shown.tables.items():
        text = (
            fields
            if isinstance(fields, str)
            else ", ".join(f"{each} {value}" for each, value in fields.items())
        )
        found.append(f"  {name}: {text}")
    return Group(*found, *(line for each in shown.events for line in ("", *_about(each))))


@show.register
def _(shown: Event) -> RenderableType:
    deliveries = [show(each) for at in shown.consumers for each in at.deliveries]
    content = Text(json.dumps(plain(shown.detail), indent=2), "dim")
    return Group(*_about(shown), "", *map(show, shown.copies), *deliveries, content)


def _about(event: Event) -> Iterator[RenderableType]:
    yield Text(f"{event.type} of {event.ride}, version {event.version}, id {event.id}", "bold")
    if event.says:
        yield Text(f"  {event.says}", "red")
    for at in event.consumers:
        yield Text.assemble(f"  {at.consumer}: ", _word(at.outcome), f"; {at.says}")
        for each in at.dead_letters:
            yield Text(
                f"    in {each.queue} since {each.sent:%Y-%m-%d %H:%M UTC}: {each.reason} {each.error}",
                "red",
            )
    if not event.consumers:
        yield "  no consumer acts on it"


@show.register
def _(line: Published) -> RenderableType:
    ride = line.named.order_id if line.named else "an unknown ride"
    what = f"{line.type or 'unreadable'} of {ride}  "
    return Text.assemble(
        _time(line),
        what,
        ("on the bus", "blue"),
        ", replayed" * line.replayed,
        f"  {line.event_id}",
    )


@show.register
def _(line: Delivered) -> RenderableType:
    attempt = f", attempt {line.attempt}" if line.attempt else ""
    why = f" ({line.reason})" if line.reason else ""
    what = f"{line.type or 'unreadable'} of {line.ride or 'an unknown ride'}  "
    consumer = (f"{line.consumer}: ", "cyan")
    return Text.assemble(
        _time(line), what, consumer, _word(line.outcome), f"{attempt}{why}  {line.fact or ''}"
    )


def _time(line: Published | Delivered) -> Text:
    return Text(f"  {line.time:%H:%M:%S}.{line.time.microsecond // 1000:03}  ", "dim")


@show.register
def _(found: RecordList) -> RenderableType:
    more = (
        []
        if found.complete
        else [f"there are more than {len(found.records)}: give --limit, --ride or --key"]
    )
    return Group(*([found.says] if found.says else []), *map(show, found.records), *more)


@show.register
def _(record: Explained) -> RenderableType:
    return Text.assemble((record.key, "bold"), "  ", _word(record.status), f"\n  {record.says}")


@show.register
def _(change: Change) -> RenderableType:
    return Group(show(change.record), f"  after {change.action}: {change.then}")
