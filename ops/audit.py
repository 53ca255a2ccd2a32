"""Reads what a deployed stack's tables, queues and log groups hold, for the ledger. It changes nothing that it reads.

The evidence of what was published is the log group of the bus's catch-all rule, not what any producer believes.
"""

import binascii
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fleet
import payments
from carride import telemetry
from carride.dedup import facts_in
from carride.events import (
    DETAIL_TYPE,
    MOST_LEVELS,
    SOURCES,
    TRUSTED_SOURCES,
    ContractError,
    parse_event,
    read_json,
)
from carride.publisher import GZIP
from idempotency import observation
from ops.ledger import DeadLettered, Delivered, Evidence, Ledger, Published, State, Subscription, balance

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

type Event = Mapping[str, Any]
"""An event in EventBridge's envelope."""


class Consumer(NamedTuple):
    """A consumer, and where a stack's outputs tell of it."""

    name: str
    resources: str
    """What the logical ids of its resources begin with."""
    table: str | None = None
    """Where its effects are: an item a ride, with an entry for each event and a counter of effects. A consumer that
    keeps no such table is held to what it reports."""
    acts_on: frozenset[type] | None = None
    """The facts that it acts on; None is every event of the bus."""

    def subscription(self) -> Subscription:
        """Return what it subscribes to."""
        types = None if self.acts_on is None else frozenset(fact.__name__ for fact in self.acts_on)
        return Subscription(self.name, types)


CONSUMERS: Final = (
    Consumer("ride-history", "RideHistory", "RideTable"),
    Consumer("dispatch", "Dispatch", "AssignmentTable", fleet.CONSUMED),
    Consumer("payment", "Payment", "PaymentTable", payments.CONSUMED),
)

QUEUES_BEFORE_CONSUMERS: Final = (
    "CarRideBusDlq",
    "CarRideLogRuleDlq",
    "OutboxPipeDlq",
    "PartnersRuleDlq",
    "PartnersOlderRuleDlq",
    "ProducerDlq",
)
"""What lies in these has had no chance at any of the consumers, or was not for them."""

UNREADABLE: Final = "UNREADABLE"
"""The reason of a dead letter that is no JSON object."""

_HIDDEN_SECONDS: Final = 120
"""How long a queue's messages stay hidden from others while all of them are read; more where that takes longer."""
_LONGEST_HIDDEN_SECONDS: Final = 43_200
_DELIVERY_LINES: Final = f'{{ $.message = "{telemetry.DELIVERY}" }}'
_MANY: Final = 10
_LARGEST: Final = 2**26
"""Bytes of an event that was compressed."""
_LEVELS: Final = MOST_LEVELS + 16
"""Of a log line or a letter, which wraps an event."""
_event_id: Final = re.compile(r"""\\?"version\\?": ?\\?"0\\?", ?\\?"id\\?": ?\\?"([0-9a-f-]{36})""").search
"""Finds EventBridge's id in what cannot be read: its envelope begins with it."""


class Clients(NamedTuple):
    """The services that the audit reads."""

    dynamodb: "DynamoDBClient"
    logs: "CloudWatchLogsClient"
    sqs: "SQSClient"


def audit(clients: Clients, outputs: Mapping[str, str]) -> Ledger:
    """Compute the ledger of a stack.

    Args:
        clients: for the stack's account and region.
        outputs: the stack's outputs by name.
    """
    return balance(evidence(clients, outputs))


def evidence(clients: Clients, outputs: Mapping[str, str]) -> Evidence:
    """Read everything that tables, queues and log groups of a stack have to say."""
    # A consumer whose rule can be off by parameter says so in an output.
    consumers = [each for each in CONSUMERS if outputs.get(f"{each.resources}RuleState", "ENABLED") == "ENABLED"]
    queues: dict[str, str | None] = dict.fromkeys(QUEUES_BEFORE_CONSUMERS)
    for consumer in consumers:
        queues |= dict.fromkeys((f"{consumer.resources}RuleDlq", f"{consumer.resources}Dlq"), consumer.name)
    return Evidence(
        subscriptions=[consumer.subscription() for consumer in consumers],
        published=list(published(clients.logs, outputs["CarRideEventsLogGroupName"])),
        deliveries=[
            delivery
            for consumer in consumers
            for delivery in deliveries(clients.logs, outputs[f"{consumer.resources}LogGroupName"])
        ],
        dead_letters=[
            dead_letter(queue, consumer_name, message)
            for queue, consumer_name in queues.items()
            for message in peek(clients.sqs, outputs[f"{queue}Url"])
        ],
        states=[
            state
            for consumer in consumers
            for state in (
                reported_states(clients.logs, outputs[f"{consumer.resources}LogGroupName"], consumer.name)
                if consumer.table is None
                else states(clients.dynamodb, outputs[f"{consumer.table}Name"], consumer.name)
            )
        ],
        outbox=set(outbox(clients.dynamodb, outputs["OutboxTableName"])),
    )


