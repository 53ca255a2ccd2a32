"""What each event source calls the things that the protocol asks for."""

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

type Raw = Mapping[str, Any]


def _nothing(raw: Raw) -> None:  # noqa: ARG001 - this source does not say
    return None


def _never(raw: Raw) -> bool:  # noqa: ARG001 - this source has no replays
    return False


class Source(NamedTuple):
    """How to read one message of an event source; ``raw`` is a record of a batch, or the whole event."""

    name: str
    message: Callable[[Raw], Any]
    """The decoded message, which extractors see. Raises ValueError, LookupError or TypeError if it is broken."""
    message_id: Callable[[Raw], str]
    """The transport's own id."""
    sent_ms: Callable[[Raw], int | None] = _nothing
    """When it was first sent, in epoch milliseconds."""
    replayed: Callable[[Raw], bool] = _never
    records: Callable[[Raw], list[Raw]] = lambda event: event["Records"]
    """The records of a batch."""
    failure_id: Callable[[Raw], str] | None = None
    """The ``itemIdentifier`` by which a failed record of a batch is reported; without it the whole batch fails."""
    attempts: Callable[[Raw], int] = lambda raw: 1  # noqa: ARG005 - this source does not count
    """How often this record has been received, this time included."""
    group: Callable[[Raw], str | None] = _nothing
    """Records of one group are run in order, and a failure holds back those behind it."""


def payload_of(message: Any) -> object:
    """Return the part of a message that is fingerprinted: the ``data`` of an event in EventBridge's envelope, else all.

    Ids, times and other metadata of an envelope change between deliveries; what happened does not.
    """
    if isinstance(message, dict) and isinstance(detail := message.get("detail"), dict):
        return detail.get("data", detail)
    return message


def event_ms(message: Any) -> int | None:
    """Return when a message in EventBridge's envelope happened, in epoch milliseconds; None for other messages.

    A queue in between stamps its own time on what may be an old event, replayed or redriven.
    """
    if isinstance(message, dict) and "detail" in message and "time" in message:
        return _iso_ms(message["time"])
    return None


def _iso_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _kafka_records(event: Raw) -> list[Raw]:
    return [record for records in event["records"].values() for record in records]


def _kafka_id(raw: Raw) -> str:
    return f"{raw['topic']}-{raw['partition']}@{raw['offset']}"


EVENTBRIDGE: Final = Source(
    "EventBridge",
    message=lambda event: event,
    message_id=lambda event: event["id"],
    replayed=lambda event: "replay-name" in event,
)
SNS: Final = Source(
    "SNS",
    message=lambda event: json.loads(event["Records"][0]["Sns"]["Message"]),
    message_id=lambda event: event["Records"][0]["Sns"]["MessageId"],
    sent_ms=lambda event: _iso_ms(event["Records"][0]["Sns"]["Timestamp"]),
)
SQS: Final = Source(
    "SQS",
    message=lambda record: json.loads(record["body"]),
    message_id=lambda record: record["messageId"],
    sent_ms=lambda record: int(record["attributes"]["SentTimestamp"]),
    failure_id=lambda record: record["messageId"],
    attempts=lambda record: int(record["attributes"]["ApproximateReceiveCount"]),
    group=lambda record: record["attributes"].get("MessageGroupId"),
)
KINESIS: Final = Source(
    "Kinesis",
    message=lambda record: json.loads(base64.b64decode(record["kinesis"]["data"])),
    message_id=lambda record: record["eventID"],
    sent_ms=lambda record: int(record["kinesis"]["approximateArrivalTimestamp"] * 1000),
    failure_id=lambda record: record["kinesis"]["sequenceNumber"],
    group=lambda record: record["kinesis"]["partitionKey"],
)
DYNAMODB_STREAM: Final = Source(
    "DynamoDB stream",
    message=lambda record: record["dynamodb"],
    message_id=lambda record: record["eventID"],
    sent_ms=lambda record: int(record["dynamodb"]["ApproximateCreationDateTime"] * 1000),
    failure_id=lambda record: record["dynamodb"]["SequenceNumber"],
    group=lambda record: json.dumps(record["dynamodb"]["Keys"], sort_keys=True),
)
KAFKA: Final = Source(
    "Kafka",
    message=lambda record: json.loads(base64.b64decode(record["value"])),
    message_id=_kafka_id,
    sent_ms=lambda record: record["timestamp"],
    records=_kafka_records,
    group=lambda record: f"{record['topic']}-{record['partition']}",
)
