"""Answers what became of a ride or of an event, and follows the bus. Changes nothing.

Tables are read by key, and log groups with filter patterns that name ids, from a day before the oldest known time.

`tail` reads the log groups too. A rule and a queue of its own would show the same events as the log of the bus, a
little sooner. But they would change the stack, and a crash would leave them behind.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from assignments import zone
from carride import telemetry
from carride.dedup import is_attribute
from carride.events import ContractError, parse_event
from carride.facts import FACTS
from carride.ride import OrderID
from idempotency import marshalling, observation
from idempotency.record import COMPLETED, QUARANTINED
from idempotency.stores.dynamodb import record_of
from ops.audit import evidence, queues, reading
from ops.audit.evidence import ALWAYS, CONSUMERS, AuditedConsumer, DeadLettered, Delivered, Evidence, Named, Published
from ops.audit.saga import check
from ops.letters import Letter, letter_of, ride_of
from ops.records import NO_RECORD, Explained, candidates, explain, items_of, keys_of, read, ride_items
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
_WHY: Final = {
    "dead-lettered": "its dead letter has left the queue",
    "expired": "it came after its expiry time, and was dropped",
    "unknown": "it may be on its way: EventBridge retries for 24 hours, and Lambda for 6",
}


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
    dead_letters: tuple[Letter, ...]
    """Without the event."""


class Event(NamedTuple):
    """An event, and what became of it."""

    id: str
    """Its idempotency id; EventBridge's id if it breaks the contract."""
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
    problems: tuple[str, ...]
    """What is wrong with it, and what could not be read."""
    parts: Mapping[str, Mapping[str, Any] | str]
    """What each table has; a sentence why a table has nothing."""
    events: tuple[Event, ...]


class _Known(NamedTuple):
    """Everything that was read about some events."""

    evidence: Evidence
    facts: Mapping[str, Named | None]
    """What is asked for, by idempotency id; None if only that is known."""
    items: Mapping[str, Mapping[str, Any]]
    """What the tables have about their ride, by logical id of the table."""
    records: Mapping[str, Explained]
    in_effect: Collection[str]
    """``<consumer>#<idempotency id>`` of each effect."""
    bodies: Mapping[str, Any]
    """The events in the log, by EventBridge's id."""
    letters: Sequence[Letter]
    names: Collection[str]
    """The idempotency ids of the events of which anything tells, or EventBridge's ids if they break the contract."""
    unread: Sequence[str]
    """Queues that could not be read, in words."""

    @property
    def kept(self) -> str:
        """Since when the log of events is complete, in words."""
        return f"kept since {self.evidence.since:%Y-%m-%d %H:%M UTC}"

    def events(self) -> list[Event]:
        """Return the events in the order of the ride's versions."""
        events = [_event(self, name) for name in self.names]
        return sorted(events, key=lambda each: (each.version or 0, each.type or "", each.id))


# ── One ride, one event ───────────────────────────────────────────────────────────────────────────────────────────────


def ride(stack: StackRef, order_id: str, *, since: datetime | None = None) -> Ride:
    """Return the state of a ride, and what became of each of its events at each consumer.

    Args:
        stack: where the ride is.
        order_id: its id.
        since: from when on to read the logs; by default from a day before the oldest time that a table has.

    Raises:
        OperatorError: the id has another form, or nothing is known of the ride.
    """
    _check_ride(order_id)
    known = _of_ride(stack, order_id, since)
    if not known.names and not known.evidence.bookings:
        raise _unknown(f"ride {order_id}", stack, known)
    saga = check(known.evidence._replace(cars=_car(stack, order_id, known.items["AssignmentTable"])))
    overdue = [f"overdue {saga.overdue[order_id]}"] if order_id in saga.overdue else []
    parts: dict[str, Mapping[str, Any] | str] = {
        each.name: _plain(known.items[each.table]) or "none of the ride's events has taken effect here"
        for each in CONSUMERS
        if each.table is not None
    }
    booking = _plain(known.items["BookingTable"]) or "not booked through the API: another producer published its events"
    return Ride(
        order_id,
        next(iter(saga.endings), "open"),
        (*saga.problems.get(order_id, ()), *overdue, *known.unread),
        {"booking": booking, **parts},
        tuple(known.events()),
    )


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
    known = _read(stack, name, {name: None}, {}, since)
    rides = [ride_of(body) for body in known.bodies.values()] + [letter.ride for letter in known.letters]
    rides += [each.ride for each in known.evidence.deliveries]
    if order_id := next(filter(_is_ride, rides), None):
        known = _of_ride(stack, order_id, since)  # the tables and logs of its ride tell more
    for each in known.events():
        if name in (each.id, *(copy.event_id for copy in each.copies)):
            return each
    raise _unknown(f"event {name}", stack, known)


