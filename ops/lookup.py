"""Answers what became of a ride or of an event. Changes nothing.

Tables are read by key, and log groups with filter patterns that name ids, from a day before the
oldest known time.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Any, Final, NamedTuple
from uuid import UUID

import jmespath
import msgspec

from assignments import zone
from carride.events import ContractError, parse_event
from carride.history import EVENT_PREFIX, latest_in, timeline_of
from carride.ride import OrderID
from carride_idempotency import marshalling, observation
from carride_idempotency.dead_letters import CONTRACT
from carride_idempotency.operators.choosing import consumer_of
from carride_idempotency.operators.explaining import Explained, explain
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED
from ops import tables
from ops.audit import reading
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    LOG_RULE_DLQ,
    NEVER,
    AuditedConsumer,
    BookedRide,
    DeadLettered,
    Delivered,
    Evidence,
    Named,
    Published,
    RideItem,
)
from ops.audit.queues import Letters, json_object
from ops.audit.reading import BUS, booked_ride, delivered_in, published_in
from ops.audit.saga import saga_of
from ops.dead_letters import PRODUCER_DLQ, DeadLetter, letter_of, redrive_of, ride_of
from ops.holds import Hold, Kind, by_audit, in_order, without_letter
from ops.policies import MOST_ATTEMPTS
from ops.records import StackRecords, candidates, keys_of, ride_items, tables_of
from ops.stack import OperatorError, StackRef

_RETRIED: Final = timedelta(hours=25)
"""An event can be logged that long before the times that a table knows, because EventBridge retries
for 24 hours."""
_IDS_AT_ONCE: Final = 15
"""Ids in a filter pattern, which has at most 1,024 characters."""
_stated = jmespath.compile(
    "[id, detail.idempotencyid, detail.idempotencyId, detail.attributes.idempotencyId]"
)


IN_EFFECT: Final = "took effect"


class AtConsumer(NamedTuple):
    """What became of an event at a consumer; dead letters come without the event."""

    consumer: str
    outcome: str
    """``took effect``, ``dead-lettered``, the record's status, the last delivery's outcome, or
    ``unknown``."""
    error: str
    """Why the newest attempt failed, by the record or else by the log; empty if none has."""
    deliveries: list[Delivered]
    record: Explained | None
    dead_letters: list[DeadLetter]

    @property
    def breaks_contract(self) -> bool:
        """Whether the event has no key here, because it breaks the contract."""
        return any(letter.reason == CONTRACT for letter in self.dead_letters)


class Event(NamedTuple):
    """An event, and what became of it at the consumers that act on its type."""

    id: str
    """Its idempotency id; EventBridge's id if it breaks the contract."""
    type: str | None
    ride: str | None
    version: int | None
    detail: Any
    """The CloudEvents event; if it breaks the contract, EventBridge's event; None if neither log
    nor queue has it."""
    breach: str | None
    """How it breaks the contract; None if it does not."""
    copies: tuple[Published, ...]
    """On the bus, as its log has them."""
    in_outbox: bool
    letters: tuple[DeadLetter, ...]
    """In the queues of no consumer, without the event."""
    consumers: tuple[AtConsumer, ...]
    logged_since: datetime
    """Since when the logs are complete."""


class Settlement(NamedTuple):
    """How the reconciler has settled a ride, by its newest settlement."""

    outcome: str
    """``completed`` or ``cancelled``."""
    time: datetime
    completed: datetime | None
    """When a ride was completed that was not settled so; None if it was not."""


class Unread(NamedTuple):
    """Messages of a dead-letter queue that could not be read."""

    queue: str
    hidden: int
    """Another reader has received them."""
    left: int
    """They are too many for a short reading."""


class Ride(NamedTuple):
    """A ride, how it ended in the words of the audit, and what became of its events."""

    order_id: str
    state: str
    unread: tuple[Unread, ...]
    tables: Mapping[str, Mapping[str, Any]]
    """What each table has besides events."""
    events: tuple[Event, ...]
    settled: Settlement | None = None
    """None if the reconciler has not settled it."""
    holds: tuple[Hold, ...] = ()
    """What holds it; nothing if all is well."""


class _OnBus(NamedTuple):
    """An event in the log of the bus, and as the bus has it."""

    published: Published
    body: Any


class _Letters(NamedTuple):
    """What dead-letter queues have of some events, and what in them could not be read."""

    found: Sequence[DeadLetter]
    unread: Sequence[Unread]


class _Stored(NamedTuple):
    """A record with its meaning."""

    record: Explained
    error: str
    """Why its newest attempt failed; empty if that is not known."""


