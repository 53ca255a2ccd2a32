"""Answers what became of a ride or of an event, and follows the bus. Changes nothing.

Tables are read by key, and log groups with filter patterns that name ids, from a day before the
oldest known time.

`tail` reads the log groups too. A rule and a queue of its own would show the same events as the log
of the bus, a little sooner. But they would change the stack, and a crash would leave them behind.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

import jmespath
import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from assignments import zone
from carride import telemetry
from carride.events import ContractError, parse_event
from carride.facts import FACTS
from carride.history import EVENT_PREFIX, timeline_of
from carride.ride import OrderID
from carride_idempotency import marshalling, observation
from carride_idempotency.record import COMPLETED
from carride_idempotency.stores.dynamodb import record_of
from ops.audit import evidence, queues, reading
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    AuditedConsumer,
    DeadLettered,
    Delivered,
    Evidence,
    Named,
    Published,
)
from ops.audit.reading import BUS, Tail, delivered_in, published_in
from ops.audit.saga import saga_of
from ops.dead_letters import DeadLetter, letter_of, ride_of
from ops.records import (
    NO_RECORD,
    Explained,
    candidates,
    explain,
    items_at,
    keys_of,
    ride_items,
    tables_of,
)
from ops.redrive import PRODUCER_DLQ
from ops.stack import OperatorError, StackRef
from ops.verbs import Moment, reads

_RETRIED: Final = timedelta(hours=25)
"""An event can be logged that long before the times that a table knows, because EventBridge retries
for 24 hours."""
_IDS_AT_ONCE: Final = 15
"""Ids in a filter pattern, which has at most 1,024 characters."""
_OVERLAP: Final = timedelta(seconds=20)
"""How late a line may appear in a log group."""
_POLL_S: Final = 1.0
_NO_ITEM: Final = (
    "nothing: no event of the ride has taken effect here, or it was not booked through the API"
)
_OUTCOMES: Final = observation.PROTECTED | {observation.UNPROTECTED}
_stated = jmespath.compile(
    "[id, detail.idempotencyid, detail.idempotencyId, detail.attributes.idempotencyId]"
)


class AtConsumer(NamedTuple):
    """What became of an event at a consumer; dead letters come without the event."""

    consumer: str
    outcome: str
    """``took effect``, ``dead-lettered``, the record's status, the last delivery's outcome, or
    ``unknown``."""
    says: str
    """What the record says, and why a part of the answer is missing."""
    deliveries: list[Delivered]
    record: Explained | None
    dead_letters: list[DeadLetter]


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
    says: str | None
    """How it breaks the contract, and where it is if it is not on the bus."""
    copies: tuple[Published, ...]
    consumers: tuple[AtConsumer, ...]


class Ride(NamedTuple):
    """A ride, how it ended in the words of the audit, and what became of its events."""

    order_id: str
    state: str
    problems: tuple[str, ...]
    """What is wrong with it, and what could not be read."""
    tables: Mapping[str, Mapping[str, Any] | str]
    """What each table has besides events; a sentence if it has nothing."""
    events: tuple[Event, ...]


class _Known(NamedTuple):
    """Everything that was read about some events, named by idempotency id, or EventBridge's if they have none."""

    evidence: Evidence
    names: Collection[str]
    facts: Mapping[str, Named | None]
    items: Mapping[str, Mapping[str, Any]]
    records: Mapping[str, Explained]
    in_effect: Collection[str]
    """``<consumer>#<idempotency id>`` of each effect."""
    bodies: Mapping[str, Any]
    """The events in the log, by EventBridge's id."""
    letters: Sequence[DeadLetter]
    unread: Sequence[str]
    kept: str
    """Since when the logs are complete, in words."""


@reads("ride", "order_01")
def ride(stack: StackRef, order_id: str, /) -> Ride:
    """Show where a ride is, and what became of each of its events at each consumer.

    Args:
        order_id: The ride's id, such as order_01.
    """
    known = _of_ride(stack, order_id)
    if not known.names and not known.evidence.bookings:
        raise _unknown(f"ride {order_id}", stack, known)
    cars = _car(stack, order_id, known.items["AssignmentTable"])
    saga = saga_of(known.evidence._replace(cars=cars, grace=reading.DEFAULT_GRACE))
    overdue = [f"overdue {saga.overdue[order_id]}"] if order_id in saga.overdue else []
    events = [_event(known, name) for name in known.names]
    events.sort(key=lambda each: (each.version or 0, each.type or "", each.id))
    problems = (*saga.problems.get(order_id, ()), *overdue, *known.unread)
    tables = {name: _besides_events(item) or _NO_ITEM for name, item in known.items.items()}
    return Ride(order_id, next(iter(saga.endings), "open"), problems, tables, tuple(events))


