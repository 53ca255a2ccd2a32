"""Reads the evidence of a deployed stack from its tables, queues, log groups and rules, and changes nothing.

The log group of the bus's catch-all rule shows which events were published. Events that the rule
could not log lie in its dead-letter queue; they count as published too.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, Final

from carride import telemetry
from carride.events import DETAIL_TYPE, SOURCES, ContractError, idempotency_id, parse_event
from carride.facts import ALIASES
from carride.history import EVENT_PREFIX, merged
from carride_idempotency import marshalling, observation
from ops import tables
from ops.audit import evidence
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    AuditedConsumer,
    Delivered,
    Evidence,
    GatewayPayment,
    Published,
)
from ops.audit.queues import dead_letter, id_in, json_object, opened, peek, waiting
from ops.stack import StackRef

DEFAULT_GRACE: Final = timedelta(minutes=15)
BUS: Final = "CarRideEvents"
"""Prefix of the logical id of the bus's log group."""

_DETAILS: Final = {evidence.DISPATCH: "carID", evidence.PAYMENT: "amount"}
"""The attribute of an item that says more than its state, by consumer."""
_DELIVERY_LINES: Final = f'{{ $.message = "{telemetry.DELIVERY}" }}'
_ENABLED: Final = "ENABLED"
_LATEST: Final = timedelta(minutes=2)
"""How long a line takes to appear in its log group, at most."""
READING: Final = Lock()
"""Held while a stack is read: a reading hides dead letters for a moment, and would make another one
incomplete."""


def regional_evidence(
    stack: StackRef, grace: timedelta, payments: Sequence[GatewayPayment] | None
) -> Evidence:
    """Read all evidence of a stack in one region, as `collect_evidence` says. Hold `READING`."""
    at = datetime.now(UTC)
    dynamodb, sqs, outputs = stack.client("dynamodb"), stack.client("sqs"), stack.outputs
    consumers = enabled(stack)
    queues: dict[str, str | None] = dict.fromkeys(
        queue for queue in evidence.OTHER_DLQS if f"{queue}Url" in outputs
    )
    for each in consumers:
        queues |= dict.fromkeys((f"{each.resources}RuleDlq", f"{each.resources}Dlq"), each.name)
    # Read effects before their causes, so that the cause of each effect is found. Read the tables
    # before the queues, because an event moves from its consumer to a dead-letter queue.
    items = [
        item for each in consumers if each.table is not None for item in ride_items(stack, each)
    ]
    logs = {each.name: list(deliveries(stack, each)) for each in consumers}
    items += [
        item
        for each in consumers
        if each.table is None
        for item in logged_items(each.name, logs[each.name])
    ]
    bookings = [booked_ride(item) for item in scan(dynamodb, outputs["BookingTableName"])]
    cars = rides_of_cars(dynamodb, outputs["CarTableName"])
    committed = outbox_times(dynamodb, outputs["OutboxTableName"])
    unread = {queue: waiting(sqs, outputs[f"{queue}Url"]) for queue in queues}
    for name in [
        f"{each.resources}Queue" for each in consumers if f"{each.resources}QueueUrl" in outputs
    ]:
        unread[name] = waiting(sqs, outputs[f"{name}Url"], visible=True)
    messages = [
        (queue, message) for queue in queues for message in peek(sqs, outputs[f"{queue}Url"])
    ]
    logged = list(published(stack))
    known = {event.event_id for event in logged}
    unlogged = [_unlogged(message) for queue, message in messages if queue == evidence.LOG_RULE_DLQ]
    routes, broken, archived = _routes(stack)
    return Evidence(
        consumers=consumers,
        published=logged
        + [event for event in unlogged if event is not None and event.event_id not in known],
        deliveries=[delivery for logged_by in logs.values() for delivery in logged_by],
        dead_letters=[dead_letter(queue, queues[queue], message) for queue, message in messages],
        items=items,
        outbox=committed,
        bookings=bookings,
        cars=cars,
        payments=payments,
        unread={queue: count for queue, count in unread.items() if count},
        routes=routes,
        broken_routes=broken,
        archived=archived,
        at=at,
        grace=grace,
        since=kept_since(stack, at),
    )


def enabled(stack: StackRef) -> list[AuditedConsumer]:
    """Return the consumers that get events. One whose rule a parameter can disable shows that in an output."""
    return [
        each
        for each in CONSUMERS
        if stack.outputs.get(f"{each.resources}RuleState", _ENABLED) == _ENABLED
    ]


def published(stack: StackRef) -> Iterator[Published]:
    """Yield every ride event in the log of the bus.

    An unreadable line may have been any event: it is yielded under EventBridge's id, or the line's
    id if it has none.
    """
    yield from filter(None, map(published_in, lines(stack, BUS)))


