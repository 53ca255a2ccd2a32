"""Answers what became of a ride or of an event, and follows the bus. Changes nothing.

Tables are read by key. Log groups are read with filter patterns that name the ids, from a day before the oldest time
that the tables know.

`tail` reads the log groups only. A rule and a queue of its own would show the same events as the log of the bus,
somewhat sooner, but they would change the stack, and a crash would leave them behind. The deliveries, which are what an
operator looks for, are in log groups anyway.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

from assignments import zone
from carride import telemetry
from carride.dedup import is_attribute
from carride.events import ContractError, parse_event
from carride.facts import FACTS
from carride.ride import OrderID
from idempotency import marshalling, observation
from idempotency.record import COMPLETED, QUARANTINED
from idempotency.stores.dynamodb import record_of
from ops.audit import DEFAULT_GRACE, evidence, reading
from ops.audit.evidence import CONSUMERS, AuditedConsumer, DeadLettered, Delivered, Evidence, Published
from ops.audit.queues import dead_letter, opened, peek, waiting
from ops.audit.queues import read as read_json
from ops.audit.saga import check
from ops.records import NO_RECORD, Candidate, Explained, candidates, explain, items_of, keys_of, read
from ops.redrive import PRODUCER_DLQ
from ops.stack import OperatorError, StackRef

_RETRIED: Final = timedelta(hours=25)
"""An event can be logged that long before or after the times that a table knows: EventBridge retries for 24 hours."""
_IDS_AT_ONCE: Final = 15
"""Ids in a filter pattern, which has at most 1,024 characters."""
_OVERLAP: Final = timedelta(seconds=20)
"""How late a line may appear in a log group."""
_POLL_S: Final = 1.0
_OUTCOMES: Final = observation.PROTECTED | {observation.UNPROTECTED}


class Copy(Struct, frozen=True, kw_only=True):
    """An event as the bus took it. A fact can have several."""

    event_id: str
    """EventBridge's id."""
    logged: datetime
    replayed: bool


class Attempt(Struct, frozen=True, kw_only=True):
    """A delivery to a consumer, as the consumer logged it."""

    time: datetime
    outcome: str
    attempt: int | None
    delivery: str | None
    """The transport's id of the delivery."""
    reason: str | None


class AtConsumer(Struct, frozen=True, kw_only=True):
    """What became of an event at a consumer."""

    consumer: str
    outcome: str
    """``took effect``, ``dead-lettered``, ``running``, ``quarantined``, ``waiting for retry``, ``expired`` or
    ``unknown``."""
    says: str
    """Why, and why a part of the answer is missing."""
    deliveries: tuple[Attempt, ...]
    record: Explained | None
    dead_letters: tuple[str, ...]
    """``<queue>: <reason>``"""


class Event(Struct, frozen=True, kw_only=True):
    """An event, and what became of it."""

    idempotency_id: str | None
    """None if the event breaks the contract."""
    type: str | None
    ride: str | None
    version: int | None
    detail: Any
    """The event as it was published; the entry in the read model if the log does not have it any more; or None."""
    problem: str | None
    """How it breaks the contract."""
    says: str | None
    """Why it has no copies."""
    copies: tuple[Copy, ...]
    consumers: tuple[AtConsumer, ...]
    """The consumers that act on events of its type."""


class Ride(Struct, frozen=True, kw_only=True):
    """A ride, and what became of its events."""

    order_id: str
    state: str
    """How it ended, in the words of the audit."""
    open_since: datetime | None
    """Since when it has needed something; None if it needs nothing."""
    problems: tuple[str, ...]
    """What is wrong with it, and what could not be read."""
    booking: Mapping[str, Any]
    """What each table has; empty if nothing."""
    read_model: Mapping[str, Any]
    assignment: Mapping[str, Any]
    payment: Mapping[str, Any]
    missing: Mapping[str, str]
    """Why a part is empty."""
    events: tuple[Event, ...]


