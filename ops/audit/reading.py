"""Reads the evidence of a deployed stack from its resources, and changes nothing.

The log group of the bus's catch-all rule shows which events were published. Events that the rule
could not log lie in its dead-letter queue; they count as published too.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, cast

from assignment_table import free
from assignments import parked
from carride import telemetry
from carride.events import (
    DETAIL_TYPE,
    SOURCES,
    ContractError,
    RideEvent,
    idempotency_id,
    parse_event,
)
from carride.facts import ALIASES, CarRideOverdue
from carride.history import EVENT_PREFIX, merged
from carride_idempotency import marshalling, observation
from carride_idempotency.fingerprint import fingerprint
from carride_idempotency.keys import LETTER
from carride_idempotency.record import COMPLETED, QUARANTINED
from ops import tables
from ops.audit import evidence
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    COPY,
    AuditedConsumer,
    BookedRide,
    DeadLettered,
    Delivered,
    Effect,
    Evidence,
    GatewayPayment,
    Named,
    Published,
    RideItem,
)
from ops.audit.queues import Letters, dead_letter, id_in, json_object, opened, waiting
from ops.stack import StackRef

DEFAULT_GRACE: Final = timedelta(minutes=15)
BUS: Final = "CarRideEvents"
"""Prefix of the logical id of the bus's log group."""

_DETAILS: Final = {evidence.DISPATCH: "carID", evidence.PAYMENT: "amount"}
"""The attribute of an item that says more than its state, by consumer."""
_DELIVERY_LINES: Final = f'{{ $.message = "{telemetry.DELIVERY}" }}'
_ENABLED: Final = "ENABLED"
AUDITED_RULES: Final = {
    evidence.LOG_RULE: "events are not logged",
    "PartnersRule": "partners get nothing",
    "PartnersIdempotencyIdRule": "partners get no event with idempotencyId",
    "PartnersOlderRule": "partners get no event in the older envelope",
}
"""The rules whose deliveries the audit cannot count, and what their failure means."""
_CLOCKS_AGREE: Final = timedelta(seconds=5)
"""How far the clocks of AWS and of this machine may be apart, with the time of an answer."""
FORGOTTEN: Final = "forgotten#"
"""The prefix of the keys of items that mark records which an operator has deleted."""
REDRIVEN: Final = "redriven#"
"""The prefix of the keys of items that count redrives."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = timedelta(minutes=2)
"""How long a line takes to appear in its log group, at most."""
READING: Final = Lock()
"""Held while a stack is read: a reading hides dead letters for a moment, and would make another one
incomplete."""


def regional_evidence(
    stack: StackRef, grace: timedelta, payments: Sequence[GatewayPayment] | None
) -> Evidence:
    """Read all evidence of a stack in one region, as `collect_evidence` says. Hold `READING`."""
    at, since = _log_times(stack)
    consumers = enabled(stack)
    # Read effects before their causes, so that the cause of each effect is found. Read the tables
    # before the queues, because an event moves from its consumer to a dead-letter queue.
    records = read_records(stack)
    items = [item for each in consumers for item in ride_items(stack, each, records)]
    logs = {each.name: list(deliveries(stack, each)) for each in consumers}
    for each in consumers:
        if each.table is None:
            items += logged_items(each.name, logs[each.name])
    tables_read = _tables(stack)
    queues = _queues(stack, consumers)
    # A letter is marked before it leaves its queue.
    marks = marks_of(stack)
    logged = list(published(stack))
    known = {event.event_id for event in logged}
    unlogged = [event for event in queues.unlogged if event.event_id not in known]
    routes = _routes(stack, logged)
    return Evidence(
        consumers=consumers,
        published=logged + unlogged,
        deliveries=[delivery for found in logs.values() for delivery in found],
        dead_letters=queues.dead_letters,
        items=items,
        outbox=tables_read.outbox,
        bookings=tables_read.bookings,
        cars=tables_read.cars,
        unlisted_cars=tables_read.unlisted_cars,
        copies=copies_in(logged) if stack.local is not None else (),
        fingerprints=records.fingerprints,
        given_up=records.given_up,
        forgotten=marks.forgotten,
        redriven=marks.redriven,
        payments=payments,
        unread=queues.unread,
        routes=routes.states,
        broken_routes=routes.broken,
        archived=routes.archived,
        at=at,
        grace=grace,
        since=since,
    )


def copies_in(events: Iterable[Published]) -> set[str]:
    """Return the rides that consist of the copy of one event."""
    rides = {event.named.order_id for event in events if event.named is not None}
    return {ride for ride in rides if COPY in ride}


class _Tables(NamedTuple):
    """What tables without records or effects hold."""

    bookings: list[BookedRide]
    cars: dict[str, str | None]
    unlisted_cars: list[str]
    outbox: dict[str, datetime]


def _tables(stack: StackRef) -> _Tables:
    dynamodb = stack.client("dynamodb")
    outputs = stack.outputs
    cars = list(scan(dynamodb, outputs["CarTableName"]))
    return _Tables(
        bookings=[booked_ride(item) for item in scan(dynamodb, outputs["BookingTableName"])],
        cars=rides_of_cars(cars),
        unlisted_cars=[row["carID"] for row in cars if is_unlisted(row)],
        outbox=outbox_times(dynamodb, outputs["OutboxTableName"]),
    )


class _Queues(NamedTuple):
    """What the queues hold."""

    dead_letters: list[DeadLettered]
    unlogged: list[Published]
    """Events that the bus accepted and could not log."""
    unread: dict[str, int]
    """Messages that could not be read, by queue."""


def _queues(stack: StackRef, consumers: Iterable[AuditedConsumer]) -> _Queues:
    sqs = stack.client("sqs")
    readers = _dead_letter_queues(stack, consumers)
    found = {queue: Letters(stack, stack.outputs[f"{queue}Url"]) for queue in readers}
    unread = {queue: letters.hidden for queue, letters in found.items()}
    for each in consumers:
        url = stack.outputs.get(f"{each.resources}QueueUrl")
        if url is not None:
            unread[f"{each.resources}Queue"] = waiting(sqs, url, visible=True)
    dead_letters = list[DeadLettered]()
    unlogged = list[Published | None]()
    for queue, letters in found.items():
        for message in letters:
            dead_letters.append(dead_letter(queue, readers[queue], message))
            if queue == evidence.LOG_RULE_DLQ:
                unlogged.append(_unlogged(message))
        unread[queue] += letters.left
    return _Queues(
        dead_letters=dead_letters,
        unlogged=[event for event in unlogged if event is not None],
        unread={queue: count for queue, count in unread.items() if count},
    )


def _dead_letter_queues(
    stack: StackRef, consumers: Iterable[AuditedConsumer]
) -> dict[str, str | None]:
    """Return the stack's dead-letter queues with the consumer that did not process their events."""
    queues: dict[str, str | None] = {}
    for queue in evidence.OTHER_DLQS:
        if f"{queue}Url" in stack.outputs:
            queues[queue] = None
    for each in consumers:
        queues[f"{each.resources}RuleDlq"] = each.name
        queues[f"{each.resources}Dlq"] = each.name
    return queues