class _Known(NamedTuple):
    """Everything that was read about some events.

    An event is named by its idempotency id, or by EventBridge's id if it has none.
    """

    evidence: Evidence
    names: Collection[str]
    facts: Mapping[str, Named | None]
    items: Mapping[str, Mapping[str, Any]]
    records: Mapping[str, _Stored]
    in_effect: Collection[str]
    """``<consumer>#<idempotency id>`` of each effect."""
    bodies: Mapping[str, Any]
    """The events in the log, by EventBridge's id."""
    letters: _Letters


class UnknownError(OperatorError):
    """Raised if nothing is known under an id."""


def ride(stack: StackRef, order_id: str) -> Ride:
    """Return where a ride is, and what became of each of its events at each consumer.

    Raises:
        UnknownError: nothing is known of it.
    """
    known = _of_ride(stack, order_id)
    # An event that states this id as its own belongs to another ride.
    found = [_event(known, name) for name in known.names]
    events = [each for each in found if each.ride in (order_id, None)]
    if not events and not known.evidence.bookings:
        raise _unknown(f"ride {order_id}", stack, known)
    cars = _car(stack, order_id, known.items["AssignmentTable"])
    saga = saga_of(known.evidence._replace(cars=cars, grace=reading.DEFAULT_GRACE))
    events.sort(key=lambda event: (_begun(event), event.version or 0, event.type or "", event.id))
    return Ride(
        order_id=order_id,
        state=next(iter(saga.endings), "open"),
        unread=tuple(known.letters.unread),
        tables={table: _besides_events(item) for table, item in known.items.items()},
        events=tuple(events),
        settled=_settled(known.evidence.published, order_id),
        holds=in_order(
            [
                *by_audit(saga.problems.get(order_id, ()), saga.overdue.get(order_id)),
                *_holds_at_consumers(events),
            ]
        ),
    )


def _begun(event: Event) -> datetime:
    """Return when an event was first seen: on the bus, at a consumer, or as a letter."""
    times = [copy.time for copy in event.copies]
    for at in event.consumers:
        times += [each.time for each in at.deliveries]
        times += [letter.sent for letter in at.dead_letters]
    return min(times, default=NEVER)


def _holds_at_consumers(events: Iterable[Event]) -> Iterator[Hold]:
    """Yield what holds the events of a ride at their consumers."""
    for event in events:
        for at in event.consumers:
            hold = Hold(Kind.WAITING, at.consumer, event.id, event.type or "")
            if at.outcome == IN_EFFECT:
                continue
            if at.dead_letters:
                yield _given_up(hold, at)
            elif at.record is not None and at.record.status in (FAILED, IN_PROGRESS):
                kind = Kind.RUNNING if at.record.held else Kind.CRASHED
                if at.record.status == FAILED:
                    kind = Kind.RETRYING
                yield hold._replace(kind=kind, attempts=at.record.attempt, error=at.error)
            elif at.record is not None and at.record.status == QUARANTINED:
                yield without_letter(hold, at.record.attempt, at.error)
            elif not at.deliveries and event.copies:
                since = min(copy.time for copy in event.copies)
                yield hold._replace(since_ms=since.timestamp() * 1000)


def _given_up(hold: Hold, at: AtConsumer) -> Hold:
    newest = max(at.dead_letters, key=lambda letter: letter.sent)
    releases = at.record is not None and at.record.status == QUARANTINED
    return hold._replace(
        kind=Kind.GIVEN_UP,
        since_ms=newest.sent.timestamp() * 1000,
        error=newest.error or newest.reason,
        attempts=0 if at.record is None else at.record.attempt,
        letters=len(at.dead_letters),
        letter_id=newest.id,
        queue=newest.queue,
        command=redrive_of(newest, releases=releases),
    )


def _settled(published: Iterable[Published], order_id: str) -> Settlement | None:
    own = [each for each in published if each.named and each.named.order_id == order_id]
    settlements = [each for each in own if each.outcome is not None and not each.replayed]
    if not settlements:
        return None
    newest = max(settlements, key=lambda each: each.time)
    completed = None
    if newest.outcome != "completed":
        completions = (each.time for each in own if each.type == "CarRideCompleted")
        completed = min(completions, default=None)
    return Settlement(str(newest.outcome), newest.time, completed)