class Line(Struct, frozen=True, kw_only=True):
    """An event on the bus, or a delivery to a consumer."""

    time: datetime
    kind: Literal["event", "delivery"]
    type: str | None
    ride: str | None
    idempotency_id: str | None
    event_id: str | None = None
    replayed: bool = False
    problem: str | None = None
    consumer: str | None = None
    outcome: str | None = None
    attempt: int | None = None
    reason: str | None = None


# ── One ride, one event ───────────────────────────────────────────────────────────────────────────────────────────────


class _Known(NamedTuple):
    """Everything that was read about some events."""

    facts: Mapping[str, Candidate]
    """The facts that are asked for, by idempotency id."""
    seen: Sequence[tuple[Published, Any]]
    """Their lines in the log of events, with the events."""
    items: Mapping[str, Mapping[str, Any]]
    """What the tables have about their ride, by logical id of the table."""
    records: Mapping[str, Explained]
    outbox: Collection[str]
    """The idempotency ids of those in the outbox."""
    deliveries: Sequence[Delivered]
    letters: Sequence[tuple[DeadLettered, Any]]
    """Their dead letters, with the events."""
    unread: Sequence[str]
    """What could not be read."""
    kept_since: datetime
    """Since when the log groups are complete."""


def ride(stack: StackRef, order_id: str, *, since: datetime | None = None) -> Ride:
    """Return the state of a ride, and what became of each of its events at each consumer.

    Args:
        stack: where the ride is.
        order_id: its id.
        since: from when on to read the logs; by default from a day before the oldest time in the ride's items.

    Raises:
        OperatorError: the id has another form, or nothing is known of the ride.
    """
    check_name(order_id)
    at, items = datetime.now(UTC), items_of(stack, order_id)
    rides = [reading.ride_item(each, items[each.table]) for each in CONSUMERS if each.table and items[each.table]]
    booked = [reading.booked_ride(items["BookingTable"])] if items["BookingTable"] else []
    times = [effect.time for each in rides for effect in each.effects] + [each.booked for each in booked]
    start = since or _start(at, times)
    seen = [each for each in _logged(stack, order_id, start) if order_id in _rides_of(each[1])]
    known = _read(stack, order_id, candidates(order_id, items), seen, items, start)
    events = _events(known)
    if not events and not booked:
        raise _unknown(stack, f"ride {order_id}", "no table has it, no dead letter names it", known)
    saga = check(
        Evidence(
            CONSUMERS,
            [published for published, _ in seen],
            known.deliveries,
            [letter for letter, _ in known.letters],
            rides,
            bookings=booked,
            cars=_car(stack, order_id, items["AssignmentTable"]),
            at=at,
            grace=DEFAULT_GRACE,
            since=known.kept_since,
        )
    )
    since_when = [*(each.open_since for each in rides), *(each.open_since for each in booked)]
    parts = {part: _plain(items[table]) for part, (table, _) in _PARTS.items()}
    return Ride(
        order_id=order_id,
        state=next(iter(saga.endings), "open"),
        open_since=min(filter(None, since_when), default=None),
        problems=(*saga.problems.get(order_id, ()), *known.unread),
        missing={part: why for part, (_, why) in _PARTS.items() if not parts[part]},
        events=tuple(events),
        **parts,
    )


_PARTS: Final = {
    "booking": ("BookingTable", "not booked through the API: the simulator or another producer published its events"),
    "read_model": ("RideTable", "no event of it has taken effect at ride-history"),
    "assignment": ("AssignmentTable", "no event has taken effect at dispatch, which begins with CarRideAccepted"),
    "payment": ("PaymentTable", "no event has taken effect at payment, which begins with CarAssigned"),
}