def published_in(line: Mapping[str, Any]) -> Published | None:
    """Return the ride event in a line of the bus's log, or None."""
    text = line["message"]
    return _published(
        json_object(text), text, f"unreadable line {line.get('eventId')}", _logged_at(line)
    )


def _published(event: Any, text: str, name: str, time: datetime) -> Published | None:
    """Return a published event, under ``name`` if it is unreadable; None if it is no ride event."""
    match event:
        case {"id": str(event_id), "source": str(source), "detail-type": str(detail_type)}:
            if source not in SOURCES or detail_type != DETAIL_TYPE:
                return None
        case _:
            return Published(id_in(text) or name, None, None, time=time)
    region = str(event["region"]) if "region" in event else None
    found = Published(
        event_id, type_of(event), None, time=time, replayed="replay-name" in event, region=region
    )
    try:
        parsed = parse_event(event)
    except ContractError:
        return found
    named = evidence.Named(parsed.subject, parsed.type, parsed.data.version)
    adopted = parsed.idempotencyid != idempotency_id(*named)
    return found._replace(
        fact=parsed.idempotencyid, named=named, expires=parsed.expirytime, adopted=adopted
    )


def _unlogged(message: Any) -> Published | None:
    """Return the event in a message of the log rule's dead-letter queue."""
    sent = message.get("Attributes", {}).get("SentTimestamp")
    time = ALWAYS if sent is None else _of_ms(int(sent))
    return _published(opened(message)[1], message["Body"], f"message {message['MessageId']}", time)


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
    yield from filter(
        None, map(delivered_in, lines(stack, consumer.resources, _DELIVERY_LINES, since))
    )


def delivered_in(line: Mapping[str, Any]) -> Delivered | None:
    """Return the delivery in a line of a consumer's log, or None."""
    match json_object(line["message"]):
        case {
            "message": telemetry.DELIVERY,
            "consumer": str(name),
            "outcome": str(outcome),
            **entry,
        }:
            # The logger omits what is missing.
            _, _, fact = str(entry.get("key", "")).partition("#")
            more: Any = [
                entry.get(label)
                for label in ("attempt", "delivery", "reason", "type", "correlationid")
            ]
            return Delivered(name, outcome, fact or None, _logged_at(line), *more)
    return None


def ride_items(stack: StackRef, consumer: AuditedConsumer) -> Iterator[evidence.RideItem]:
    """Yield every ride in a consumer's table."""
    condition = "attribute_exists(orderID)" if consumer.table == evidence.RECORDS else ""
    items = scan(stack.client("dynamodb"), stack.outputs[f"{consumer.table}Name"], condition)
    return (ride_item(consumer, item) for item in (merged(items) if condition else items))


def ride_item(consumer: AuditedConsumer, item: Mapping[str, Any]) -> evidence.RideItem:
    """Return an item of a consumer's table, given as Python values."""
    return evidence.RideItem(
        consumer.name,
        item["orderID"],
        tuple(
            _effect(item["orderID"], name, entry)
            for name, entry in item.items()
            if name.startswith(EVENT_PREFIX)
        ),
        item["effects"],
        item.get("state"),
        item.get(_DETAILS.get(consumer.name, "")),
        _time_or_none(item.get("openSince")),
    )


def booked_ride(item: Mapping[str, Any]) -> evidence.BookedRide:
    """Return an item of the API's table, given as Python values."""
    booked, open_since = (
        _time(item.get("bookedAt")),
        _time_or_none(item.get("changedAt", item.get("openSince"))),
    )
    return evidence.BookedRide(item["orderID"], item["version"], booked, open_since)


def _effect(order_id: str, attribute: str, entry: Mapping[str, Any]) -> evidence.Effect:
    fact = attribute.partition("#")[2]
    if "type" not in entry:
        return evidence.Effect(fact)
    named = evidence.Named(order_id, entry["type"], entry["sequence"])
    return evidence.Effect(fact, named, _time(entry.get("time")), tuple(entry.get("emitted", ())))


def logged_items(consumer: str, logged: Iterable[Delivered]) -> Iterator[evidence.RideItem]:
    """Yield the effects of a consumer without a table, by its log: an item for each event.

    A duplicate shows that the event took effect: the attempt that committed it may have died before
    it logged that.
    """
    commits, times = Counter[str](), dict[str, datetime]()
    for delivery in logged:
        if delivery.fact is not None and delivery.outcome in (
            *observation.COMMITTED,
            observation.DUPLICATE,
        ):
            commits[delivery.fact] += delivery.outcome != observation.DUPLICATE
            times.setdefault(delivery.fact, delivery.time)
    for fact, count in commits.items():
        yield evidence.RideItem(
            consumer, fact, (evidence.Effect(fact, None, times[fact]),), max(1, count)
        )