# ── What was published ────────────────────────────────────────────────────────────────────────────────────────────────


def published(logs: "CloudWatchLogsClient", group: str, region: str | None = None) -> Iterator[Published]:
    """Yield every ride event that the bus accepted; where a region is named, only those that it ingested.

    A line that cannot be read may have been any event: it is yielded too, under the line's id where it shows no other.
    """
    for line_id, line in _lines(logs, group):
        match _read(line):
            case {"id": str(event_id), "source": str(source), "detail-type": str(detail_type)} as event:
                ours = region is None or event.get("region") == region
                if ours and source in SOURCES | TRUSTED_SOURCES and detail_type == DETAIL_TYPE:
                    yield Published(event_id, type_of(event), fact_of(event), "replay-name" in event)
            case _:
                yield Published(_id_in(line) or f"unreadable line {line_id}", None, None)


def type_of(event: Event) -> str | None:
    """Return the type of an event, where rules look for it: in either envelope."""
    match event:
        case {"detail": {"type": str(name)}} | {"detail": {"attributes": {"type": str(name)}}}:
            return name
        case _:
            return None


def fact_of(event: Any) -> str | None:
    """Return the idempotency id of an event, or None where it breaks the contract."""
    try:
        return parse_event(event).idempotencyid
    except ContractError:
        return None


# ── What the consumers report ─────────────────────────────────────────────────────────────────────────────────────────


def deliveries(logs: "CloudWatchLogsClient", group: str) -> Iterator[Delivered]:
    """Yield every delivery that a consumer reported on. The runtime's own lines are no reports."""
    for _, line in _lines(logs, group, _DELIVERY_LINES):
        match _read(line):
            case {"message": telemetry.DELIVERY, "consumer": str(consumer), "outcome": str(outcome), **entry}:
                _, _, fact = str(entry.get("key", "")).partition("#")  # the logger leaves out what is None
                yield Delivered(consumer, outcome, fact or None)


# ── What lies in the dead-letter queues ───────────────────────────────────────────────────────────────────────────────


def dead_letter(queue: str, consumer: str | None, message: "MessageTypeDef") -> DeadLettered:
    """Return what a message in a dead-letter queue says, whoever put it there.

    Args:
        queue: the queue's logical id.
        consumer: for whom it lies there.
        message: with its attributes.
    """
    reason, event = opened(message)
    event_id = event.get("id") if isinstance(event, Mapping) else _id_in(message["Body"])
    return DeadLettered(queue, reason, consumer, event_id if isinstance(event_id, str) else None, fact_of(event))


def opened(message: "MessageTypeDef") -> tuple[str, Any]:
    """Return the reason of a dead letter, whoever sent it, and the event: None where it is not in it, or unreadable."""
    body = _read(message["Body"])
    event: Any
    if body is None:
        return UNREADABLE, None
    match body:
        case {"reason": str(reason), "consumer": str(), "event": event}:  # sent by the consumer itself
            event = event if event is not None else _read(_unpacked(body.get("eventGzip")))
        case {"requestContext": {"condition": str(reason)}, "requestPayload": event}:  # sent by Lambda
            pass
        case {"context": {"condition": str(reason)}}:  # sent by a pipe, which names the record and leaves it out
            event = None
        case _:  # sent by EventBridge, or by the publisher in the same form; or moved here by SQS, as it was
            code = message.get("MessageAttributes", {}).get("ERROR_CODE")
            reason, event = "ReceivesExhausted" if code is None else code.get("StringValue", UNREADABLE), body
    match event:
        case {"messageId": _, "body": str(text)}:  # a record of a batch
            event = _read(text)
        case {"detailGzip": packed}:  # the publisher's, too large as it is
            detail = _unpacked(packed)
            event = {**event, "detail": _read(detail) or detail}
    return reason, event


