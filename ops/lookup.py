"""Answers what became of a ride or of an event, and follows the bus. Changes nothing.

Tables are read by key, and log groups with filter patterns that name ids, from a day before the oldest known time.

`tail` reads the log groups too. A rule and a queue of its own would show the same events as the log of the bus, a
little sooner. But they would change the stack, and a crash would leave them behind.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from assignments import zone
from carride import telemetry
from carride.dedup import is_attribute
from carride.events import ContractError, parse_event
from carride.facts import FACTS
from carride.ride import OrderID
from idempotency import marshalling, observation
from idempotency.record import COMPLETED, QUARANTINED
from idempotency.stores.dynamodb import record_of
from ops.audit import DEFAULT_GRACE, evidence, queues, reading
from ops.audit.evidence import CONSUMERS, AuditedConsumer, DeadLettered, Delivered, Evidence, Named, Published
from ops.audit.saga import check
from ops.records import NO_RECORD, Explained, candidates, explain, items_of, keys_of, read
from ops.redrive import PRODUCER_DLQ
from ops.stack import OperatorError, StackRef

_RETRIED: Final = timedelta(hours=25)
"""An event can be logged that long before the times that a table knows, because EventBridge retries for 24 hours."""
_IDS_AT_ONCE: Final = 15
"""Ids in a filter pattern, which has at most 1,024 characters."""
_OVERLAP: Final = timedelta(seconds=20)
"""How late a line may appear in a log group."""
_POLL_S: Final = 1.0
_OUTCOMES: Final = observation.PROTECTED | {observation.UNPROTECTED}


class AtConsumer(NamedTuple):
    """What became of an event at a consumer."""

    consumer: str
    outcome: str
    """``took effect``, ``dead-lettered``, ``running``, ``quarantined``, ``waiting for retry``, ``expired`` or
    ``unknown``."""
    says: str
    """Why a part of the answer is missing."""
    deliveries: tuple[Delivered, ...]
    record: Explained | None
    dead_letters: tuple[DeadLettered, ...]


class Event(NamedTuple):
    """An event, and what became of it."""

    idempotency_id: str | None
    """None if the event breaks the contract."""
    type: str | None
    ride: str | None
    version: int | None
    detail: Any
    """The CloudEvents event; EventBridge's event as it came, if it breaks the contract; the entry in the read model, if
    neither the log nor a queue has the event; or None."""
    says: str | None
    """How it breaks the contract, or why it has no copies."""
    copies: tuple[Published, ...]
    """The event as the bus took it, each time."""
    consumers: tuple[AtConsumer, ...]
    """The consumers that act on events of its type."""


class Ride(NamedTuple):
    """A ride, and what became of its events."""

    order_id: str
    state: str
    """How it ended, in the words of the audit."""
    open_since: datetime | None
    """Since when it has needed something; None if it needs nothing."""
    problems: tuple[str, ...]
    """What is wrong with it, and what could not be read."""
    parts: Mapping[str, Mapping[str, Any]]
    """What each table has: ``booking``, ``read_model``, ``assignment``, ``payment``."""
    missing: Mapping[str, str]
    """Why a part is empty."""
    events: tuple[Event, ...]


class _Known(NamedTuple):
    """Everything that was read about some events."""

    facts: Mapping[str, Named | None]
    """The facts that are asked for, by idempotency id; None if only that is known."""
    seen: Sequence[tuple[Published, Any]]
    """Their lines in the log of events, with the events."""
    items: Mapping[str, Mapping[str, Any]]
    """What the tables have about their ride, by logical id of the table."""
    records: Mapping[str, Explained]
    outbox: Collection[str]
    """The idempotency ids of those in the outbox."""
    deliveries: Sequence[Delivered]
    consumers: Sequence[AuditedConsumer]
    """Those whose rules are enabled."""
    kept_since: datetime
    """Since when the log groups are complete."""
    letters: Sequence[tuple[DeadLettered, Any]]
    """Their dead letters, with the events."""
    unread: Sequence[str]
    """What could not be read."""


# ── One ride, one event ───────────────────────────────────────────────────────────────────────────────────────────────


def ride(stack: StackRef, order_id: str, *, since: datetime | None = None) -> Ride:
    """Return the state of a ride, and what became of each of its events at each consumer.

    Args:
        stack: where the ride is.
        order_id: its id.
        since: from when on to read the logs; by default from a day before the oldest time in the ride's items.

    Raises:
        OperatorError: the id has another form, or nothing is known of the ride.
    """
    _check_name(order_id)
    at, items = datetime.now(UTC), items_of(stack, order_id)
    rides = [reading.ride_item(each, items[each.table]) for each in CONSUMERS if each.table and items[each.table]]
    bookings = [reading.booked_ride(items["BookingTable"])] if items["BookingTable"] else []
    times = [effect.time for each in rides for effect in each.effects] + [each.booked for each in bookings]
    known = _read(stack, order_id, candidates(order_id, items), since or _start(at, times), items)
    events = _events(known)
    if not events and not bookings:
        raise _unknown(stack, f"ride {order_id}", "not in a table, no dead letter", at)
    saga = check(
        Evidence(
            known.consumers,
            [published for published, _ in known.seen],
            known.deliveries,
            [letter for letter, _ in known.letters],
            rides,
            bookings=bookings,
            cars=_car(stack, order_id, items["AssignmentTable"]),
            at=at,
            grace=DEFAULT_GRACE,
            since=known.kept_since,
        )
    )
    open_since = [*(each.open_since for each in rides), *(each.open_since for each in bookings)]
    parts = {part: _plain(items[table]) for part, (table, _) in _PARTS.items()}
    return Ride(
        order_id,
        next(iter(saga.endings), "open"),
        min(filter(None, open_since), default=None),
        (*saga.problems.get(order_id, ()), *known.unread),
        parts,
        {part: why for part, (_, why) in _PARTS.items() if not parts[part]},
        tuple(events),
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
        event_id: its idempotency id, its producer's, or EventBridge's id of one of its copies.
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
    at, facts = datetime.now(UTC), dict.fromkeys([name])
    records = [explain(record_of(item), at) for item in read(stack, keys_of(facts))]
    start = since or _start(at, [each.created for each in records if each.created])
    seen = _logged(stack, name, start)
    rides = {order_id for _, found in seen for order_id in _rides_of(found)}
    events: Sequence[Event] = []
    if not rides:
        known = _read(stack, name, facts, start)
        rides = {order_id for _, found in known.letters for order_id in _rides_of(found)}
        rides |= {each.ride for each in known.deliveries if each.ride}
        events = _events(known)
    if order_id := next(filter(_is_name, rides), None):  # its tables tell more
        events = ride(stack, order_id, since=since).events
    names = {name, *(published.fact for published, _ in seen if published.fact)}
    for each in events:
        if not names.isdisjoint({each.idempotency_id, *(copy.event_id for copy in each.copies)}):
            return each
    raise _unknown(stack, f"event {name}", "no record, no dead letter, not in the outbox; `ride` finds more", at)


def _unknown(stack: StackRef, what: str, why: str, at: datetime) -> OperatorError:
    logs = f"not in the logs, kept since {reading.kept_since(stack, at):%Y-%m-%d %H:%M UTC}"
    return OperatorError(f"nothing is known of {what} in {stack.name} ({stack.region}): {logs}, {why}")


def _is_name(text: str) -> bool:
    """Return whether a text can be the id of a ride."""
    try:
        msgspec.convert(text, OrderID)
    except msgspec.ValidationError:
        return False
    return True


def _check_name(order_id: str) -> None:
    if not _is_name(order_id):
        raise OperatorError(
            f"{order_id!r} is no id of a ride, such as order_01: give letters, digits, '_', '.' and '-'"
        )


def _start(at: datetime, times: Iterable[datetime]) -> datetime | None:
    """Return from when on to read logs about something with these times; None to read all."""
    known = [each for each in times if each > evidence.ALWAYS]
    return min(*known, at) - _RETRIED if known else None


def _read(
    stack: StackRef,
    text: str,
    facts: Mapping[str, Named | None],
    start: datetime | None,
    items: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> _Known:
    """Read what is known of some facts, and of events that name an id in their text: of the ride, or their own."""
    at, consumers, seen = datetime.now(UTC), reading.enabled(stack), _logged(stack, text, start)
    named = {each.fact: each.named for each, _ in seen if each.fact}
    facts = {**facts, **named}
    keys = keys_of(facts)
    records = {item["idempotencyKey"]["S"]: explain(record_of(item), at) for item in read(stack, keys)}
    outbox = {item["id"]["S"] for item in read(stack, facts, table="OutboxTable", name="id")}
    told = {*named, *outbox, *(key.partition("#")[2] for key in records)}.union(
        *map(partial(_effects, items), CONSUMERS)
    )
    deliveries = _deliveries(stack, text, told, start)
    since = reading.kept_since(stack, at)
    known = _Known(facts, seen, items, records, outbox, deliveries, consumers, since, [], [])
    asked: dict[str, str | None] = {PRODUCER_DLQ: None, evidence.LOG_RULE_DLQ: None}
    for each in consumers:
        taken = {fact for fact in told if f"{each.name}#{fact}" in keys}
        given_up = any((one.consumer, one.outcome) == (each.name, observation.DEAD_LETTERED) for one in deliveries)
        is_open = not told or len(named) < len({one.fact or one.event_id for one, _ in seen})
        if given_up or is_open or any(not _took_effect(known, each, fact) for fact in taken):
            asked |= dict.fromkeys((f"{each.resources}RuleDlq", f"{each.resources}Dlq"), each.name)
    letters, unread = _letters(stack, asked, {text, *facts, *(one.event_id for one, _ in seen)})
    return known._replace(letters=letters, unread=unread)


def _logged(stack: StackRef, text: str, start: datetime | None) -> list[tuple[Published, Any]]:
    """Return the lines of the log of events that have an id, with the events."""
    logs, group = stack.client("logs"), stack.outputs["CarRideEventsLogGroupName"]
    lines = reading.lines(logs, group, f'"{text}"', start)
    found = [(reading.published_in(line), queues.read(line["message"])) for line in lines]
    return [(one, event) for one, event in found if one and text in (one.fact, one.event_id, *_names_in(event))]


def _letters(
    stack: StackRef, asked: Mapping[str, str | None], wanted: Collection[str]
) -> tuple[list[tuple[DeadLettered, Any]], list[str]]:
    """Return the dead letters that have one of some ids, and what could not be read.

    Only queues are read that can have one: reading a queue takes a request for each ten messages.
    """
    sqs, letters, unread = stack.client("sqs"), [], []
    for queue, consumer in asked.items():
        url = stack.outputs[f"{queue}Url"]
        if hidden := queues.waiting(sqs, url):
            unread.append(f"{queue}: another reader hides {hidden} messages, which may be about this: try again later")
        for message in queues.peek(sqs, url):
            letter, event = queues.dead_letter(queue, consumer, message), queues.opened(message)[1]
            if not {letter.fact, letter.event_id, *_names_in(event)}.isdisjoint(wanted):
                letters.append((letter, event))
    return letters, unread


def _deliveries(stack: StackRef, text: str, facts: Collection[str], start: datetime | None) -> list[Delivered]:
    """Return the deliveries that name an id, of a ride or an event, and those of some facts; the oldest first."""
    logs, ids = stack.client("logs"), sorted({*facts} - {text})
    chunks = [ids[first : first + _IDS_AT_ONCE] for first in range(0, len(ids), _IDS_AT_ONCE)]
    several = [" || ".join(f'$.idempotencyid = "{fact}"' for fact in chunk) for chunk in chunks]
    patterns = [f'"{text}"', *(f"{{ {pattern} }}" for pattern in several)]
    groups = [stack.outputs[f"{each.resources}LogGroupName"] for each in CONSUMERS]
    with ThreadPoolExecutor(len(groups)) as pool:
        answers = pool.map(lambda each: list(reading.lines(logs, each[0], each[1], start)), product(groups, patterns))
        found = {reading.delivered_in(line) for lines in answers for line in lines} - {None}
    wanted = {text, *facts}
    return sorted((each for each in found if each and wanted & {each.fact, each.ride}), key=lambda each: each.time)


def _names_in(event: Any) -> set[str]:
    """Return the ids of its producer and of its ride that an event has, although it may break the contract."""
    match event:
        case {"detail": dict(detail)}:
            given = {name: detail.get(name) for name in ("id", "idempotencyid", "idempotencyId")}
            return _rides_of(event).union(each for each in given.values() if isinstance(each, str))
    return set()


def _rides_of(event: Any) -> set[str]:
    match event:
        case {"detail": {"subject": str(named)}} | {"detail": {"data": {"orderID": str(named)}}}:
            return {named}
    return set()


def _effects(items: Mapping[str, Mapping[str, Any]], consumer: AuditedConsumer) -> dict[str, Any]:
    """Return the entries of the events that took effect at a consumer, by idempotency id."""
    item = items.get(consumer.table or "", {})
    return {name.partition("#")[2]: entry for name, entry in item.items() if is_attribute(name)}


def _took_effect(known: _Known, consumer: AuditedConsumer, fact: str) -> bool:
    record = known.records.get(f"{consumer.name}#{fact}")
    return fact in _effects(known.items, consumer) or (record is not None and record.status == COMPLETED)


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
    """Return the events of which anything tells, in the order of the ride's versions."""
    told = [published.fact or published.event_id for published, _ in known.seen]
    told += [name for letter, _ in known.letters if (name := letter.fact or letter.event_id)]
    told += [key.partition("#")[2] for key in known.records]
    told += [fact for each in CONSUMERS for fact in _effects(known.items, each)]
    told += [*known.outbox, *(each.fact for each in known.deliveries if each.fact)]
    events = [_event(known, name) for name in dict.fromkeys(told)]
    return sorted(events, key=lambda each: (each.version or 0, each.type or "", each.idempotency_id or ""))