class _Records(NamedTuple):
    """What the tables of records, and the marks of operators, tell."""

    timelines: list[dict[str, Any]]
    """The items of rides that records keep, as `carride.history.merged` returns them."""
    committed: dict[str, datetime]
    """When the records that keep an entry were committed, by idempotency id."""
    fingerprints: dict[str, str]
    """Of the payloads that took effect, by key."""
    given_up: list[str]
    """The keys that are quarantined, and whose letter their consumer has sent."""


def read_records(stack: StackRef) -> _Records:
    """Read the tables of records whole."""
    dynamodb = stack.client("dynamodb")
    kept = list[dict[str, Any]]()
    found = _Records([], {}, {}, [])
    for table in evidence.RECORD_TABLES:
        for item in scan(dynamodb, stack.outputs[f"{table}Name"]):
            key = item["idempotencyKey"]
            if "entry" in item:
                kept.append(item)
                if "updatedAt" in item:
                    found.committed[key.partition("#")[2]] = _of_ms(int(item["updatedAt"]))
            if item.get("status") == COMPLETED and "fingerprint" in item:
                found.fingerprints[key] = item["fingerprint"]
            if item.get("status") == QUARANTINED and item.get("deadLettered") and LETTER not in key:
                found.given_up.append(key)
    found.timelines.extend(merged(kept))
    return found