def _unknown(what: str, stack: StackRef, known: _Known) -> OperatorError:
    where = f"not in the tables, in the dead-letter queues, or in the logs, {known.kept}"
    return OperatorError(f"nothing is known of {what} in {stack.name} ({stack.region}): it is {where}")


def _is_ride(text: str | None) -> bool:
    """Return whether a text can be the id of a ride."""
    try:
        return bool(msgspec.convert(text, OrderID))
    except msgspec.ValidationError:
        return False


def _check_ride(order_id: str) -> None:
    if not _is_ride(order_id):
        raise OperatorError(f"{order_id!r} is no id of a ride, such as order_01: write letters, digits, '_', '.', '-'")


def _of_ride(stack: StackRef, order_id: str, since: datetime | None) -> _Known:
    items = items_of(stack, order_id)
    return _read(stack, order_id, candidates(order_id, items), items, since)


def _read(
    stack: StackRef,
    text: str,
    facts: Mapping[str, Named | None],
    items: Mapping[str, Mapping[str, Any]],
    since: datetime | None,
) -> _Known:
    """Read what is known of some facts, and of events that have an id: of the ride, or their own."""
    at, consumers, rides, sqs = datetime.now(UTC), reading.enabled(stack), ride_items(items), stack.client("sqs")
    bookings = [reading.booked_ride(items["BookingTable"])] if items.get("BookingTable") else []
    records = _records(stack, facts, at)
    times = [each.created for each in records.values() if each.created] + [each.booked for each in bookings]
    times = [time for time in [*times, *(each.time for item in rides for each in item.effects)] if time > ALWAYS]
    start = since or (min(times) - _RETRIED if times else None)

    seen = _logged(stack, text, start)
    named = {each.fact: each.named for each, _ in seen if each.fact}
    records |= _records(stack, {fact: named[fact] for fact in named.keys() - facts.keys()}, at)
    facts = {**facts, **named}
    outbox = {item["id"]["S"]: at for item in read(stack, facts, table="OutboxTable", name="id")}
    in_effect = {f"{item.consumer}#{fact}" for item in rides for fact in item.facts}
    in_effect |= {key for key, record in records.items() if record.status == COMPLETED}
    names = {*named, *outbox, *(key.partition("#")[2] for key in (*records, *in_effect))}
    deliveries = _deliveries(stack, text, names, start)
    names |= {each.fact for each in deliveries if each.fact}

    # Reading a queue takes a request for each ten messages, so skip those in which nothing of this can be.
    due = {key.partition("#")[0] for key in {*keys_of({name: facts.get(name) for name in names})} - in_effect}
    due |= {each.consumer for each in deliveries if each.outcome == observation.DEAD_LETTERED}
    broken = {each.event_id for each, _ in seen if not each.fact}
    asked = [each.resources for each in consumers if each.name in due or broken or not names]
    dlqs = [PRODUCER_DLQ, evidence.LOG_RULE_DLQ, *(f"{each}{kind}" for each in asked for kind in ("RuleDlq", "Dlq"))]
    hidden = {queue: queues.waiting(sqs, stack.outputs[f"{queue}Url"]) for queue in dlqs}
    wanted = {text, *facts, *(each.event_id for each, _ in seen)}
    found = [letter_of(queue, each) for queue in dlqs for each in queues.peek(sqs, stack.outputs[f"{queue}Url"])]
    letters = [each for each in found if not {each.ride, *_names_of(each)}.isdisjoint(wanted)]
    return _Known(
        Evidence(
            consumers,
            [published for published, _ in seen],
            deliveries,
            [DeadLettered(each.queue, each.reason, each.consumer, None, each.fact) for each in letters],
            rides,
            outbox,
            bookings,
            at=at,
            grace=reading.DEFAULT_GRACE,
            since=reading.kept_since(stack, at),
        ),
        facts,
        items,
        records,
        in_effect,
        {each.event_id: body for each, body in seen},
        letters,
        names | broken | {_names_of(each)[0] for each in letters},
        [
            f"{queue}: another reader hides {count} messages: try again later"
            for queue, count in hidden.items()
            if count
        ],
    )