def _besides_events(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an item has besides events and empty values, and a timeline's status."""
    attributes = dict[str, Any]()
    has_timeline = False
    for name, value in item.items():
        if not name.startswith(EVENT_PREFIX):
            if value != {}:
                attributes[name] = value
        elif "data" in value:
            has_timeline = True
    if has_timeline:
        attributes["status"] = latest_in(timeline_of(item))["status"]
    return attributes


def event(stack: StackRef, event_id: str) -> Event:
    """Return an event, decoded, and what became of it at each consumer.

    ``event_id`` is its idempotency id, the id that another producer gave it, or EventBridge's.

    Raises:
        UnknownError: nothing is known of it.
    """
    name = _uuid(event_id)
    known = _read(stack, name, {name: None}, {})
    # Another producer's id leads to the idempotency id, which is derived from it.
    wanted = {name, *known.names}
    order_id = _ride_named_by(known)
    if order_id is not None:
        known = _of_ride(stack, order_id)  # the tables and logs of its ride tell more
    for each in known.names:
        found = _event(known, each)
        ids = {found.id} | {copy.event_id for copy in found.copies}
        if wanted & ids:
            return found
    raise _unknown(f"event {name}", stack, known)


def _uuid(event_id: str) -> str:
    try:
        return str(UUID(event_id))
    except ValueError:
        raise UnknownError(
            f"{event_id!r} is not the id of an event: write a UUID. `ride` takes a ride's id"
        ) from None


def _ride_named_by(known: _Known) -> str | None:
    """Return the ride that an event belongs to; None if nothing names it.

    An event that breaks the contract may name no ride.
    """
    named = [ride_of(body) for body in known.bodies.values()]
    named += [letter.ride for letter in known.letters.found]
    named += [delivery.ride for delivery in known.evidence.deliveries]
    return next(filter(is_ride, named), None)


def _unknown(what: str, stack: StackRef, known: _Known) -> UnknownError:
    kept = f"{known.evidence.since:%Y-%m-%d %H:%M UTC}"
    where = f"not in the tables, in the dead-letter queues, or in the logs, kept since {kept}"
    return UnknownError(
        f"nothing is known of {what} in {stack.name} ({stack.region}): it is {where}"
    )


def is_ride(order_id: str | None) -> bool:
    """Return whether this can be the id of a ride."""
    try:
        msgspec.convert(order_id, OrderID)
    except msgspec.ValidationError:
        return False
    return True


def check_ride(order_id: str) -> None:
    """Refuse what cannot be the id of a ride."""
    if not is_ride(order_id):
        raise UnknownError(
            f"{order_id!r} is not the id of a ride: write letters, digits, '_', '.', '-', as in "
            "order_01"
        )


def _of_ride(stack: StackRef, order_id: str) -> _Known:
    check_ride(order_id)
    items = tables_of(stack, order_id)
    return _read(stack, order_id, candidates(order_id, items), items)


def _read(
    stack: StackRef,
    text: str,
    candidates: Mapping[str, Named | None],
    items: Mapping[str, Mapping[str, Any]],
) -> _Known:
    """Read what is known of some facts, and of events that state an id: the ride's, or their own.

    ``text`` is the id, ``candidates`` are the facts, and ``items`` what tables have of the ride.
    """
    at = datetime.now(UTC)
    effects = ride_items(items)
    bookings = [booked_ride(items["BookingTable"])] if items.get("BookingTable") else []
    records = _records(stack, candidates, at)
    start = _start(records, bookings, effects)

    on_bus = _logged(stack, text, start)
    logged = dict[str, Named | None]()
    broken = set[str]()
    for each in on_bus:
        if each.published.fact:
            logged[each.published.fact] = each.published.named
        else:
            broken.add(each.published.event_id)
    unknown = {fact: named for fact, named in logged.items() if fact not in candidates}
    records |= _records(stack, unknown, at)
    facts = {**candidates, **logged}
    outbox = [item["id"]["S"] for item in tables.under(stack, "OutboxTable", "id", facts)]
    in_effect = _in_effect(effects, records)
    recorded = {key.partition("#")[2] for key in (*records, *in_effect)}
    deliveries = _deliveries(stack, text, {*logged, *outbox, *recorded}, broken, start)

    delivered = {each.fact for each in deliveries if each.fact}
    names = {*logged, *outbox, *recorded, *delivered}
    due = _due({name: facts.get(name) for name in names}, in_effect, deliveries)
    if broken or not names:
        due = {each.name for each in CONSUMERS}
    letters = _letters(stack, due, {text, *facts, *broken})
    since = reading.kept_since(stack)
    evidence = Evidence(
        consumers=reading.enabled(stack),
        published=[each.published for each in on_bus],
        deliveries=deliveries,
        dead_letters=[_as_evidence(letter) for letter in letters.found],
        items=effects,
        outbox=dict.fromkeys(outbox, at),
        bookings=bookings,
        at=at,
        since=since,
    )
    of_letters = {_ids_of(letter)[0] for letter in letters.found}
    return _Known(
        evidence=evidence,
        names={*names, *broken, *of_letters},
        facts=facts,
        items=items,
        records=records,
        in_effect=in_effect,
        bodies={each.published.event_id: each.body for each in on_bus},
        letters=letters,
    )


def _records(
    stack: StackRef, facts: Mapping[str, Named | None], at: datetime
) -> dict[str, _Stored]:
    """Return the records that consumers have of some facts, by key, with their meaning."""
    records = {}
    for record in StackRecords(stack).at(keys_of(facts)):
        meaning = explain(record, at, MOST_ATTEMPTS)
        records[record.key] = _Stored(meaning, record.error or "")
    return records


def _start(
    records: Mapping[str, _Stored],
    bookings: Iterable[BookedRide],
    effects: Iterable[RideItem],
) -> datetime | None:
    """Return the time from which logs are read, or None if no time is known."""
    times = [each.record.created for each in records.values() if each.record.created]
    times += [booking.booked for booking in bookings]
    for item in effects:
        times += [effect.time for effect in item.effects]
    known = [time for time in times if time > ALWAYS]
    if not known:
        return None
    return min(known) - _RETRIED


def _in_effect(effects: Iterable[RideItem], records: Mapping[str, _Stored]) -> set[str]:
    """Return ``<consumer>#<idempotency id>`` of each effect."""
    keys = {key for key, each in records.items() if each.record.status == COMPLETED}
    for item in effects:
        for fact in item.facts:
            keys.add(f"{item.consumer}#{fact}")
    return keys


def _due(
    facts: Mapping[str, Named | None], in_effect: Collection[str], deliveries: Iterable[Delivered]
) -> set[str]:
    """Return the consumers whose dead-letter queues may hold one of these facts.

    Reading a queue takes a request for each ten messages, so the others are skipped.
    """
    due = set[str]()
    for key in keys_of(facts):
        if key not in in_effect:
            due.add(consumer_of(key))
    for delivery in deliveries:
        if delivery.outcome == observation.DEAD_LETTERED:
            due.add(delivery.consumer)
    return due


def _letters(stack: StackRef, consumers: Collection[str], ids: Collection[str]) -> _Letters:
    """Return the dead letters that have one of these ids, of some consumers and of no consumer."""
    queues = [PRODUCER_DLQ, LOG_RULE_DLQ]
    for each in reading.enabled(stack):
        if each.name in consumers:
            queues += [f"{each.resources}RuleDlq", f"{each.resources}Dlq"]
    found = list[DeadLetter]()
    unread = list[Unread]()
    for queue in queues:
        letters = Letters(stack, stack.outputs[f"{queue}Url"])
        for message in letters:
            letter = letter_of(queue, message)
            if not set(_ids_of(letter)).isdisjoint(ids):
                found.append(letter)
        if letters.hidden or letters.left:
            unread.append(Unread(queue, letters.hidden, letters.left))
    return _Letters(found, unread)


def _as_evidence(letter: DeadLetter) -> DeadLettered:
    return DeadLettered(letter.queue, letter.reason, letter.consumer, None, letter.fact)


def _logged(stack: StackRef, text: str, start: datetime | None) -> list[_OnBus]:
    """Return the events in the log of the bus that have an id."""
    found = []
    for line in reading.lines(stack, BUS, f'"{text}"', start):
        published = published_in(line)
        body = json_object(line["message"])
        if published and text in (published.fact, published.event_id, *_stated_by(body)):
            found.append(_OnBus(published, body))
    return found


def _deliveries(
    stack: StackRef,
    text: str,
    facts: Collection[str],
    broken: Collection[str],
    start: datetime | None,
) -> list[Delivered]:
    """Return the deliveries that name an id of a ride or an event, or some events, oldest first.

    ``broken`` are EventBridge's ids of events that break the contract: nothing else names them.
    """
    wanted = {text, *facts, *broken}
    found = set[Delivered]()
    terms = [f'$.correlationid = "{text}"']
    terms += [f'$.idempotencyid = "{name}"' for name in sorted({text, *facts})]
    terms += [f'$.event_id = "{name}"' for name in sorted({text, *broken})]
    for some in batched(terms, _IDS_AT_ONCE, strict=False):
        pattern = f"{{ {' || '.join(some)} }}"
        for consumer in CONSUMERS:
            for line in reading.lines(stack, consumer.resources, pattern, start):
                delivery = delivered_in(line)
                if delivery and wanted & {delivery.fact, delivery.event_id, delivery.ride}:
                    found.add(delivery)
    return sorted(found, key=lambda delivery: delivery.time)


def _ids_of(letter: DeadLetter) -> list[str]:
    """Return the ids of a dead-lettered event, the one that names it first.

    That is its idempotency id, or else EventBridge's, or else the message's.
    """
    ids = [letter.fact, *_stated_by(letter.event), letter.id]
    return [each for each in ids if each]


def _stated_by(event: Any) -> list[Any]:
    """Return the ids that an event states: EventBridge's, its producer's, the ride's."""
    return [*(_stated.search(event) or ()), ride_of(event)]


def _car(stack: StackRef, order_id: str, assignment: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the car of a ride, if it holds one."""
    car = assignment.get("carID")
    if car is None:
        return {}
    key = marshalling.item({"zone": zone(assignment["sector"]), "carID": car})
    table = stack.outputs["CarTableName"]
    found = stack.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)
    if found.get("Item", {}).get("rideID") == {"S": order_id}:
        return {car: order_id}
    return {}


class _Trace(NamedTuple):
    """What is left of an event: its copies on the bus, and its dead letters."""

    copies: list[Published]
    letters: list[DeadLetter]
    bodies: list[Any]

    @property
    def body(self) -> Any:
        """The event as the bus or a queue has it; None if neither has."""
        return next((body for body in self.bodies if body is not None), None)

    @property
    def type(self) -> str | None:
        types = [each.type for each in self.copies] + [each.type for each in self.letters]
        return next(filter(None, types), None)


def _trace(known: _Known, name: str) -> _Trace:
    trace = _Trace([], [], [])
    for copy in known.evidence.published:
        if name in (copy.fact, copy.event_id):
            trace.copies.append(copy)
            trace.bodies.append(known.bodies[copy.event_id])
    for letter in known.letters.found:
        if name in _ids_of(letter):
            trace.letters.append(letter)
            trace.bodies.append(letter.event)
    return trace


def _event(known: _Known, name: str) -> Event:
    trace = _trace(known, name)
    fact = known.facts.get(name)
    detail, breach = _decoded(trace)
    kind = fact.type if fact else trace.type
    consumers = [
        _at_consumer(known, consumer, name, trace.letters)
        for consumer in known.evidence.consumers
        if consumer.takes(kind) or f"{consumer.name}#{name}" in known.records
    ]
    return Event(
        id=name,
        type=kind,
        ride=fact.order_id if fact else ride_of(trace.body),
        version=fact.version if fact else None,
        detail=detail,
        breach=breach,
        copies=tuple(trace.copies),
        in_outbox=name in known.evidence.outbox,
        letters=tuple(each.without_event() for each in trace.letters if each.consumer is None),
        consumers=tuple(consumers),
        logged_since=known.evidence.since,
    )


def _decoded(trace: _Trace) -> tuple[Any, str | None]:
    """Return the CloudEvents event, or what there is instead, and how it breaks the contract."""
    if not trace.bodies:
        return None, None
    try:
        return parse_event(trace.body or {}).to_detail(), None
    except ContractError as error:
        return trace.body, str(error)


def _at_consumer(
    known: _Known, consumer: AuditedConsumer, name: str, letters: Iterable[DeadLetter]
) -> AtConsumer:
    key = f"{consumer.name}#{name}"
    record = None
    error = ""
    if key in known.records:
        record = known.records[key].record
        error = known.records[key].error
    deliveries = [
        each
        for each in known.evidence.deliveries
        if each.consumer == consumer.name and name in {each.fact, each.event_id}
    ]
    its_letters = [letter.without_event() for letter in letters if letter.consumer == consumer.name]
    reasons = [each.reason for each in deliveries if each.reason]
    return AtConsumer(
        consumer=consumer.name,
        outcome=_outcome(record, deliveries, its_letters, in_effect=key in known.in_effect),
        error=error or "".join(reasons[-1:]),
        deliveries=deliveries,
        record=record,
        dead_letters=its_letters,
    )


def _outcome(
    record: Explained | None,
    deliveries: Sequence[Delivered],
    letters: Sequence[DeadLetter],
    *,
    in_effect: bool,
) -> str:
    """Return what became of an event at a consumer, in a word or two."""
    if in_effect:
        return IN_EFFECT
    if letters:
        return "dead-lettered"
    if record is not None:
        return record.status
    if deliveries:
        return deliveries[-1].outcome
    return "unknown"
