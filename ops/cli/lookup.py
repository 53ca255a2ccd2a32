"""The verbs that look up rides, events and records, and that release, settle and forget keys."""

import json
from collections.abc import Iterator
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Group, RenderableType
from rich.text import Text

from ops import lookup
from ops import records as keys
from ops.audit.evidence import Delivered, Published
from ops.cli.show import plain, show
from ops.cli.verbs import Moment, Plan, Session, acts, reads
from ops.lookup import Event, Ride
from ops.records import Change, Explained, Found

_COLOURS: Final = {
    "green": "took effect, COMPLETED, New, Retried, paid",
    "yellow": "IN_PROGRESS, FAILED, Takeover, Failed, Busy, LostLease, open",
    "red": "dead-lettered, QUARANTINED, DeadLettered, Quarantined, broken, waiting for redrive",
    "dim": "Duplicate, Expired",
}


@reads("ride", "order_01")
def ride(session: Session, order_id: str, /) -> Ride:
    """Show where a ride is, and what became of each of its events at each consumer.

    Args:
        order_id: The ride's id, such as order_01.
    """
    return lookup.ride(session.stack, order_id)


@reads("event", "7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def event(session: Session, event_id: str, /) -> Event:
    """Show an event, decoded, and what became of it at each consumer.

    Args:
        event_id: Its idempotency id, or EventBridge's id.
    """
    return lookup.event(session.stack, event_id)


@reads("tail", "--ride order_01 --since 10m", "--outcome Failed", tool=False)
def tail(
    session: Session,
    *,
    ride: str | None = None,
    type: str | None = None,  # noqa: A002 - the option's name
    outcome: str | None = None,
    since: Moment | None = None,
    follow: Annotated[bool, Parameter(negative="--no-follow")] = True,
) -> Iterator[Published | Delivered]:
    """Show each event on the bus and each delivery to a consumer as it comes, until Ctrl-C.

    Args:
        ride: Only those of this ride.
        type: Only those of this type, such as CarRideAccepted.
        outcome: Only deliveries with this outcome, such as Failed or Takeover.
        since: Begin with those since then; by default with the next one.
        follow: Go on until Ctrl-C.
    """
    return lookup.tail(session.stack, ride=ride, type=type, outcome=outcome, since=since, follow=follow)


@reads("records", "--ride order_01", "--status FAILED")
def records(
    session: Session,
    *,
    ride: str | None = None,
    key: str | None = None,
    status: str | None = None,
    limit: int = 100,
) -> Found:
    """Show idempotency records and what they mean: owner token, lease, attempt, and what the next delivery does.

    By ride and by key they are looked up. Otherwise the whole table is read, up to the limit.

    Args:
        ride: Those of this ride's events.
        key: CONSUMER#KEY, or an idempotency id.
        status: IN_PROGRESS, COMPLETED, FAILED or QUARANTINED.
        limit: The most records to show.
    """
    return keys.records(session.stack, ride=ride, key=key, status=status, limit=limit)


@reads("quarantined")
def quarantined(session: Session) -> Found:
    """Show the keys that consumers do not process until they are released. It reads the whole table of records."""
    return keys.quarantined(session.stack)


@acts("release", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f --yes")
def release(session: Session, key: str, /) -> Plan:
    """Let a quarantined or crashed key run again: its next delivery is attempt 1.

    Fix the cause first, then release the key, then redrive its dead letter. A key is refused while an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    return _change(session, "release", key)


@acts("settle", "payment#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f --not-done")
def settle(
    session: Session,
    key: str,
    /,
    *,
    done: str | None = None,
    not_done: Annotated[bool, Parameter(negative="")] = False,
) -> Plan:
    """Say whether an external call took effect of which nobody can tell, and release its key.

    The dead letter names the call and its downstream key: ask the other system. Then redrive the letter. If several are
    unknown, settle one after the other: the preview names the call.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
        done: It took effect; its result, as JSON.
        not_done: It did not, and never will.
    """
    change, do = keys.settle(session.stack, key, done=done, not_done=not_done)
    return Plan(change, lambda: do() or {"done": "settle", "key": key}, (session.stack,))


@acts("forget", "dispatch#7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def forget(session: Session, key: str, /) -> Plan:
    """Delete the record of a key, so that its next delivery runs as if it were the first.

    An effect that took place can then take place again. A key is refused while an attempt runs.

    Args:
        key: CONSUMER#KEY, from a dead letter or a log line.
    """
    return _change(session, "forget", key)


def _change(session: Session, action: keys.Action, key: str) -> Plan:
    change, do = keys.change(session.stack, action, key)
    return Plan(change, lambda: do() or {"done": action, "key": key}, (session.stack,))


# ── How they look ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