def rides_of_cars(dynamodb: Any, table: str) -> dict[str, str | None]:
    """Return the ride of each car. If several items name one car, an item with a ride counts."""
    cars: dict[str, str | None] = {}
    for row in scan(dynamodb, table):
        ride = row.get("rideID")
        cars[row["carID"]] = cars.get(row["carID"]) if ride is None else str(ride)
    return cars


def outbox_times(dynamodb: Any, table: str) -> dict[str, datetime]:
    """Return the ids of the events in the outbox, with their times."""
    return {item["idempotencyid"]: _time(item.get("time")) for item in scan(dynamodb, table)}


def gateway_payments(ledger: str | Iterable[Mapping[str, Any]]) -> list[GatewayPayment]:
    """Return the payments of the gateway's ledger, or of its JSON: a list, or an object with ``payments``.

    Raise a ValueError, LookupError or TypeError if it has another form.
    """
    loaded = json.loads(ledger) if isinstance(ledger, str) else ledger
    return [
        GatewayPayment(
            each["reference"],
            each["status"],
            each["amount"],
            len(each["captures"]),
            len(each["refunds"]),
        )
        for each in (loaded["payments"] if isinstance(loaded, dict) else loaded)
    ]


def _routes(stack: StackRef) -> tuple[dict[str, str], list[str], int]:
    """Return the state of the log's and the partners' routes, what is broken, and the number of archived events."""
    states, broken, rules = {}, [], stack.named("AWS::Events::Rule")
    events = stack.client("events")
    for rule, effect in (
        ("CarRideLogRule", "events are not logged"),
        ("PartnersRule", "partners get nothing"),
    ):
        if rule not in rules:
            broken.append(f"the stack has no {rule}: {effect}")
            continue
        bus = stack.outputs["CarRideBusName"]
        state = events.describe_rule(Name=rules[rule], EventBusName=bus)["State"]
        targets = len(events.list_targets_by_rule(Rule=rules[rule], EventBusName=bus)["Targets"])
        states[rule] = f"{state}, {targets} targets"
        if state != _ENABLED or not targets:
            broken.append(f"{rule} is {state} with {targets} targets: {effect}")
    topic = stack.client("sns").get_paginator("list_subscriptions_by_topic")
    pages = topic.paginate(TopicArn=stack.outputs["PartnersTopicArn"])
    subscriptions = sum(len(page.get("Subscriptions", ())) for page in pages)
    states["partners' topic"] = (
        f"{subscriptions} subscriptions, whose deliveries the audit cannot see"
    )
    archive = events.describe_archive(
        ArchiveName=stack.outputs["CarRideArchiveArn"].rpartition("/")[2]
    )
    archived: int = archive.get("EventCount", 0)
    states["CarRideArchive"] = (
        f"{archived:,} events counted, kept for {archive.get('RetentionDays', 0)} days"
    )
    return states, broken, archived


def kept_since(stack: StackRef, at: datetime) -> datetime:
    """Return since when the log of events is complete."""
    group = stack.outputs[f"{BUS}LogGroupName"]
    groups = stack.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    days = next(
        (each.get("retentionInDays") for each in groups if each["logGroupName"] == group), None
    )
    return ALWAYS if days is None else at - timedelta(days=days)


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
        request["startTime"] = max(0, int(since.timestamp() * 1000))
    pages = stack.client("logs").get_paginator("filter_log_events").paginate(**request)
    return (line for page in pages for line in page["events"])


class Tail:
    """Reads the new lines of a log group, each once; arguments as in `lines`.

    A line may appear later than a newer one by up to ``overlap``, or `_LATEST` if that is less.
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
        self._since, self._newest, self._overlap = since, since, overlap
        self._known: dict[int, datetime] = {}  # times by hash of the lines that will be read again

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that have appeared since the last call."""
        began = datetime.now(UTC)
        for line in self._read(self._since):
            time = _of_ms(line["timestamp"])
            name = hash((line.get("eventId"), line["logStreamName"], time, line["message"]))
            if name not in self._known:
                self._known[name], self._newest = time, max(self._newest, time)
                yield line
        self._since = max(self._since, self._newest - self._overlap, began - _LATEST)
        self._known = {name: time for name, time in self._known.items() if time >= self._since}


def _logged_at(line: Mapping[str, Any]) -> datetime:
    return _of_ms(line.get("ingestionTime") or line["timestamp"])


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