def _records(stack: StackRef, facts: Mapping[str, Named | None], at: datetime) -> dict[str, Explained]:
    found = (explain(record_of(item), at) for item in read(stack, keys_of(facts)))
    return {each.key: each for each in found}


def _logged(stack: StackRef, text: str, start: datetime | None) -> list[tuple[Published, Any]]:
    """Return the lines of the log of events that have an id, with the events."""
    lines = reading.lines(stack.client("logs"), stack.outputs["CarRideEventsLogGroupName"], f'"{text}"', start)
    found = [(reading.published_in(line), queues.read(line["message"])) for line in lines]
    return [(one, event) for one, event in found if one and text in (one.fact, one.event_id, ride_of(event))]


def _deliveries(stack: StackRef, text: str, facts: Collection[str], start: datetime | None) -> list[Delivered]:
    """Return the deliveries that name an id, of a ride or an event, and those of some facts; the oldest first."""
    logs, wanted, found = stack.client("logs"), {text, *facts}, set[Delivered]()
    terms = [f'$.correlationid = "{text}"', *(f'$.idempotencyid = "{name}"' for name in sorted(wanted))]
    for some in batched(terms, _IDS_AT_ONCE, strict=False):
        for each in CONSUMERS:
            lines = reading.lines(
                logs, stack.outputs[f"{each.resources}LogGroupName"], f"{{ {' || '.join(some)} }}", start
            )
            found |= {one for line in lines if (one := reading.delivered_in(line)) and wanted & {one.fact, one.ride}}
    return sorted(found, key=lambda each: each.time)


def _names_of(letter: Letter) -> tuple[str, ...]:
    """Return the names of a dead-lettered event: its idempotency id, EventBridge's id, or that of the message."""
    body = letter.event if isinstance(letter.event, Mapping) else {}
    return tuple(filter(None, (letter.fact, str(body.get("id") or ""), letter.id)))


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an item has besides the entries of events."""
    return {
        name: value for name, value in item.items() if not is_attribute(name) and name not in ("orderID", "openShard")
    }


def _car(stack: StackRef, order_id: str, assignment: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the car of a ride, if it holds one."""
    if "carID" not in assignment:
        return {}
    key = marshalling.item({"zone": zone(assignment["sector"]), "carID": assignment["carID"]})
    row = stack.client("dynamodb").get_item(TableName=stack.outputs["CarTableName"], Key=key, ConsistentRead=True)
    held = row.get("Item", {}).get("rideID") == {"S": order_id}
    return {assignment["carID"]: order_id} if held else {}


def _event(known: _Known, name: str) -> Event:
    seen = [each for each in known.evidence.published if name in (each.fact, each.event_id)]
    letters = [each for each in known.letters if name in _names_of(each)]
    bodies = [*(known.bodies[each.event_id] for each in seen), *(each.event for each in letters)]
    body = next((each for each in bodies if each is not None), None)
    detail, problem, fact = known.items.get("RideTable", {}).get(f"event#{name}"), None, known.facts.get(name)
    if bodies:
        try:
            detail = parse_event(body or {}).to_detail()
        except ContractError as error:
            detail, problem = body, f"it breaks the contract: {error}"
    kind = (
        fact.type if fact else next((each.type for each in seen), None) or next((each.type for each in letters), None)
    )
    gone = [f"it is in {each.queue}: {each.reason}" for each in letters if each.consumer is None]
    gone += ["it is in the outbox, and not on the bus yet: look at OutboxPipe"] if name in known.evidence.outbox else []
    gone += [f"it is not in the log of events, {known.kept}"]
    return Event(
        name,
        kind,
        fact.order_id if fact else ride_of(body),
        fact.version if fact else None,
        detail,
        problem or (None if seen else "; ".join(gone)),
        tuple(seen),
        tuple(
            _at_consumer(known, each, name, letters, is_broken=problem is not None)
            for each in known.evidence.consumers
            if each.takes(kind) or f"{each.name}#{name}" in known.records
        ),
    )