def _event(known: _Known, name: str) -> Event:
    seen = [each for each in known.seen if name in (each[0].fact, each[0].event_id)]
    letters = [each for each in known.letters if name in (each[0].fact, each[0].event_id)]
    raw = next((event for _, event in (*seen, *letters) if event is not None), None)
    detail = next((found for each in CONSUMERS if "data" in (found := _effects(known.items, each).get(name, {}))), None)
    problem, fact = None, known.facts.get(name)
    if raw is not None or seen:
        try:
            detail = parse_event(raw or {}).to_detail()
        except ContractError as error:
            detail, problem = raw, f"it breaks the contract: {error}"
    kind = fact.type if fact else next((published.type for published, _ in seen), None)
    gone = [f"it is in {each.queue}: {each.reason}" for each, _ in letters if each.consumer is None]
    gone += ["it is in the outbox, and not on the bus yet: look at OutboxPipe"] if name in known.outbox else []
    gone += [f"it is not in the log of events, which goes back to {known.kept_since:%Y-%m-%d %H:%M UTC}"]
    return Event(
        None if problem else name,
        kind,
        next(iter(_rides_of(raw)), known.items.get("RideTable", {}).get("orderID")),
        fact.version if fact else None,
        detail,
        problem or (None if seen else "; ".join(gone)),
        tuple(published for published, _ in seen),
        tuple(
            _at_consumer(known, each, name, is_broken=problem is not None)
            for each in known.consumers
            if each.takes(kind) or f"{each.name}#{name}" in known.records
        ),
    )


