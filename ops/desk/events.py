"""The page of an event, with its deliveries and effects."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from carride.events import ContractError, parse_event
from carride.history import EVENT_PREFIX, timeline_of
from carride_idempotency import observation
from carride_idempotency.dead_letters import CONTRACT
from carride_idempotency.operators.explaining import explain
from carride_idempotency.record import QUARANTINED, Record
from ops import records
from ops.audit.evidence import AuditedConsumer, DeadLettered
from ops.audit.queues import json_object
from ops.dead_letters import redrive_command, redriven_at
from ops.desk.advice import release_command
from ops.desk.deliveries import began_ms, deliveries_of
from ops.desk.facts import Fact, Run
from ops.desk.letterbox import reason_text
from ops.desk.registry import NotThereError, Seen, page
from ops.desk.waterfall import picture
from ops.desk.words import Whole, clip, indented, size
from ops.payloads import readable
from ops.policies import MOST_ATTEMPTS
from ops.text import visible

_MOST_RUNS: Final = 50
"""Runs of a consumer that are listed: the newest."""
_MOST_COPIES: Final = 20
_MOST_PAYLOAD: Final = 20_000
"""The most characters of a payload on the page of its event."""


class Effect(NamedTuple):
    """What an event did to the item of a consumer."""

    rows: tuple[tuple[str, str, str, bool], ...]
    """Attribute, value before, value after, and whether it has changed."""
    emitted: tuple[str, ...]
    """Types of the events that were emitted with it."""


class Stop(NamedTuple):
    """An event at a consumer."""

    name: str
    takes: bool
    outcome: str | None
    runs: tuple[Run, ...]
    letter: DeadLettered | None
    history: tuple[Record, ...]
    """The versions of its record that the desk saw, the oldest first."""
    says: str
    effect: Effect | None
    error: str
    """Why the newest attempt failed, as the record of a quarantined key has it; else empty."""
    redrive: str
    """The command that shows what a redrive of its letter would do; empty without a letter."""
    given_up_ms: float | None
    """When the delivery ended that gave the event up last; None if none is known."""
    release: str
    """The command that shows what the release of its key would do; empty unless that waits."""

    @property
    def failures(self) -> tuple[Run, ...]:
        """The runs that the picture does not tell all of: those with a reason."""
        return tuple(run for run in self.runs if run.reason)

    @property
    def is_shown(self) -> bool:
        """Whether the event has anything to do with the consumer."""
        return self.takes or bool(self.runs) or self.letter is not None


@page("/event/{id}", "event.html")
def _event(desk: Seen, request: Request) -> dict[str, Any]:
    fact = _fact(desk, request.path_params["id"])
    stack = desk.feed.stack
    takers = desk.takers(fact) if fact.ride is not None else []
    keys = [f"{each.name}#{fact.id}" for each in takers]
    seen = records.StackRecords(stack).by_key(keys)
    items = records.tables_of(stack, fact.ride) if fact.ride else {}
    now_ms = desk.now().timestamp() * 1000
    redriven = redriven_at(stack, keys)
    with desk.feed.lock:
        delivered = deliveries_of(fact, desk.takers(fact), {}, redriven)
        shown = picture([(fact, delivered)], {}, now_ms, expects=False, hides=False)
        stops = [
            _stop(desk, each, fact, seen, items.get(each.table or "", {}))
            for each in desk.feed.consumers
        ]
        content = indented(readable(json_object(fact.body) or fact.body))
        return {
            "title": f"{fact.type or 'Breaks the contract'} of {fact.ride or 'no ride'}",
            "fact": fact,
            "held_since_ms": desk.feed.index.held_since_ms,
            "copies": tuple(fact.copies)[-_MOST_COPIES:],
            "more_copies": max(0, len(fact.copies) - _MOST_COPIES),
            "stops": sorted(
                (each for each in stops if each.is_shown), key=lambda each: each.letter is None
            ),
            "others": [each.name for each in stops if not each.is_shown],
            "picture": shown,
            "records": seen,
            "began_ms": partial(began_ms, fact),
            "in_words": partial(_in_words, _broken_by(fact)),
            "explain": partial(explain, now=desk.now(), attempts=MOST_ATTEMPTS),
            "content": Whole(clip(content, _MOST_PAYLOAD)),
            "content_size": size(len(content.encode(errors="replace"))),
            "is_cut": len(content) > _MOST_PAYLOAD,
        }


def _broken_by(fact: Fact) -> str:
    """Return in what an event breaks the contract, as its letter says; empty if it does not."""
    if fact.ride is not None:
        return ""
    try:
        parse_event(json_object(fact.body) or {})
    except ContractError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _in_words(broken_by: str, reason: str) -> str:
    """Return why a delivery had no effect: the reasons that are codes are said in words."""
    if reason == CONTRACT and broken_by:
        return broken_by
    return reason_text(reason)


def _stop(
    desk: Seen,
    consumer: AuditedConsumer,
    fact: Fact,
    seen: Mapping[str, Record],
    item: Mapping[str, Any],
) -> Stop:
    """Return what became of an event at a consumer."""
    record = seen.get(f"{consumer.name}#{fact.id}")
    history: Sequence[Record] = ()
    says = ""
    release = ""
    error = ""
    if record is not None and record.status == QUARANTINED:
        release = release_command(record.key)
        error = record.error or ""
    if record is not None:
        history = desk.records.add(record.key, record)
        says = explain(record, desk.now(), MOST_ATTEMPTS).says
    runs = fact.attempts(consumer.name)
    gave_up = (run.ended_ms for run in runs if run.outcome == observation.DEAD_LETTERED)
    return Stop(
        name=consumer.name,
        takes=consumer.takes(fact.type),
        outcome=fact.outcome(consumer),
        runs=tuple(runs[-_MOST_RUNS:]),
        letter=fact.letters.get(consumer.name),
        history=tuple(history),
        says=says,
        effect=_effect(desk, consumer, fact, item),
        error=error,
        redrive=_redrive_of(consumer, fact, record),
        given_up_ms=max(gave_up, default=None),
        release=release,
    )


def _redrive_of(consumer: AuditedConsumer, fact: Fact, record: Record | None) -> str:
    """Return the command that shows what a redrive of an event's letter would do; empty without."""
    letter = fact.letters.get(consumer.name)
    if letter is None or record is None:
        return ""
    is_quarantined = record.status == QUARANTINED
    return redrive_command(letter.queue, "key", record.key, releases=is_quarantined)


