"""Reads what a deployed stack's tables, queues, log groups and rules hold. It changes nothing that it reads.

The evidence of what was published is the log group of the bus's catch-all rule, not what a producer believes. What the
rule could not log lies in its dead-letter queue, and counts as published too.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from carride import telemetry
from carride.dedup import is_attribute
from carride.events import DETAIL_TYPE, SOURCES, ContractError, parse_event
from idempotency import marshalling, observation
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    DISPATCH,
    LOG_RULE_DLQ,
    OTHER_DLQS,
    PAYMENT,
    AuditedConsumer,
    BookedRide,
    Delivered,
    Effect,
    Evidence,
    GatewayPayment,
    Named,
    Published,
    RideItem,
)
from ops.audit.queues import dead_letter, id_in, opened, peek, read, waiting
from ops.site import Site

DEFAULT_GRACE: Final = timedelta(minutes=15)

_DETAILS: Final = {DISPATCH: "carID", PAYMENT: "amount"}
"""The attribute of an item that says more than its state, by consumer."""
_DELIVERY_LINES: Final = f'{{ $.message = "{telemetry.DELIVERY}" }}'
_ENABLED: Final = "ENABLED"

type Event = Mapping[str, Any]
"""An event in EventBridge's envelope."""


def evidence(
    site: Site,
    *,
    grace: timedelta = DEFAULT_GRACE,
    payments: Sequence[GatewayPayment] | None = None,
    now: datetime | None = None,
) -> Evidence:
    """Read everything that a stack has to say.

    Args:
        site: the stack in one region.
        grace: how old an event must be before it is judged.
        payments: the gateway's ledger; None where it cannot be asked.
        now: when reading begins, with a time zone; left out, the present.
    """
    at = now or datetime.now(UTC)
    dynamodb, sqs, outputs = site.client("dynamodb"), site.client("sqs"), site.outputs
    # A consumer whose rule can be off by parameter says so in an output.
    consumers = [each for each in CONSUMERS if outputs.get(f"{each.resources}RuleState", _ENABLED) == _ENABLED]
    queues: dict[str, str | None] = dict.fromkeys(queue for queue in OTHER_DLQS if f"{queue}Url" in outputs)
    for each in consumers:
        queues |= dict.fromkeys((f"{each.resources}RuleDlq", f"{each.resources}Dlq"), each.name)
    # State first, then what it follows from: whatever is found has its cause in what is read later. An event moves from
    # its consumer to a dead-letter queue, so these come after the tables.
    items = [item for each in consumers if each.table is not None for item in ride_items(site, each)]
    logs = {each.name: list(deliveries(site, each)) for each in consumers}
    items += [item for each in consumers if each.table is None for item in reported(each.name, logs[each.name])]
    bookings = [
        BookedRide(item["orderID"], item["version"], _time(item.get("bookedAt")), _time_or_none(item.get("openSince")))
        for item in scan(dynamodb, outputs["BookingTableName"])
    ]
    cars = rides_of_cars(dynamodb, outputs["CarTableName"])
    committed = outbox(dynamodb, outputs["OutboxTableName"])
    unread = {queue: waiting(sqs, outputs[f"{queue}Url"]) for queue in queues}
    for name in [f"{each.resources}Queue" for each in consumers if f"{each.resources}QueueUrl" in outputs]:
        unread[name] = waiting(sqs, outputs[f"{name}Url"], visible=True)
    messages = [(queue, message) for queue in queues for message in peek(sqs, outputs[f"{queue}Url"])]
    logged = list(published(site.client("logs"), outputs["CarRideEventsLogGroupName"]))
    known = {event.event_id for event in logged}
    unlogged = [_unlogged(message) for queue, message in messages if queue == LOG_RULE_DLQ]
    routes, broken, archived = _routes(site)
    return Evidence(
        consumers=consumers,
        published=logged + [event for event in unlogged if event is not None and event.event_id not in known],
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
        since=_kept_since(site, at),
    )