def event(stack: StackRef, event_id: str, *, since: datetime | None = None) -> Event:
    """Return an event, and what became of it at each consumer.

    Args:
        stack: where the event is.
        event_id: its idempotency id, or EventBridge's id of one of its copies.
        since: from when on to read the logs; by default from a day before its first record.

    Raises:
        OperatorError: the id has another form, or nothing is known of the event.
    """
    try:
        name = str(UUID(event_id))
    except ValueError:
        raise OperatorError(
            f"{event_id!r} is no id of an event, such as 7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f; `ride` takes a ride's id"
        ) from None
    at, facts = datetime.now(UTC), {name: Candidate(None, 0)}
    records = [explain(record_of(item), at) for item in read(stack, keys_of(facts))]
    start = since or _start(at, [each.created for each in records if each.created is not None])
    seen = [each for each in _logged(stack, name, start) if name in (each[0].fact, each[0].event_id)]
    known = _read(stack, None, facts, seen, {}, start)
    told = [found for _, event in (*seen, *known.letters) for found in _rides_of(event)]
    told += [each.ride for each in known.deliveries if each.ride is not None]
    try:  # the tables of its ride tell more
        events: Sequence[Event] = ride(stack, next(filter(is_name, told)), since=since).events
    except (StopIteration, OperatorError):
        events = _events(known)
    for each in events:
        if name in (each.idempotency_id, *(copy.event_id for copy in each.copies)):
            return each
    raise _unknown(stack, f"event {name}", "it has no record, no dead letter, and is not in the outbox", known)


def _unknown(stack: StackRef, what: str, why: str, known: _Known) -> OperatorError:
    place, since = f"{stack.name} ({stack.region})", f"{known.kept_since:%Y-%m-%d %H:%M UTC}"
    return OperatorError(
        f"nothing is known of {what} in {place}: {why}, and the logs, kept since {since}, do not have it"
    )


def is_name(text: str) -> bool:
    """Return whether a text can be the id of a ride."""
    try:
        msgspec.convert(text, OrderID)
    except msgspec.ValidationError:
        return False
    return True


def check_name(order_id: str) -> None:
    """Raise an OperatorError if a text cannot be the id of a ride."""
    if not is_name(order_id):
        raise OperatorError(
            f"{order_id!r} is no id of a ride, such as order_01: give letters, digits, '_', '.' and '-'"
        )


def _read(
    stack: StackRef,
    order_id: str | None,
    facts: Mapping[str, Candidate],
    seen: Sequence[tuple[Published, Any]],
    items: Mapping[str, Mapping[str, Any]],
    start: datetime | None,
) -> _Known:
    """Read what is known of some facts, and of events that name the ride ``order_id``."""
    at = datetime.now(UTC)
    named = {each.fact: Candidate(each.named.type, each.named.version) for each, _ in seen if each.fact and each.named}
    facts = {**facts, **named}
    records = {item["idempotencyKey"]["S"]: explain(record_of(item), at) for item in read(stack, keys_of(facts))}
    outbox = {item["id"]["S"] for item in read(stack, facts, table="OutboxTable", name="id")}
    effects = {fact for each in CONSUMERS for fact in _effects(items, each)}
    told = {*outbox, *(key.partition("#")[2] for key in records), *named, *effects}
    deliveries = _deliveries(stack, sorted(told) if order_id else sorted({*facts, *told}), start)
    queues: list[tuple[str, str | None]] = [(PRODUCER_DLQ, None), (evidence.LOG_RULE_DLQ, None)]
    for each in CONSUMERS:
        ended = {record.key for record in records.values() if record.status == COMPLETED}
        taken = {
            fact
            for fact in told
            if each.takes(facts[fact].type if fact in facts else None) and f"{each.name}#{fact}" not in ended
        }
        given_up = any(one.outcome == observation.DEAD_LETTERED for one in deliveries if one.consumer == each.name)
        if given_up or not told or None in {one.fact for one, _ in seen} or taken - _effects(items, each).keys():
            queues += [(f"{each.resources}{kind}", each.name) for kind in ("RuleDlq", "Dlq")]
    ids = {each.event_id for each, _ in seen}
    sqs, letters, unread = stack.client("sqs"), [], []
    for queue, consumer in queues:
        url = stack.outputs[f"{queue}Url"]
        if hidden := waiting(sqs, url):
            unread.append(f"{queue}: another reader hides {hidden} messages, which may be about this: try again later")
        for message in peek(sqs, url):
            letter, event = dead_letter(queue, consumer, message), opened(message)[1]
            if letter.fact in facts or letter.event_id in ids or (order_id and order_id in _rides_of(event)):
                letters.append((letter, event))
    since = reading.kept_since(stack, at)
    return _Known(facts, seen, items, records, outbox, deliveries, letters, unread, since)