class Marks(NamedTuple):
    """What operators have left behind."""

    forgotten: list[str]
    """The keys whose records an operator has deleted."""
    redriven: dict[str, datetime]
    """When a dead letter was last sent to its consumer again, by the key of the record."""


def marks_of(stack: StackRef) -> Marks:
    """Read what operators have left behind in `OperatorTable`."""
    found = Marks([], {})
    for mark in scan(stack.client("dynamodb"), stack.outputs[f"{evidence.MARKS}Name"]):
        name = mark["id"]
        if name.startswith(FORGOTTEN):
            found.forgotten.append(name.removeprefix(FORGOTTEN))
        if name.startswith(REDRIVEN) and "redrivenAt" in mark:
            found.redriven[name.removeprefix(REDRIVEN)] = _of_ms(int(mark["redrivenAt"]))
    return found


def _log_times(stack: StackRef) -> tuple[datetime, datetime]:
    """Return the present, and since when the log of events is complete."""
    group = stack.outputs[f"{BUS}LogGroupName"]
    answer = stack.client("logs").describe_log_groups(logGroupNamePrefix=group)
    at = _present(answer)
    for each in answer["logGroups"]:
        if each["logGroupName"] == group and "retentionInDays" in each:
            return at, at - timedelta(days=each["retentionInDays"])
    return at, ALWAYS


def _present(answer: Mapping[str, Any]) -> datetime:
    """Return the present by AWS's clock, which an answer states in seconds.

    If the clock of this machine agrees, it counts, because it is finer.
    """
    here = datetime.now(UTC)
    stated = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if stated is None:
        return here
    there = parsedate_to_datetime(stated)
    if abs(here - there) <= _CLOCKS_AGREE:
        return here
    return there


def kept_since(stack: StackRef) -> datetime:
    """Return since when the log of events is complete."""
    _, since = _log_times(stack)
    return since


def enabled(stack: StackRef) -> list[AuditedConsumer]:
    """Return the consumers that get events.

    A parameter can disable the rule of some consumers; an output of the stack then says so.
    """
    found = []
    for each in CONSUMERS:
        state = stack.outputs.get(f"{each.resources}RuleState", _ENABLED)
        if state == _ENABLED:
            found.append(each)
    return found


def published(stack: StackRef) -> Iterator[Published]:
    """Yield every ride event in the log of the bus.

    An unreadable line may have been any event: it is yielded under EventBridge's id, or the line's
    id if it has none.
    """
    for line in lines(stack, BUS):
        event = published_in(line)
        if event is not None:
            yield event


def published_in(line: Mapping[str, Any]) -> Published | None:
    """Return the ride event in a line of the bus's log, or None."""
    text = line["message"]
    name = f"unreadable line {line.get('eventId')}"
    return _published(json_object(text), text, name, _logged_at(line))


def _published(event: Any, text: str, name: str, time: datetime) -> Published | None:
    """Return a published event, under ``name`` if it is unreadable; None if it is not a ride's."""
    match event:
        case {"id": str(event_id), "source": str(source), "detail-type": str(detail_type)}:
            if source not in SOURCES or detail_type != DETAIL_TYPE:
                return None
        case _:
            return Published(id_in(text) or name, None, None, time=time)
    found = Published(
        event_id,
        type_of(event),
        None,
        time=time,
        replayed="replay-name" in event,
        region=str(event["region"]) if "region" in event else None,
        sent=_time_or_none(event.get("time")),
    )
    try:
        parsed = parse_event(event)
    except ContractError:
        return found
    found = found._replace(missing_for_partners=missing_for_partners(event["detail"]))
    return _with_contract(found, parsed)


def _with_contract(found: Published, event: RideEvent) -> Published:
    """Return a published event that honours the contract, with what it states."""
    named = Named(event.subject, event.type, event.data.version)
    return found._replace(
        fact=event.idempotencyid,
        named=named,
        expires=event.expirytime,
        adopted=event.idempotencyid != idempotency_id(*named),
        fingerprint=fingerprint(event.payload),
        price=event.data.price,
        outcome=event.data.outcome if isinstance(event.data, CarRideOverdue) else None,
        customer=event.data.customer_id,
        car=getattr(event.data, "car_id", None),
        payment=getattr(event.data, "payment_id", None),
    )