# ── What was published ────────────────────────────────────────────────────────────────────────────────────────────────


def published(logs: Any, group: str) -> Iterator[Published]:
    """Yield every ride event that the log of the bus holds.

    A line that cannot be read may have been any event: it is yielded too, under the line's id where it shows no other.
    """
    for line in _lines(logs, group):
        text = line["message"]
        if found := _published(read(text), text, f"unreadable line {line.get('eventId')}", _logged_at(line)):
            yield found


def _published(event: Any, text: str, name: str, time: datetime) -> Published | None:
    """Return an event that the bus accepted; None where it is no ride event, and a nameless one if it is unreadable."""
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
    )
    try:
        parsed = parse_event(event)
    except ContractError:
        return found
    named = Named(parsed.subject, parsed.type, parsed.data.version)
    return found._replace(fact=parsed.idempotencyid, named=named, expires=parsed.expirytime)


def _unlogged(message: Any) -> Published | None:
    """Return the event that the rule of the log could not log."""
    sent = message.get("Attributes", {}).get("SentTimestamp")
    time = ALWAYS if sent is None else _of_ms(int(sent))
    return _published(opened(message)[1], message["Body"], f"message {message['MessageId']}", time)


def type_of(event: Event) -> str | None:
    """Return the type of an event, where rules look for it: in either envelope."""
    match event:
        case {"detail": {"type": str(name)}} | {"detail": {"attributes": {"type": str(name)}}}:
            return name
        case _:
            return None


# ── What the consumers report, and what took effect ───────────────────────────────────────────────────────────────────


def deliveries(site: Site, consumer: AuditedConsumer) -> Iterator[Delivered]:
    """Yield every delivery that a consumer has logged, without the runtime's own lines."""
    group = site.outputs[f"{consumer.resources}LogGroupName"]
    for line in _lines(site.client("logs"), group, _DELIVERY_LINES):
        match read(line["message"]):
            case {"message": telemetry.DELIVERY, "consumer": str(name), "outcome": str(outcome), **entry}:
                _, _, fact = str(entry.get("key", "")).partition("#")  # the logger leaves out what is None
                yield Delivered(name, outcome, fact or None, _logged_at(line))


def ride_items(site: Site, consumer: AuditedConsumer) -> Iterator[RideItem]:
    """Yield what a consumer's table holds of every ride."""
    for item in scan(site.client("dynamodb"), site.outputs[f"{consumer.table}Name"]):
        detail = item.get(_DETAILS.get(consumer.name, ""))
        yield RideItem(
            consumer.name,
            item["orderID"],
            tuple(_effect(item["orderID"], name, entry) for name, entry in item.items() if is_attribute(name)),
            item["effects"],
            item.get("state"),
            detail,
            _time_or_none(item.get("openSince")),
        )


def _effect(order_id: str, attribute: str, entry: Mapping[str, Any]) -> Effect:
    fact = attribute.partition("#")[2]
    if "type" not in entry:
        return Effect(fact)
    named = Named(order_id, entry["type"], entry["sequence"])
    return Effect(fact, named, _time(entry.get("time")), tuple(entry.get("emitted", ())))


def reported(consumer: str, logged: Iterable[Delivered]) -> Iterator[RideItem]:
    """Yield what a consumer without a table has done, by its own log: an item for each fact.

    A duplicate is a fact that took effect too: the attempt that committed it may have died before it could log that.
    """
    commits, times = Counter[str](), dict[str, datetime]()
    for delivery in logged:
        if delivery.fact is not None and delivery.outcome in (*observation.COMMITTED, observation.DUPLICATE):
            commits[delivery.fact] += delivery.outcome != observation.DUPLICATE
            times.setdefault(delivery.fact, delivery.time)
    for fact, count in commits.items():
        yield RideItem(consumer, fact, (Effect(fact, None, times[fact]),), max(1, count))