def _start(at: datetime, times: Iterable[datetime]) -> datetime | None:
    """Return from when on to read logs about something with these times; None to read all."""
    known = [each for each in times if each > evidence.ALWAYS]
    return min(*known, at) - _RETRIED if known else None


def _logged(stack: StackRef, text: str, start: datetime | None) -> list[tuple[Published, Any]]:
    """Return the lines of the log of events that contain a text, with the events."""
    group = stack.outputs["CarRideEventsLogGroupName"]
    found = reading.lines(stack.client("logs"), group, f'"{text}"', start)
    lines = [(reading.published_in(line), read_json(line["message"])) for line in found]
    return [(published, event) for published, event in lines if published is not None]


def _deliveries(stack: StackRef, facts: Sequence[str], start: datetime | None) -> list[Delivered]:
    """Return the deliveries of some facts, the oldest first."""
    logs, wanted = stack.client("logs"), set(facts)
    chunks = [facts[first : first + _IDS_AT_ONCE] for first in range(0, len(facts), _IDS_AT_ONCE)]
    # A text is also found by log groups that ignore JSON patterns, which return more lines then.
    several = [" || ".join(f'$.idempotencyid = "{fact}"' for fact in chunk) for chunk in chunks]
    patterns = [f'"{facts[0]}"'] if len(facts) == 1 else [f"{{ {each} }}" for each in several]
    groups = [stack.outputs[f"{each.resources}LogGroupName"] for each in CONSUMERS]
    asked = [(group, pattern) for group in groups for pattern in patterns]
    with ThreadPoolExecutor(len(groups)) as pool:
        answers = pool.map(lambda each: list(reading.lines(logs, each[0], each[1], start)), asked)
        found = [reading.delivered_in(line) for lines in answers for line in lines]
    return sorted((each for each in found if each and each.fact in wanted), key=lambda each: each.time)


def _rides_of(event: Any) -> set[str]:
    """Return the rides that an event names, although it may break the contract."""
    match event:
        case {"detail": {"subject": str(named)}} | {"detail": {"data": {"orderID": str(named)}}}:
            return {named}
    return set()


def _effects(items: Mapping[str, Mapping[str, Any]], consumer: AuditedConsumer) -> dict[str, Any]:
    """Return the entries of the events that took effect at a consumer, by idempotency id."""
    item = items.get(consumer.table or "", {})
    return {name.partition("#")[2]: entry for name, entry in item.items() if is_attribute(name)}


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an item has besides its entries; with the status of the ride, if the entries have it."""
    entries = [entry for name, entry in item.items() if is_attribute(name) and "data" in entry]
    newest = max(entries, key=lambda entry: entry["sequence"], default=None)
    state = {} if newest is None else {"status": newest["data"].get("status"), "version": newest["sequence"]}
    return state | {name: value for name, value in item.items() if not is_attribute(name) and name != "openShard"}


def _car(stack: StackRef, order_id: str, assignment: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the car of a ride, if it holds one."""
    if "carID" not in assignment:
        return {}
    key = marshalling.item({"zone": zone(assignment["sector"]), "carID": assignment["carID"]})
    row = stack.client("dynamodb").get_item(TableName=stack.outputs["CarTableName"], Key=key, ConsistentRead=True)
    held = row.get("Item", {}).get("rideID") == {"S": order_id}
    return {assignment["carID"]: order_id} if held else {}