def _unlogged(message: Any) -> Published | None:
    """Return the event in a message of the log rule's dead-letter queue."""
    sent = message.get("Attributes", {}).get("SentTimestamp")
    time = ALWAYS if sent is None else _of_ms(int(sent))
    _, event = opened(message)
    name = f"message {message['MessageId']}"
    return _published(event, message["Body"], name, time)


def type_of(event: Mapping[str, Any]) -> str | None:
    """Return the type of an event in either envelope, which decides the consumers that get it."""
    match event:
        case {"detail": {"type": str(name)}} | {"detail": {"attributes": {"type": str(name)}}}:
            return ALIASES.get(name, name)
        case _:
            return None


def deliveries(
    stack: StackRef, consumer: AuditedConsumer, since: datetime | None = None
) -> Iterator[Delivered]:
    """Yield every delivery that a consumer has logged, from a time on."""
    for line in lines(stack, consumer.resources, _DELIVERY_LINES, since):
        delivery = delivered_in(line)
        if delivery is not None:
            yield delivery


def delivered_in(line: Mapping[str, Any]) -> Delivered | None:
    """Return the delivery in a line of a consumer's log, or None.

    The line lacks what the logger did not know.
    """
    match json_object(line["message"]):
        case {
            "message": telemetry.DELIVERY,
            "consumer": str(name),
            "outcome": str(outcome),
            **labels,
        }:
            _, _, fact = str(labels.get("key", "")).partition("#")
            stated = cast("Mapping[str, Any]", labels)
            return Delivered(
                consumer=name,
                outcome=outcome,
                fact=fact or None,
                time=_logged_at(line),
                attempt=stated.get("attempt"),
                delivery=stated.get("delivery"),
                reason=stated.get("reason"),
                type=stated.get("type"),
                ride=stated.get("correlationid"),
                event_id=stated.get("event_id"),
            )
    return None


def ride_items(
    stack: StackRef, consumer: AuditedConsumer, records: _Records | None = None
) -> Iterator[RideItem]:
    """Yield every ride in a consumer's table.

    ``records`` are what its stack's records hold, if known.
    """
    if consumer.table is None:
        return
    if consumer.table == evidence.HISTORY:
        found = records or read_records(stack)
        for item in found.timelines:
            yield ride_item(consumer, item, found.committed)
        return
    for item in scan(stack.client("dynamodb"), stack.outputs[f"{consumer.table}Name"]):
        yield ride_item(consumer, item)


def ride_item(
    consumer: AuditedConsumer,
    item: Mapping[str, Any],
    committed: Mapping[str, datetime] | None = None,
) -> RideItem:
    """Return an item of a consumer's table, given as Python values.

    ``committed`` says when effects were committed, by idempotency id, if their entries do not.
    """
    effects = []
    for name, entry in item.items():
        if name.startswith(EVENT_PREFIX):
            effect = _effect(item["orderID"], name.removeprefix(EVENT_PREFIX), entry)
            time = (committed or {}).get(effect.fact, effect.time)
            effects.append(effect._replace(time=time))
    return RideItem(
        consumer=consumer.name,
        order_id=item["orderID"],
        effects=tuple(effects),
        total=item["effects"],
        state=item.get("state"),
        detail=item.get(_DETAILS.get(consumer.name, "")),
        open_since=_time_or_none(item.get("openSince")),
        raise_refused=bool(item.get("raiseRefused")),
    )


def _effect(order_id: str, fact: str, entry: Mapping[str, Any]) -> Effect:
    """Return the effect that an entry of an item remembers. An entry may lack its event."""
    if "type" not in entry:
        return Effect(fact)
    return Effect(
        fact=fact,
        named=Named(order_id, entry["type"], entry["sequence"]),
        time=_time(entry.get("time")),
        emitted=tuple(entry.get("emitted", ())),
    )


def booked_ride(item: Mapping[str, Any]) -> BookedRide:
    """Return an item of the API's table, given as Python values."""
    return BookedRide(
        order_id=item["orderID"],
        version=item["version"],
        booked=_time(item.get("bookedAt")),
        open_since=_time_or_none(item.get("changedAt")),
        status=item.get("status"),
        price=item.get("price"),
    )