def rides_of_cars(dynamodb: Any, table: str) -> dict[str, str | None]:
    """Return the ride of each car. Where several rows name one car, a ride that holds it counts, not a free row."""
    cars: dict[str, str | None] = {}
    for row in scan(dynamodb, table):
        ride = row.get("rideID")
        cars[row["carID"]] = cars.get(row["carID"]) if ride is None else str(ride)
    return cars


def outbox(dynamodb: Any, table: str) -> dict[str, datetime]:
    """Return the facts that were committed to be published, with their times."""
    return {item["idempotencyid"]: _time(item.get("time")) for item in scan(dynamodb, table)}


def gateway_payments(ledger: str | Iterable[Mapping[str, Any]]) -> list[GatewayPayment]:
    """Return the payments of the gateway's ledger, or of its JSON: a list, or an object with ``payments``.

    Raises:
        ValueError, LookupError, TypeError: it is no such ledger.
    """
    loaded = json.loads(ledger) if isinstance(ledger, str) else ledger
    return [
        GatewayPayment(each["reference"], each["status"], each["amount"], len(each["captures"]), len(each["refunds"]))
        for each in (loaded["payments"] if isinstance(loaded, dict) else loaded)
    ]


# ── Routes and retention ──────────────────────────────────────────────────────────────────────────────────────────────


def _routes(site: Site) -> tuple[dict[str, str], list[str], int]:
    """Return what can be seen of the log's and the partners' routes, what is broken, and how much is archived."""
    seen, broken, rules = {}, [], site.named("AWS::Events::Rule")
    for rule, use in (("CarRideLogRule", "events are not logged"), ("PartnersRule", "partners get nothing")):
        if rule not in rules:
            broken.append(f"the stack has no {rule}: {use}")
            continue
        request = {"EventBusName": site.outputs["CarRideBusName"]}
        state = site.client("events").describe_rule(Name=rules[rule], **request)["State"]
        targets = len(site.client("events").list_targets_by_rule(Rule=rules[rule], **request)["Targets"])
        seen[rule] = f"{state}, {targets} targets"
        if state != _ENABLED or not targets:
            broken.append(f"{rule} is {state} with {targets} targets: {use}")
    topic = site.client("sns").get_paginator("list_subscriptions_by_topic")
    pages = topic.paginate(TopicArn=site.outputs["PartnersTopicArn"])
    subscriptions = sum(len(page.get("Subscriptions", ())) for page in pages)
    seen["partners' topic"] = f"{subscriptions} subscriptions, whose deliveries the audit cannot see"
    name = site.outputs["CarRideArchiveArn"].rpartition("/")[2]
    archive = site.client("events").describe_archive(ArchiveName=name)
    archived: int = archive.get("EventCount", 0)
    seen["CarRideArchive"] = f"{archived:,} events counted, kept for {archive.get('RetentionDays', 0)} days"
    return seen, broken, archived


def _kept_since(site: Site, at: datetime) -> datetime:
    """Return since when the log of events is complete."""
    group = site.outputs["CarRideEventsLogGroupName"]
    groups = site.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    days = next((each.get("retentionInDays") for each in groups if each["logGroupName"] == group), None)
    return ALWAYS if days is None else at - timedelta(days=days)


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def scan(dynamodb: Any, table: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a table, as Python values."""
    for page in dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        yield from map(marshalling.values, page["Items"])


def _lines(logs: Any, group: str, pattern: str = "") -> Iterator[dict[str, Any]]:
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group, filterPattern=pattern)
    return (line for page in pages for line in page["events"])


def _logged_at(line: Mapping[str, Any]) -> datetime:
    return _of_ms(line.get("ingestionTime") or line["timestamp"])


def _of_ms(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _time(text: object) -> datetime:
    """Return a stored time; where none can be read, one that is always judged as too old."""
    return _time_or_none(text) or ALWAYS


def _time_or_none(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