def _events(known: _Known) -> list[Event]:
    """Return the events that something tells of, in the order of the ride's versions."""
    lines: dict[str, list[tuple[Published, Any]]] = {}
    for published, event in known.seen:
        lines.setdefault(published.fact or published.event_id, []).append((published, event))
    for letter, _ in known.letters:
        lines.setdefault(letter.fact or letter.event_id or f"message of {letter.queue}", [])
    told = [key.partition("#")[2] for key in known.records]
    told += [fact for each in CONSUMERS for fact in _effects(known.items, each)]
    for fact in (*told, *known.outbox, *(each.fact for each in known.deliveries if each.fact)):
        lines.setdefault(fact, [])
    events = [_event(known, name, found) for name, found in lines.items()]
    return sorted(events, key=lambda each: (each.version or 0, each.type or "", each.idempotency_id or ""))


def _event(known: _Known, name: str, lines: Sequence[tuple[Published, Any]]) -> Event:
    letters = [each for each in known.letters if name in (each[0].fact, each[0].event_id)]
    raw = next((event for _, event in (*lines, *letters) if event is not None), None)
    entry = next((found for each in CONSUMERS if "data" in (found := _effects(known.items, each).get(name, {}))), None)
    problem = None
    if raw is not None:
        try:
            parse_event(raw)
        except ContractError as error:
            problem = str(error)
    fact = known.facts.get(name)
    kind = fact.type if fact else next((published.type for published, _ in lines), None)
    copies = [Copy(event_id=each.event_id, logged=each.time, replayed=each.replayed) for each, _ in lines]
    says = None
    if not copies:
        gone = f"not in the log of events, which goes back to {known.kept_since:%Y-%m-%d %H:%M UTC}"
        says = "in the outbox, and not on the bus yet: look at OutboxPipe" if name in known.outbox else gone
    return Event(
        idempotency_id=None if problem else name,
        type=kind,
        ride=next(iter(_rides_of(raw)), known.items.get("RideTable", {}).get("orderID")),
        version=fact.version if fact else None,
        detail=raw if raw is not None else entry,
        problem=problem,
        says=says,
        copies=tuple(copies),
        consumers=tuple(filter(None, (_at_consumer(known, each, name, kind, problem) for each in CONSUMERS))),
    )


def _at_consumer(
    known: _Known, consumer: AuditedConsumer, name: str, kind: str | None, problem: str | None
) -> AtConsumer | None:
    """Return what became of an event at a consumer; None if the consumer does not act on its type."""
    deliveries = [each for each in known.deliveries if (each.consumer, each.fact) == (consumer.name, name)]
    record = known.records.get(f"{consumer.name}#{name}")
    letters = [
        each for each, _ in known.letters if each.consumer == consumer.name and name in (each.fact, each.event_id)
    ]
    if not (deliveries or record or letters or consumer.takes(kind)):
        return None
    took_effect = name in _effects(known.items, consumer) or (record is not None and record.status == COMPLETED)
    outcome, why = ("took effect", "") if took_effect else _outcome(record, bool(letters), deliveries)
    says = [why] if why else []
    if record is not None:
        says.append(record.says)
    elif problem is not None:
        says.append(
            "an event that breaks the contract has no key, so it has no record, and its deliveries name no event"
        )
    else:
        says.append(NO_RECORD)
    if not deliveries and problem is None:
        kept = f"{known.kept_since:%Y-%m-%d %H:%M UTC}"
        says.append(f"no delivery is in its log, which goes back to {kept}; an attempt that crashes logs none")
    return AtConsumer(
        consumer=consumer.name,
        outcome=outcome,
        says="; ".join(says),
        deliveries=tuple(
            Attempt(
                time=each.time, outcome=each.outcome, attempt=each.attempt, delivery=each.delivery, reason=each.reason
            )
            for each in deliveries
        ),
        record=record,
        dead_letters=tuple(f"{each.queue}: {each.reason}" for each in letters),
    )


