"""How rides, events and records look."""

import json
from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from ops.audit.evidence import Delivered, Published
from ops.cli.show import plain, show
from ops.lookup import Event, Ride
from ops.records import Change, Explained, Found

_COLOURS: Final = {
    "green": "took effect, COMPLETED, New, Retried, paid",
    "yellow": "IN_PROGRESS, FAILED, Takeover, Failed, Busy, LostLease, open",
    "red": "dead-lettered, QUARANTINED, DeadLettered, Quarantined, broken, waiting for redrive",
    "dim": "Duplicate, Expired",
}


def _word(word: str) -> Text:
    return Text(word, next((colour for colour, words in _COLOURS.items() if word in words.split(", ")), ""))


@show.register
def _(shown: Ride) -> RenderableType:
    found: list[RenderableType] = [Text.assemble(shown.order_id, " is ", _word(shown.state))]
    found += [Text(problem, "red") for problem in shown.problems]
    for name, fields in shown.tables.items():
        text = fields if isinstance(fields, str) else ", ".join(f"{each} {value}" for each, value in fields.items())
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
            yield Text(f"    in {each.queue} since {each.sent:%Y-%m-%d %H:%M UTC}: {each.reason} {each.error}", "red")
    if not event.consumers:
        yield "  no consumer acts on it"


@show.register
def _(line: Published) -> RenderableType:
    ride = line.named.order_id if line.named else "an unknown ride"
    what = f"{line.type or 'unreadable'} of {ride}  "
    return Text.assemble(_time(line), what, ("on the bus", "blue"), ", replayed" * line.replayed, f"  {line.event_id}")


@show.register
def _(line: Delivered) -> RenderableType:
    attempt = f", attempt {line.attempt}" if line.attempt else ""
    why = f" ({line.reason})" if line.reason else ""
    what = f"{line.type or 'unreadable'} of {line.ride or 'an unknown ride'}  "
    consumer = (f"{line.consumer}: ", "cyan")
    return Text.assemble(_time(line), what, consumer, _word(line.outcome), f"{attempt}{why}  {line.fact or ''}")


def _time(line: Published | Delivered) -> Text:
    return Text(f"  {line.time:%H:%M:%S}.{line.time.microsecond // 1000:03}  ", "dim")


@show.register
def _(found: Found) -> RenderableType:
    more = [] if found.complete else [f"there are more than {len(found.records)}: give --limit, --ride or --key"]
    return Group(*([found.says] if found.says else []), *map(show, found.records), *more)


@show.register
def _(record: Explained) -> RenderableType:
    return Text.assemble((record.key, "bold"), "  ", _word(record.status), f"\n  {record.says}")


@show.register
def _(change: Change) -> RenderableType:
    return Group(show(change.record), f"  after {change.action}: {change.then}")