def _read(content: str | None) -> Any:
    """Return what a JSON text says, or None where it is no object that can be read."""
    try:
        value = None if content is None else read_json(content, "content", levels=_LEVELS)
    except ContractError:
        return None
    return value if isinstance(value, dict) else None


def _id_in(text: str) -> str | None:
    found = _event_id(text)
    return found and found[1]


def _unpacked(packed: object) -> str | None:
    """Return text that was compressed and written as base64; None where it is not whole."""
    unpacking = zlib.decompressobj(GZIP)
    try:
        text = unpacking.decompress(binascii.a2b_base64(str(packed)), _LARGEST).decode(errors="surrogatepass")
    except (zlib.error, ValueError):
        return None
    return text if unpacking.eof else None


def peek(sqs: "SQSClient", url: str) -> Iterator["MessageTypeDef"]:
    """Yield every message of a queue once, and put them all back.

    Messages that somebody else is reading at that moment are hidden from this reader too. Where reading takes so long
    that messages show again, they are hidden for longer; it ends where nothing else is shown.
    """
    counted = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    expected = int(counted["Attributes"]["ApproximateNumberOfMessages"])
    receipts: dict[str, str] = {}
    shown_again, hidden_s = 0, _HIDDEN_SECONDS
    try:
        # The count is approximate: reading goes on until a read comes back empty. While there should be more, it is a
        # long poll, which asks every server that holds a part of the queue.
        while shown_again <= 2 * len(receipts) and (
            messages := sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=_MANY,
                VisibilityTimeout=hidden_s,
                WaitTimeSeconds=1 if len(receipts) < expected else 0,
                MessageAttributeNames=["All"],
            ).get("Messages", [])
        ):
            new = [message for message in messages if message["MessageId"] not in receipts]
            shown_again = 0 if new else shown_again + len(messages)
            if len(new) < len(messages):
                hidden_s = min(2 * hidden_s, _LONGEST_HIDDEN_SECONDS)
            receipts |= {message["MessageId"]: message["ReceiptHandle"] for message in messages}
            yield from new
    finally:
        handles = list(receipts.values())
        for first in range(0, len(handles), _MANY):
            sqs.change_message_visibility_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": handle, "VisibilityTimeout": 0}
                    for index, handle in enumerate(handles[first : first + _MANY])
                ],
            )


# ── What took effect ──────────────────────────────────────────────────────────────────────────────────────────────────


def states(dynamodb: "DynamoDBClient", table: str, consumer: str) -> Iterator[State]:
    """Yield what a consumer's table holds of every ride."""
    for item in _items(dynamodb, table):
        facts = facts_in(item)
        yield State(consumer, item["orderID"]["S"], facts, int(item["effects"]["N"]))


def reported_states(logs: "CloudWatchLogsClient", group: str, consumer: str) -> Iterator[State]:
    """Yield what a consumer without a table has done, by its own reports: a state for each fact.

    A duplicate is a fact that took effect too: the attempt that committed it may have died before it could say so.
    """
    commits = Counter[str]()
    for delivery in deliveries(logs, group):
        if delivery.fact is not None and delivery.outcome in (*observation.COMMITTED, observation.DUPLICATE):
            commits[delivery.fact] += delivery.outcome != observation.DUPLICATE
    return (State(consumer, fact, frozenset({fact}), max(1, count)) for fact, count in commits.items())


def outbox(dynamodb: "DynamoDBClient", table: str) -> Iterator[str]:
    """Yield the facts that were committed to be told."""
    return (item["idempotencyid"]["S"] for item in _items(dynamodb, table))


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _items(dynamodb: "DynamoDBClient", table: str) -> Iterator[dict[str, Any]]:
    pages = dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    return (item for page in pages for item in page["Items"])


def _lines(logs: "CloudWatchLogsClient", group: str, pattern: str = "") -> Iterator[tuple[str | None, str]]:
    """Yield the lines of a log group, each with its id."""
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group, filterPattern=pattern)
    return ((line.get("eventId"), line["message"]) for page in pages for line in page["events"])