def _at_consumer(
    known: _Known, consumer: AuditedConsumer, name: str, letters: Iterable[Letter], *, is_broken: bool
) -> AtConsumer:
    runs = [each for each in known.evidence.deliveries if (each.consumer, each.fact) == (consumer.name, name)]
    record = known.records.get(f"{consumer.name}#{name}")
    left = tuple(replace(letter, event=None) for letter in letters if letter.consumer == consumer.name)
    outcome = "took effect"
    if f"{consumer.name}#{name}" not in known.in_effect:
        outcome = "dead-lettered" if left else _outcome(record, {each.outcome for each in runs})
    says = [_WHY[outcome]] if outcome in _WHY and not left else []
    if is_broken:
        says.append("it has no key, so there is no record, and deliveries do not name it")
    elif record is None:
        says.append(NO_RECORD)
    if not runs and not is_broken:
        says.append(f"no delivery is in its log, {known.kept}; an attempt that crashes logs none")
    return AtConsumer(consumer.name, outcome, "; ".join(says), tuple(runs), record, left)


def _outcome(record: Explained | None, outcomes: Collection[str]) -> str:
    """Return what became of an event that has not taken effect and has no dead letter."""
    if record is not None and record.status == QUARANTINED:
        return "quarantined"
    if record is not None:
        return "running" if record.held_until is not None else "waiting for retry"
    for logged, outcome in ((observation.DEAD_LETTERED, "dead-lettered"), (observation.EXPIRED, "expired")):
        if logged in outcomes:
            return outcome
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
        _check_ride(ride)
    for given, known, what in ((type, FACTS, "type of event"), (outcome, _OUTCOMES, "outcome")):
        if given not in (None, *known):
            raise OperatorError(f"there is no {what} {given}: give one of {', '.join(sorted(known))}")
    begin, shown = since or datetime.now(UTC), dict[str, int]()
    while True:
        started = datetime.now(UTC)
        for each in sorted(_unseen(stack, ride or outcome or type, begin, shown), key=lambda each: each.time):
            if type in (None, each.type) and (_is_wanted(each, ride, outcome)):
                yield each
        if not follow:
            return
        begin = max(begin, started - _OVERLAP)  # a line can appear late, so the last seconds are read again
        for name in [name for name, timestamp in shown.items() if timestamp < begin.timestamp() * 1000]:
            del shown[name]
        pause(_POLL_S)


def _unseen(
    stack: StackRef, text: str | None, begin: datetime, shown: dict[str, int]
) -> Iterator[Published | Delivered]:
    """Yield what is in new lines with a text, and add the lines to those that were shown."""
    for resources in ("CarRideEvents", *(each.resources for each in CONSUMERS)):
        is_bus, group = resources == "CarRideEvents", stack.outputs[f"{resources}LogGroupName"]
        pattern = text or ("detail" if is_bus else telemetry.DELIVERY)
        for line in reading.lines(stack.client("logs"), group, f'"{pattern}"', begin):
            name = f"{group}/{line.get('eventId', line['message'])}"
            found = reading.published_in(line) if is_bus else reading.delivered_in(line)
            if name not in shown and found is not None:
                yield found
            shown[name] = line["timestamp"]


def _is_wanted(found: Published | Delivered, ride: str | None, outcome: str | None) -> bool:
    if isinstance(found, Delivered):
        return ride in (None, found.ride) and outcome in (None, found.outcome)
    # An event that breaks the contract was found by its text.
    return outcome is None and (found.named is None or ride in (None, found.named.order_id))