def _at_consumer(known: _Known, consumer: AuditedConsumer, name: str, *, is_broken: bool) -> AtConsumer:
    deliveries = tuple(each for each in known.deliveries if (each.consumer, each.fact) == (consumer.name, name))
    record = known.records.get(f"{consumer.name}#{name}")
    found = [letter for letter, _ in known.letters if letter.consumer == consumer.name]
    letters = tuple(letter for letter in found if name in (letter.fact, letter.event_id))
    outcome = "took effect"
    if not _took_effect(known, consumer, name):
        outcome = "dead-lettered" if letters else _outcome(record, {each.outcome for each in deliveries})
    says = [_WHY[outcome]] if outcome in _WHY and not letters else []
    if is_broken:
        says.append("it has no key, so there is no record, and deliveries do not name it")
    elif record is None:
        says.append(NO_RECORD)
    if not deliveries and not is_broken:
        kept = f"{known.kept_since:%Y-%m-%d %H:%M UTC}"
        says.append(f"no delivery is in its log, which goes back to {kept}; an attempt that crashes logs none")
    return AtConsumer(consumer.name, outcome, "; ".join(says), deliveries, record, letters)


_WHY: Final = {
    "dead-lettered": "its dead letter has left the queue",
    "expired": "it came after its expiry time, and was dropped",
    "unknown": "it may be on its way: EventBridge retries for 24 hours, and Lambda for 6",
}