def _fact(desk: Seen, name: str) -> Fact:
    """Return an event, from the index or looked up.

    Raises:
        NotThereError: nothing is known of it.
    """
    with desk.feed.lock:
        fact = desk.feed.index.facts.get(name)
    if fact is None or not fact.copies:
        fact = desk.older.event(name)
    if fact is None:
        raise NotThereError(
            f"Nothing is known of the event {clip(name)}. It may not be logged yet: this page "
            "shows it as soon as it is.",
            title=f"{clip(name, 60)}: nothing found",
        )
    return fact


def raw_event(desk: Seen, name: str) -> str:
    """Return an event in full, as text.

    Raises:
        NotThereError: nothing is known of it.
    """
    fact = _fact(desk, name)
    return visible(indented(json_object(fact.body) or fact.body))


def _effect(
    desk: Seen, consumer: AuditedConsumer, fact: Fact, item: Mapping[str, Any]
) -> Effect | None:
    """Return an event's effect on a consumer's item; None if it has none."""
    name = f"{consumer.name} {fact.id}"
    entry = item.get(f"{EVENT_PREFIX}{fact.id}")
    plain = {field: value for field, value in item.items() if not field.startswith(EVENT_PREFIX)}
    if entry is None:
        desk.items.add(name, plain)
        return None
    if "data" in entry:  # the ride history keeps what every event said
        changed = _changes(_said_before(item, entry["sequence"]), entry["data"])
        return Effect(tuple(changed), ())
    versions = desk.items.get(name)
    before = None
    if versions:
        before = versions[-1]
    changed = _changes(before, plain)
    emitted = entry.get("emitted", ())
    return Effect(tuple(changed), tuple(emitted))


def _said_before(history: Mapping[str, Any], sequence: int) -> Mapping[str, Any]:
    """Return the data of the event before this sequence in a ride's history; empty if none."""
    said: Mapping[str, Any] = {}
    for each in timeline_of(history):
        if each.sequence < sequence:
            said = each.data
    return said


def _changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, bool]]:
    """Yield each attribute; without ``before``, nobody knows what has changed."""
    for name, value in after.items():
        now = clip(str(value))
        if before is None:
            yield name, "not seen", now, False
        elif name in before:
            earlier = before[name]
            yield name, clip(str(earlier)), now, earlier != value
        else:
            yield name, "", now, True