def logged_items(consumer: str, logged: Iterable[Delivered]) -> Iterator[RideItem]:
    """Yield the effects of a consumer without a table, by its log: an item for each event.

    A duplicate shows that the event took effect: the attempt that committed it may have died before
    it logged that.
    """
    commits = Counter[str]()
    times = dict[str, datetime]()
    for delivery in logged:
        is_commit = delivery.outcome in observation.COMMITTED
        is_duplicate = delivery.outcome == observation.DUPLICATE
        if delivery.fact is not None and (is_commit or is_duplicate):
            commits[delivery.fact] += is_commit
            times.setdefault(delivery.fact, delivery.time)
    for fact, count in commits.items():
        effect = Effect(fact, None, times[fact])
        yield RideItem(consumer, fact, (effect,), max(1, count))


def rides_of_cars(rows: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the ride of each car. If several items name one car, an item with a ride counts."""
    cars: dict[str, str | None] = {}
    for row in rows:
        ride = row.get("rideID")
        if ride is not None:
            cars[row["carID"]] = str(ride)
        else:
            cars.setdefault(row["carID"], None)
    return cars


def is_unlisted(row: Mapping[str, Any]) -> bool:
    """Return whether an item is a free car that is not where dispatch looks for it in the index."""
    car = parked(row)
    if car is None or "rideID" in row:
        return False
    return any(row.get(name) != value for name, value in free(car).items())


def outbox_times(dynamodb: Any, table: str) -> dict[str, datetime]:
    """Return the ids of the events in the outbox, with their times."""
    return {item["idempotencyid"]: _time(item.get("time")) for item in scan(dynamodb, table)}


def gateway_payments(ledger: str | Iterable[Mapping[str, Any]]) -> list[GatewayPayment]:
    """Return the payments of the gateway's ledger, or of its JSON: a list, or one as ``payments``.

    Raises:
        ValueError, LookupError, TypeError: the ledger has another form.
    """
    loaded = json.loads(ledger) if isinstance(ledger, str) else ledger
    payments = loaded["payments"] if isinstance(loaded, dict) else loaded
    return [
        GatewayPayment(
            order_id=each["reference"],
            status=each["status"],
            amount=each["amount"],
            captures=len(each["captures"]),
            refunds=len(each["refunds"]),
        )
        for each in payments
    ]


class _Routes(NamedTuple):
    """The routes whose deliveries the audit cannot count."""

    states: dict[str, str]
    broken: dict[str, str]
    """Why one delivers nothing, by name."""
    archived: int
    """The number of events in the archive."""


def _routes(stack: StackRef, logged: Iterable[Published]) -> _Routes:
    """Return the state of the log's and the partners' routes, and of the archive."""
    archive = _archive(stack)
    found = _Routes({}, {}, archive.get("EventCount", 0))
    for rule, effect in AUDITED_RULES.items():
        _add_rule(found, stack, rule, effect)
    subscriptions = f"{_subscriptions(stack)} subscriptions"
    found.states["partners' topic"] = f"{subscriptions}, whose deliveries the audit cannot see"
    withheld = [event for event in logged if event.missing_for_partners]
    if withheld:
        found.states[evidence.WITHHELD] = _named(withheld)
    days = archive.get("RetentionDays", 0)
    found.states["CarRideArchive"] = f"{found.archived:,} events counted, kept for {days} days"
    return found


def _add_rule(found: _Routes, stack: StackRef, rule: str, effect: str) -> None:
    """Add the state of a rule, and what its failure means if it delivers nothing."""
    rules = stack.named("AWS::Events::Rule")
    events = stack.client("events")
    if rule not in rules:
        found.broken[rule] = f"the stack has no {rule}: {effect}"
        return
    name = rules[rule]
    bus = stack.outputs["CarRideBusName"]
    state = events.describe_rule(Name=name, EventBusName=bus)["State"]
    answer = events.list_targets_by_rule(Rule=name, EventBusName=bus)
    targets = len(answer["Targets"])
    found.states[rule] = f"{state}, {targets} targets"
    if state != _ENABLED or not targets:
        found.broken[rule] = f"{rule} is {state} with {targets} targets: {effect}"


def _named(withheld: Sequence[Published]) -> str:
    """Return the number of events that partners cannot get, and the first ones with the reason."""
    first = [f"{each.event_id} has no {each.missing_for_partners}" for each in withheld[:3]]
    more = [] if len(withheld) == len(first) else ["…"]
    return f"{len(withheld):,}: {', '.join(first + more)}"


def missing_for_partners(detail: Mapping[str, Any]) -> str | None:
    """Return what the partners' rules need of an accepted event and do not find, or None."""
    if "specversion" not in detail:
        return None  # the contract requires all that the rule reads
    needed = ["specversion"]
    if "idempotencyid" in detail:
        needed += ["idempotencyid", "subject", "sequence"]
    else:
        needed += ["data"]  # not data_base64
    return next((name for name in needed if detail.get(name) is None), None)


def _subscriptions(stack: StackRef) -> int:
    """Return how many subscriptions the partners' topic has."""
    pager = stack.client("sns").get_paginator("list_subscriptions_by_topic")
    pages = pager.paginate(TopicArn=stack.outputs["PartnersTopicArn"])
    return sum(len(page.get("Subscriptions", ())) for page in pages)


def _archive(stack: StackRef) -> Mapping[str, Any]:
    _, _, name = stack.outputs["CarRideArchiveArn"].rpartition("/")
    found: Mapping[str, Any] = stack.client("events").describe_archive(ArchiveName=name)
    return found


def scan(dynamodb: Any, table: str, condition: str = "") -> Iterator[dict[str, Any]]:
    """Return the items of a table that meet a condition, as Python values."""
    return map(marshalling.values, tables.scan(dynamodb, table, condition))


def lines(
    stack: StackRef, resources: str, pattern: str = "", since: datetime | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log group that match a filter pattern, from a time on.

    ``resources`` is the prefix of the logical id of the group: that of a consumer's resources, or
    `BUS`.
    """
    request: dict[str, Any] = {
        "logGroupName": stack.outputs[f"{resources}LogGroupName"],
        "filterPattern": pattern,
    }
    if since is not None:
        request["startTime"] = max(0, _milliseconds(since))
    pages = stack.client("logs").get_paginator("filter_log_events").paginate(**request)
    return (line for page in pages for line in page["events"])


class Tail:
    """Reads the new lines of a log group, each once; arguments as in `lines`.

    CloudWatch reads from a whole millisecond on, so the lines of that millisecond are remembered. A
    line may appear later than a newer one by up to ``overlap``, or `_LATEST` if that is less.
    """

    def __init__(
        self,
        stack: StackRef,
        resources: str,
        since: datetime,
        overlap: timedelta,
        pattern: str = "",
    ) -> None:
        self._read = partial(lines, stack, resources, pattern)
        self._since_ms = _milliseconds(since)
        self._newest_ms = self._since_ms
        self._overlap = overlap
        self._known: dict[int, int] = {}  # times by hash of the lines that will be read again

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that have appeared since the last call."""
        began = datetime.now(UTC)
        for line in self._read(_of_ms(self._since_ms)):
            if self._is_new(line):
                yield line
        covered_ms = self._newest_ms - self._overlap // _MILLISECOND
        self._since_ms = max(self._since_ms, covered_ms, _milliseconds(began - _LATEST))
        self._forget_older()

    def _is_new(self, line: Mapping[str, Any]) -> bool:
        """Return whether a line is read for the first time, and remember it."""
        time_ms = int(line["timestamp"])
        name = hash(line.get("eventId") or (line["logStreamName"], time_ms, line["message"]))
        if name in self._known:
            return False
        self._known[name] = time_ms
        self._newest_ms = max(self._newest_ms, time_ms)
        return True

    def _forget_older(self) -> None:
        """Forget the lines that will not be read again."""
        again = {name: time for name, time in self._known.items() if time >= self._since_ms}
        self._known = again


def _logged_at(line: Mapping[str, Any]) -> datetime:
    return _of_ms(line.get("ingestionTime") or line["timestamp"])


def _milliseconds(time: datetime) -> int:
    """Return the whole milliseconds since the epoch. A float would lose one now and then."""
    return (time - _EPOCH) // _MILLISECOND


def _of_ms(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _time(text: object) -> datetime:
    """Return a stored time; if it cannot be read, one that is always too old to be judged."""
    return _time_or_none(text) or ALWAYS


def _time_or_none(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
