"""Reads what a deployed stack's tables, queues and log groups hold, for the ledger. It changes nothing that it reads.

The evidence of what was published is the log group of the bus's catch-all rule, not what any producer believes.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import timeline
from carride import telemetry
from carride.events import DETAIL_TYPE, SOURCES, ContractError, parse_event
from ops.ledger import DeadLettered, Delivered, Evidence, Ledger, Published, Ride, balance

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

type Event = Mapping[str, Any]
"""An event in EventBridge's envelope."""

RIDE_HISTORY: Final = "ride-history"

CONSUMER_OF_QUEUE: Final[Mapping[str, str | None]] = {
    "CarRideLogRuleDlq": None,
    "ProducerDlq": None,
    "RideHistoryRuleDlq": RIDE_HISTORY,
    "RideHistoryDlq": RIDE_HISTORY,
}
"""Whose work a message in a queue stands for: nobody's, in a queue that lies before the consumers."""

_HIDDEN_SECONDS: Final = 120
"""How long a queue's messages stay hidden from others while all of them are read."""
_DELIVERY_LINES: Final = f'{{ $.message = "{telemetry.DELIVERY}" }}'
_MANY: Final = 10


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
    letters = [
        dead_letter(queue, message)
        for queue in CONSUMER_OF_QUEUE
        for message in peek(clients.sqs, outputs[f"{queue}Url"])
    ]
    return balance(
        Evidence(
            published=list(published(clients.logs, outputs["CarRideEventsLogGroupName"])),
            deliveries=list(deliveries(clients.logs, outputs["RideHistoryLogGroupName"])),
            dead_letters=letters,
            rides=list(rides(clients.dynamodb, outputs["RideTableName"])),
        )
    )


# ── What was published ────────────────────────────────────────────────────────────────────────────────────────────────


def published(logs: "CloudWatchLogsClient", group: str) -> Iterator[Published]:
    """Yield every ride event that the bus accepted."""
    for line in _lines(logs, group):
        event = json.loads(line)
        if event["source"] in SOURCES and event["detail-type"] == DETAIL_TYPE:
            yield Published(event["id"], fact_of(event), "replay-name" in event)


def fact_of(event: Event) -> str | None:
    """Return the idempotency id of an event, or None where it breaks the contract."""
    try:
        return parse_event(event).idempotencyid
    except ContractError:
        return None


# ── What the consumers report ─────────────────────────────────────────────────────────────────────────────────────────


def deliveries(logs: "CloudWatchLogsClient", group: str) -> Iterator[Delivered]:
    """Yield every delivery that a consumer reported on."""
    for line in _lines(logs, group, _DELIVERY_LINES):
        entry = _json_object(line)
        if entry.get("message") == telemetry.DELIVERY:
            _, _, fact = entry.get("key", "").partition("#")  # the logger leaves out what is None
            yield Delivered(entry["consumer"], entry["outcome"], fact or None)


# ── What lies in the dead-letter queues ───────────────────────────────────────────────────────────────────────────────


def dead_letter(queue: str, message: "MessageTypeDef") -> DeadLettered:
    """Return what a message in a dead-letter queue says, whoever put it there."""
    body = json.loads(message["Body"])
    match body:
        case {"reason": str(reason), "consumer": str(), "event": event}:  # sent by the consumer itself
            event = event if event is not None else _unpack(body["eventGzip"])
        case {"requestContext": {"condition": str(reason)}, "requestPayload": event}:  # sent by Lambda
            pass
        case _:  # sent by EventBridge, or by the publisher in the same form
            reason, event = message["MessageAttributes"]["ERROR_CODE"]["StringValue"], body
    event_id = event.get("id") if isinstance(event, Mapping) else None
    return DeadLettered(queue, reason, CONSUMER_OF_QUEUE[queue], event_id, fact_of(event))


def peek(sqs: "SQSClient", url: str) -> Iterator["MessageTypeDef"]:
    """Yield every message of a queue once, and put them all back.

    Messages that somebody else is reading at that moment are hidden from this reader too.
    """
    counted = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    expected = int(counted["Attributes"]["ApproximateNumberOfMessages"])
    receipts: list[str] = []
    try:
        # The count is approximate: reading goes on until a read comes back empty. While there should be more, it is a
        # long poll, which asks every server that holds a part of the queue.
        while messages := sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=_MANY,
            VisibilityTimeout=_HIDDEN_SECONDS,
            WaitTimeSeconds=1 if len(receipts) < expected else 0,
            MessageAttributeNames=["All"],
        ).get("Messages", []):
            receipts += [message["ReceiptHandle"] for message in messages]
            yield from messages
    finally:
        for first in range(0, len(receipts), _MANY):
            sqs.change_message_visibility_batch(
                QueueUrl=url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": receipt, "VisibilityTimeout": 0}
                    for index, receipt in enumerate(receipts[first : first + _MANY])
                ],
            )


# ── What took effect ──────────────────────────────────────────────────────────────────────────────────────────────────


def rides(dynamodb: "DynamoDBClient", table: str) -> Iterator[Ride]:
    """Yield what the read model holds of every ride."""
    for page in dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        for item in page["Items"]:
            entries = (name for name in item if name.startswith(timeline.ENTRY))
            facts = frozenset(name.removeprefix(timeline.ENTRY) for name in entries)
            yield Ride(item["orderID"]["S"], facts, int(item["effects"]["N"]))


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(logs: "CloudWatchLogsClient", group: str, pattern: str = "") -> Iterator[str]:
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group, filterPattern=pattern)
    return (line["message"] for page in pages for line in page["events"])


def _json_object(line: str) -> dict[str, Any]:
    """Return a structured log line; the runtime's own lines are none."""
    if not line.startswith("{"):
        return {}
    entry: dict[str, Any] = json.loads(line)
    return entry


def _unpack(packed: str) -> Event:
    event: Event = json.loads(gzip.decompress(base64.b64decode(packed)))
    return event