def _outcome(record: Explained | None, outcomes: Collection[str]) -> str:
    """Return what became of an event that has not taken effect and has no dead letter."""
    if record is not None and record.status == QUARANTINED:
        return "quarantined"
    if record is not None:
        return "running" if record.held_until is not None else "waiting for retry"
    if observation.DEAD_LETTERED in outcomes:
        return "dead-lettered"
    if observation.EXPIRED in outcomes:
        return "expired"
    return "waiting for retry" if outcomes else "unknown"


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
) -> Iterator[Published | Delivered]:
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
        _check_name(ride)
    for given, known, what in ((type, FACTS, "type of event"), (outcome, _OUTCOMES, "outcome")):
        if given not in (None, *known):
            raise OperatorError(f"there is no {what} {given}: give one of {', '.join(sorted(known))}")
    text, begin, shown = ride or outcome or type, since or datetime.now(UTC), dict[str, int]()
    sources: list[_Source] = [
        (stack.outputs[f"{each.resources}LogGroupName"], text or telemetry.DELIVERY, reading.delivered_in)
        for each in CONSUMERS
    ]
    if outcome is None:
        sources.append((stack.outputs["CarRideEventsLogGroupName"], text or "detail", reading.published_in))
    while True:
        started, new = datetime.now(UTC), _unseen(stack, sources, begin, shown)
        for each in sorted(new, key=lambda each: each.time):
            if _is_wanted(each, ride, outcome) and type in (None, each.type):
                yield each
        if not follow:
            return
        begin = max(begin, started - _OVERLAP)  # a line can appear late, so the last seconds are read again
        shown = {name: timestamp for name, timestamp in shown.items() if timestamp >= begin.timestamp() * 1000}
        pause(_POLL_S)


type _Source = tuple[str, str, Callable[[Mapping[str, Any]], Published | Delivered | None]]
"""A log group, a text that is in its lines, and a function that reads a line."""


def _unseen(
    stack: StackRef, sources: Sequence[_Source], begin: datetime, shown: dict[str, int]
) -> Iterator[Published | Delivered]:
    """Yield what is in new lines, and add these to those that were shown."""
    for group, text, decode in sources:
        for line in reading.lines(stack.client("logs"), group, f'"{text}"', begin):
            name = f"{group}/{line.get('eventId', line['message'])}"
            if name not in shown and (found := decode(line)) is not None:
                yield found
            shown[name] = line["timestamp"]


def _is_wanted(found: Published | Delivered, ride: str | None, outcome: str | None) -> bool:
    if isinstance(found, Delivered):
        return ride in (None, found.ride) and outcome in (None, found.outcome)
    return found.named is None or ride in (None, found.named.order_id)  # a broken event was found by its text