def _besides_events(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an item has besides events, and the ride's status by its timeline in the read model."""
    timeline = any(
        name.startswith(EVENT_PREFIX) and "data" in entry for name, entry in item.items()
    )
    status = {"status": timeline_of(item)[-1].data["status"]} if timeline else {}
    return {name: each for name, each in item.items() if not name.startswith(EVENT_PREFIX)} | status


@reads("event", "7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")
def event(stack: StackRef, event_id: str, /) -> Event:
    """Show an event, decoded, and what became of it at each consumer.

    Args:
        event_id: Its idempotency id, the id that another producer gave it, or EventBridge's id.
    """
    try:
        name = str(UUID(event_id))
    except ValueError:
        raise OperatorError(
            f"{event_id!r} is no id of an event, which is a UUID; `ride` takes a ride's id"
        ) from None
    known = _read(stack, name, {name: None}, {})
    # Another producer's id leads to the idempotency id, which is derived from it.
    wanted = {name, *known.names}
    rides = [ride_of(body) for body in known.bodies.values()] + [
        letter.ride for letter in known.letters
    ]
    rides += [each.ride for each in known.evidence.deliveries]
    # An event that breaks the contract may name another thing.
    if order_id := next(filter(_is_ride, rides), None):
        known = _of_ride(stack, order_id)  # the tables and logs of its ride tell more
    for each in (_event(known, each) for each in known.names):
        if wanted & {each.id, *(copy.event_id for copy in each.copies)}:
            return each
    raise _unknown(f"event {name}", stack, known)


def _unknown(what: str, stack: StackRef, known: _Known) -> OperatorError:
    where = f"not in the tables, in the dead-letter queues, or in the logs, {known.kept}"
    return OperatorError(
        f"nothing is known of {what} in {stack.name} ({stack.region}): it is {where}"
    )


def _is_ride(order_id: str | None) -> bool:
    try:
        msgspec.convert(order_id, OrderID)
    except msgspec.ValidationError:
        return False
    return True


def _check_ride(order_id: str) -> None:
    if not _is_ride(order_id):
        raise OperatorError(
            f"{order_id!r} is no id of a ride, such as order_01: write letters, digits, '_', '.', '-'"
        )


def _of_ride(stack: StackRef, order_id: str) -> _Known:
    _check_ride(order_id)
    items = tables_of(stack, order_id)
    return _read(stack, order_id, candidates(order_id, items), items)


def _read(
    stack: StackRef,
    text: str,
    facts: Mapping[str, Named | None],
    items: Mapping[str, Mapping[str, Any]],
) -> _Known:
    """Read what is known of some facts, and of events that have an id: of the ride, or their own."""
    at, consumers, rides, sqs = (
        datetime.now(UTC),
        reading.enabled(stack),
        ride_items(items),
        stack.client("sqs"),
    )
    bookings = [reading.booked_ride(items["BookingTable"])] if items.get("BookingTable") else []

    def recorded(facts: Mapping[str, Named | None]) -> dict[str, Explained]:
        return {
            each.key: each
            for each in (explain(record_of(item), at) for item in items_at(stack, keys_of(facts)))
        }

    records = recorded(facts)
    times = [each.created for each in records.values() if each.created] + [
        each.booked for each in bookings
    ]
    times = [
        time
        for time in [*times, *(each.time for item in rides for each in item.effects)]
        if time > ALWAYS
    ]
    start = min(times) - _RETRIED if times else None

    seen = _logged(stack, text, start)
    named = {each.fact: each.named for each, _ in seen if each.fact}
    records |= recorded({fact: named[fact] for fact in named.keys() - facts.keys()})
    facts = {**facts, **named}
    outbox = {
        item["id"]["S"]: at for item in items_at(stack, facts, table="OutboxTable", name="id")
    }
    in_effect = {f"{item.consumer}#{fact}" for item in rides for fact in item.facts}
    in_effect |= {key for key, record in records.items() if record.status == COMPLETED}
    names = {*named, *outbox, *(key.partition("#")[2] for key in (*records, *in_effect))}
    deliveries = _deliveries(stack, text, names, start)
    names |= {each.fact for each in deliveries if each.fact}

    # Reading a queue takes a request for each ten messages, so skip those in which nothing of this
    # can be.
    due = {
        key.partition("#")[0]
        for key in {*keys_of({name: facts.get(name) for name in names})} - in_effect
    }
    due |= {each.consumer for each in deliveries if each.outcome == observation.DEAD_LETTERED}
    broken = {each.event_id for each, _ in seen if not each.fact}
    asked = [each.resources for each in consumers if each.name in due or broken or not names]
    dlqs = [
        PRODUCER_DLQ,
        evidence.LOG_RULE_DLQ,
        *(f"{each}{kind}" for each in asked for kind in ("RuleDlq", "Dlq")),
    ]
    urls = {queue: stack.outputs[f"{queue}Url"] for queue in dlqs}
    hidden = {queue: count for queue, url in urls.items() if (count := queues.waiting(sqs, url))}
    every = [
        letter_of(queue, message)
        for queue, url in urls.items()
        for message in queues.peek(sqs, url)
    ]
    letters = [each for each in every if {*_names_of(each)} & {text, *facts, *broken}]
    dead = [
        DeadLettered(each.queue, each.reason, each.consumer, None, each.fact) for each in letters
    ]
    since, published = reading.kept_since(stack), [each for each, _ in seen]
    found = Evidence(
        consumers, published, deliveries, dead, rides, outbox, bookings, at=at, since=since
    )
    names |= broken | {_names_of(each)[0] for each in letters}
    bodies = {each.event_id: body for each, body in seen}
    unread = [
        f"{queue}: another reader hides {count} messages: try again later"
        for queue, count in hidden.items()
    ]
    kept = f"kept since {since:%Y-%m-%d %H:%M UTC}"
    return _Known(found, names, facts, items, records, in_effect, bodies, letters, unread, kept)


def _logged(stack: StackRef, text: str, start: datetime | None) -> list[tuple[Published, Any]]:
    """Return the lines of the log of events that have an id, with the events."""
    lines = reading.lines(stack, BUS, f'"{text}"', start)
    found = [(published_in(line), queues.json_object(line["message"])) for line in lines]
    return [
        (one, event)
        for one, event in found
        if one and text in (one.fact, one.event_id, *_told_by(event))
    ]


def _deliveries(
    stack: StackRef, text: str, facts: Collection[str], start: datetime | None
) -> list[Delivered]:
    """Return the deliveries that name an id, of a ride or an event, and those of some facts; the oldest first."""
    wanted, found = {text, *facts}, set[Delivered]()
    terms = [
        f'$.correlationid = "{text}"',
        *(f'$.idempotencyid = "{name}"' for name in sorted(wanted)),
    ]
    for some in batched(terms, _IDS_AT_ONCE, strict=False):
        for each in CONSUMERS:
            lines = reading.lines(stack, each.resources, f"{{ {' || '.join(some)} }}", start)
            found |= {
                one
                for line in lines
                if (one := delivered_in(line)) and wanted & {one.fact, one.ride}
            }
    return sorted(found, key=lambda each: each.time)


def _names_of(letter: DeadLetter) -> list[str]:
    """Return the names of a dead-lettered event; the first is its idempotency id, EventBridge's, or the message's."""
    return [name for name in (letter.fact, *_told_by(letter.event), letter.id) if name]


def _told_by(event: Any) -> list[Any]:
    """Return the ids that an event states: EventBridge's, the producer's own, in any envelope, and the ride's."""
    return [*(_stated.search(event) or ()), ride_of(event)]


def _car(stack: StackRef, order_id: str, assignment: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the car of a ride, if it holds one."""
    if "carID" not in assignment:
        return {}
    key = marshalling.item({"zone": zone(assignment["sector"]), "carID": assignment["carID"]})
    row = stack.client("dynamodb").get_item(
        TableName=stack.outputs["CarTableName"], Key=key, ConsistentRead=True
    )
    held = row.get("Item", {}).get("rideID") == {"S": order_id}
    return {assignment["carID"]: order_id} if held else {}


def _event(known: _Known, name: str) -> Event:
    seen = [each for each in known.evidence.published if name in (each.fact, each.event_id)]
    letters = [each for each in known.letters if name in _names_of(each)]
    bodies = [*(known.bodies[each.event_id] for each in seen), *(each.event for each in letters)]
    body = next((each for each in bodies if each is not None), None)
    detail, problem, fact = body, None, known.facts.get(name)
    if bodies:
        try:
            detail = parse_event(body or {}).to_detail()
        except ContractError as error:
            problem = f"it breaks the contract: {error}"
    kind = (
        fact.type
        if fact
        else next(filter(None, (each.type for found in (seen, letters) for each in found)), None)
    )
    says = [problem] + [
        f"it is in {each.queue}: {each.reason}" for each in letters if each.consumer is None
    ]
    if name in known.evidence.outbox and not seen:
        says.append("it is in the outbox, and not in the log of the bus: look at OutboxPipe")
    says += [] if seen else [f"it is not in the log of events, {known.kept}"]
    order_id, version = (fact.order_id, fact.version) if fact else (ride_of(body), None)
    takers = [
        each
        for each in known.evidence.consumers
        if each.takes(kind) or f"{each.name}#{name}" in known.records
    ]
    consumers = tuple(_at_consumer(known, each, name, letters) for each in takers)
    return Event(
        name,
        kind,
        order_id,
        version,
        detail,
        "; ".join(filter(None, says)) or None,
        tuple(seen),
        consumers,
    )


def _at_consumer(
    known: _Known, consumer: AuditedConsumer, name: str, letters: Iterable[DeadLetter]
) -> AtConsumer:
    key = f"{consumer.name}#{name}"
    runs = [
        each
        for each in known.evidence.deliveries
        if (each.consumer, each.fact) == (consumer.name, name)
    ]
    left = [replace(letter, event=None) for letter in letters if letter.consumer == consumer.name]
    record = known.records.get(key)
    outcome = record.status if record else runs[-1].outcome if runs else "unknown"
    if left:
        outcome = "dead-lettered"
    if key in known.in_effect:
        outcome = "took effect"
    says = [NO_RECORD if record is None else record.says]
    if not runs:
        says.append(
            f"no delivery is in its log, {known.kept}: it may be on its way, or an attempt crashed"
        )
    return AtConsumer(consumer.name, outcome, "; ".join(says), runs, record, left)


@reads("tail", "--ride order_01 --since 10m", "--outcome Failed", tool=False)
def tail(
    stack: StackRef,
    *,
    ride: str | None = None,
    type: str | None = None,  # noqa: A002 - the option's name
    outcome: str | None = None,
    since: Moment | None = None,
    follow: Annotated[bool, Parameter(negative="--no-follow")] = True,
    pause: Annotated[Callable[[float], object], Parameter(parse=False)] = time.sleep,
) -> Iterator[Published | Delivered]:
    """Show each event on the bus and each delivery to a consumer as it comes, until Ctrl-C.

    Args:
        ride: Only those of this ride.
        type: Only those of this type, such as CarRideAccepted.
        outcome: Only deliveries with this outcome, such as Failed or Takeover.
        since: Begin with those since then; by default with the next one.
        follow: Go on until Ctrl-C.
        pause: Waits for some seconds.
    """
    if ride is not None:
        _check_ride(ride)
    for given, known, what in ((type, FACTS, "type of event"), (outcome, _OUTCOMES, "outcome")):
        if given not in (None, *known):
            raise OperatorError(
                f"there is no {what} {given}: give one of {', '.join(sorted(known))}"
            )
    begin, text, tails = (
        since or datetime.now(UTC),
        ride or outcome or type,
        list[tuple[Callable[..., Any], Tail]](),
    )
    for resources in (BUS, *(each.resources for each in CONSUMERS)):
        found_in, every = (
            (published_in, "detail") if resources == BUS else (delivered_in, telemetry.DELIVERY)
        )
        tails.append((found_in, Tail(stack, resources, begin, _OVERLAP, f'"{text or every}"')))
    while True:
        found = (
            (found_in(line), line["timestamp"]) for found_in, tail in tails for line in tail.lines()
        )
        for each, _ in sorted(
            (pair for pair in found if pair[0]), key=lambda pair: (pair[0].time, pair[1])
        ):
            if isinstance(each, Delivered):
                is_wanted = ride in (None, each.ride) and outcome in (None, each.outcome)
            else:  # an event that breaks the contract was found by its text
                is_wanted = outcome is None and (
                    each.named is None or ride in (None, each.named.order_id)
                )
            if is_wanted and type in (None, each.type):
                yield each
        if not follow:
            return
        pause(_POLL_S)