def _outcome(record: Explained | None, is_dead_lettered: bool, deliveries: Sequence[Delivered]) -> tuple[str, str]:
    """Return what became of an event that has not taken effect, and why if its record does not say it."""
    outcomes = {each.outcome for each in deliveries}
    if is_dead_lettered:
        return "dead-lettered", ""
    if record is not None and record.held_until is not None:
        return "running", ""
    if record is not None:
        return ("quarantined" if record.status == QUARANTINED else "waiting for retry"), ""
    if observation.DEAD_LETTERED in outcomes:
        return "dead-lettered", "its dead letter has left the queue"
    if observation.EXPIRED in outcomes:
        return "expired", "it came after its expiry time, and was dropped"
    if deliveries:
        return "waiting for retry", ""
    return "unknown", "it may be on its way: EventBridge retries for 24 hours, and Lambda for 6"


# ── The bus ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tail(
    stack: StackRef,
    *,
    ride: str | None = None,
    type: str | None = None,  # noqa: A002 - the option's name
    outcome: str | None = None,
    since: datetime | None = None,
    follow: bool = True,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[Line]:
    """Yield every event on the bus and every delivery to a consumer, the oldest first.

    Args:
        stack: where the bus is.
        ride: only this ride's.
        type: only events of this type.
        outcome: only deliveries with this outcome.
        since: from when on; by default from now on.
        follow: whether to go on until it is interrupted.
        pause: waits for some seconds.

    Raises:
        OperatorError: there is no such type or outcome, or the ride's id has another form.
    """
    if ride is not None:
        check_name(ride)
    for given, known, what in ((type, FACTS, "type of event"), (outcome, _OUTCOMES, "outcome")):
        if given is not None and given not in known:
            raise OperatorError(f"there is no {what} {given}: give one of {', '.join(sorted(known))}")
    return _tail(stack, (ride, type, outcome), since or datetime.now(UTC), follow, pause)


def _tail(
    stack: StackRef,
    wanted: tuple[str | None, str | None, str | None],
    begin: datetime,
    follow: bool,
    pause: Callable[[float], object],
) -> Iterator[Line]:
    ride, kind, outcome = wanted
    logs, text = stack.client("logs"), ride or outcome or kind
    sources = [
        (stack.outputs[f"{each.resources}LogGroupName"], text or telemetry.DELIVERY, _delivery) for each in CONSUMERS
    ]
    if outcome is None:
        sources.append((stack.outputs["CarRideEventsLogGroupName"], text or "detail", _on_bus))
    shown: dict[str, int] = {}
    while True:
        started, new = datetime.now(UTC), []
        for group, term, decode in sources:
            for line in reading.lines(logs, group, f'"{term}"', begin):
                name = f"{group}/{line['eventId']}"
                if name not in shown and (found := decode(line)) is not None:
                    shown[name] = line["timestamp"]
                    new.append(found)
        for each in sorted(new, key=lambda each: each.time):
            if all(want in (None, has) for want, has in zip(wanted, (each.ride, each.type, each.outcome), strict=True)):
                yield each
        if not follow:
            return
        # A line can appear late, so the last seconds are read again.
        begin = max(begin, started - _OVERLAP)
        shown = {name: timestamp for name, timestamp in shown.items() if timestamp >= begin.timestamp() * 1000}
        pause(_POLL_S)


def _on_bus(line: Mapping[str, Any]) -> Line | None:
    published, event = reading.published_in(line), read_json(line["message"])
    if published is None:
        return None
    return Line(
        time=published.time,
        kind="event",
        type=published.type,
        ride=next(iter(_rides_of(event)), None),
        idempotency_id=published.fact,
        event_id=published.event_id,
        replayed=published.replayed,
    )


def _delivery(line: Mapping[str, Any]) -> Line | None:
    found = reading.delivered_in(line)
    if found is None:
        return None
    return Line(
        time=found.time,
        kind="delivery",
        type=found.type,
        ride=found.ride,
        idempotency_id=found.fact,
        consumer=found.consumer,
        outcome=found.outcome,
        attempt=found.attempt,
        reason=found.reason,
    )
