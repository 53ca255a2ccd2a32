"""Event sources: how the messages of each one are read."""

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from carride_idempotency.clock import to_ms
from carride_idempotency.errors import ConfigurationError

type Raw = Mapping[str, Any]

_ENVELOPE: Final = frozenset(
    {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail"}
)
"""The fields of every event that EventBridge delivers."""
_EVENTBRIDGE: Final = "EventBridge"
_HTTP: Final = "HTTP"
_DECORATORS: Final[Mapping[str, str]] = {
    "aws:sqs": "decorate it with @consumer.batch_handler",
    "aws:sns": "decorate it with @consumer.event_handler of a consumer with source=SNS",
    "aws:kinesis": "decorate it with @consumer.batch_handler of a consumer with source=KINESIS",
    "aws:dynamodb": (
        "decorate it with @consumer.batch_handler of a consumer with source=DYNAMODB_STREAM"
    ),
    "aws:kafka": "decorate it with @consumer.batch_handler of a consumer with source=KAFKA",
    "SelfManagedKafka": "decorate it with @consumer.batch_handler of a consumer with source=KAFKA",
    _EVENTBRIDGE: "decorate it with @consumer.event_handler",
    _HTTP: "decorate it with @consumer.http_handler",
}
"""What to do about an event of each trigger that a handler does not take."""
_CLUSTER: Final = "cluster"
"""The field that a Kafka record is given here: the name of its cluster, which its batch has."""
_CLOUD_EVENT: Final = frozenset({"specversion", "id", "source", "type"})
"""The attributes that CloudEvents 1.0 requires."""
_LONGEST_ID: Final = 255
"""EventBridge's own ids are UUIDs; a caller by hand may send anything."""


def _nothing(raw: Raw) -> None:
    """Return None: the source does not say."""


def payload_of(message: Any) -> object:
    """Return what is fingerprinted: the ``data`` of an enveloped message, or a message as it is.

    The envelopes are EventBridge's and CloudEvents', whose metadata changes between deliveries. A
    message counts as enveloped only with every field that the envelope requires.
    """
    if is_eventbridge(message):
        return _detail_of(message)
    if isinstance(message, dict) and message.keys() >= _CLOUD_EVENT and "data" in message:
        return message["data"]
    return message


def is_eventbridge(message: Any) -> bool:
    """Return whether a message has all the fields of EventBridge's envelope."""
    return isinstance(message, dict) and message.keys() >= _ENVELOPE


class Envelope(NamedTuple):
    """EventBridge's envelope of a message."""

    id: str
    replayed: bool
    """Whether a replay of an archive delivers it."""


def envelope_of(message: Any) -> Envelope | None:
    """Return the envelope of a message; None if it has none, or one with an odd id."""
    if not is_eventbridge(message):
        return None
    event_id = message["id"]
    if not isinstance(event_id, str) or not 0 < len(event_id) <= _LONGEST_ID:
        return None
    return Envelope(event_id, "replay-name" in message)


def event_ms(message: Any) -> int | None:
    """Return the time in EventBridge's envelope, in epoch milliseconds; None for other messages.

    A queue in between has a time of its own, even for an old event that was replayed or redriven.
    """
    return to_ms(datetime.fromisoformat(message["time"])) if is_eventbridge(message) else None


class Source(NamedTuple):
    """How to read one message of an event source.

    ``raw`` is a record of a batch, or the whole event.
    """

    message: Callable[[Raw], Any]
    """The decoded message, for extractors. A ValueError means that the message is broken."""
    message_id: Callable[[Raw], str]
    """The transport's own id."""
    sent_ms: Callable[[Raw], int | None] = _nothing
    """When it was first sent, in epoch milliseconds."""
    replayed: Callable[[Raw], bool] = lambda raw: False
    records: Callable[[Raw], list[Raw]] = lambda event: event["Records"]
    """The records of a batch."""
    failure_id: Callable[[Raw], str] | None = None
    """The ``itemIdentifier`` by which a failed record of a batch is reported; without it the whole
    batch fails."""
    attempts: Callable[[Raw], int | None] = _nothing
    """How often this record has been received, including this time; None: the source does not
    count."""
    group: Callable[[Raw], str | None] = _nothing
    """Records of one group run in order, and a failure stops those behind it."""
    comes_again: Callable[[Raw], bool] = lambda raw: True
    """Whether the transport is known to deliver this again until it is acknowledged. A synchronous
    caller is not."""
    text: Callable[[Raw], object] = _nothing
    """The undecoded message, for `TRANSPORT_ID` keys if it cannot be decoded."""
    is_log: bool = False
    """Messages stay in a log, and can be read again under the same ids: a stream or a topic."""
    payload: Callable[[Any], object] = payload_of
    """What is fingerprinted of a message, if the consumer does not say."""
    triggers: frozenset[str] = frozenset()
    """The triggers whose events these are, as `trigger_of` names them; empty: any."""


def trigger_of(event: Any) -> str | None:
    """Return which trigger's shape an event has (``aws:sqs``, …); None for others."""
    if not isinstance(event, dict):
        return None
    if is_eventbridge(event):
        return _EVENTBRIDGE
    match event:
        case {"Records": [{"eventSource": str(name)} | {"EventSource": str(name)}, *_]}:
            return name
        case {"records": {}, "eventSource": str(name)}:
            return name
        case {"requestContext": {"http": {}}} | {"requestContext": {}, "httpMethod": str()}:
            return _HTTP
    return None


def remedy_for(event: Any) -> str | None:
    """Return what to do about a handler that does not take this event; None if nothing says."""
    trigger = trigger_of(event)
    return None if trigger is None else _DECORATORS.get(trigger)


def require_trigger(source: "Source", event: Any) -> None:
    """Check that an event has the shape of its source's.

    Raises:
        ConfigurationError: the function has another trigger, for which its handler was not made.
    """
    trigger = trigger_of(event)
    remedy = remedy_for(event)
    if not source.triggers or trigger in source.triggers or remedy is None:
        return
    own = " or ".join(sorted(source.triggers))
    raise ConfigurationError(
        f"this is an event of {trigger}, but the handler takes those of {own}: {remedy}"
    )


def _detail_of(event: Any) -> object:
    """Return the ``data`` of an event's detail, or the whole detail; anything else as it is."""
    detail = event.get("detail", event) if isinstance(event, dict) else event
    return detail.get("data", detail) if isinstance(detail, dict) else detail


def _fifo_group(record: Raw) -> str | None:
    """Return the group of a FIFO queue's message. In a standard queue a group is a tenant."""
    group: str | None = record["attributes"].get("MessageGroupId")
    if group is None or not record.get("eventSourceARN", "").endswith(".fifo"):
        return None
    return group


def _kafka_records(event: Raw) -> list[Raw]:
    """Return the records of a Kafka batch, each with the name of its cluster."""
    servers = ",".join(sorted(event.get("bootstrapServers", "").split(",")))
    cluster = event.get("eventSourceArn") or servers
    found: list[Raw] = []
    for records in event["records"].values():
        found += [{**record, _CLUSTER: cluster} if cluster else record for record in records]
    return found


def _kafka_id(record: Raw) -> str:
    """Return the place of a record: positions repeat in topics of one name in other clusters."""
    place = f"{record['topic']}-{record['partition']}@{record['offset']}"
    return f"{record[_CLUSTER]}/{place}" if _CLUSTER in record else place


def _kafka_value(record: Raw) -> bytes:
    value = record.get("value")
    if value is None:
        raise ValueError("a tombstone: the record has no value")
    return base64.b64decode(value)


EVENTBRIDGE: Final = Source(
    message=lambda event: event,
    message_id=lambda event: event["id"],
    sent_ms=lambda event: to_ms(datetime.fromisoformat(event["time"])) if "time" in event else None,
    replayed=lambda event: "replay-name" in event,
    comes_again=is_eventbridge,
    payload=_detail_of,
    triggers=frozenset({_EVENTBRIDGE}),
)
"""An event without the whole envelope comes from a synchronous caller: EventBridge sends every
field."""
SNS: Final = Source(
    message=lambda event: json.loads(event["Records"][0]["Sns"]["Message"]),
    message_id=lambda event: event["Records"][0]["Sns"]["MessageId"],
    sent_ms=lambda event: to_ms(datetime.fromisoformat(event["Records"][0]["Sns"]["Timestamp"])),
    text=lambda event: event["Records"][0]["Sns"]["Message"],
    triggers=frozenset({"aws:sns"}),
)
SQS: Final = Source(
    message=lambda record: json.loads(record["body"]),
    message_id=lambda record: record["messageId"],
    sent_ms=lambda record: int(record["attributes"]["SentTimestamp"]),
    failure_id=lambda record: record["messageId"],
    attempts=lambda record: int(record["attributes"]["ApproximateReceiveCount"]),
    group=_fifo_group,
    text=lambda record: record["body"],
    triggers=frozenset({"aws:sqs"}),
)
SNS_IN_SQS: Final = SQS._replace(
    message=lambda record: json.loads(json.loads(record["body"])["Message"]),
    text=lambda record: json.loads(record["body"])["Message"],
)
"""A queue subscribed to a topic without raw message delivery: the message is in SNS's envelope."""
KINESIS: Final = Source(
    message=lambda record: json.loads(base64.b64decode(record["kinesis"]["data"])),
    message_id=lambda record: record["eventID"],
    sent_ms=lambda record: int(record["kinesis"]["approximateArrivalTimestamp"] * 1000),
    failure_id=lambda record: record["kinesis"]["sequenceNumber"],
    group=lambda record: record["kinesis"]["partitionKey"],
    text=lambda record: base64.b64decode(record["kinesis"]["data"]),
    is_log=True,
    triggers=frozenset({"aws:kinesis"}),
)
DYNAMODB_STREAM: Final = Source(
    message=lambda record: record["dynamodb"],
    message_id=lambda record: record["eventID"],
    sent_ms=lambda record: int(record["dynamodb"]["ApproximateCreationDateTime"] * 1000),
    failure_id=lambda record: record["dynamodb"]["SequenceNumber"],
    group=lambda record: json.dumps(record["dynamodb"]["Keys"], sort_keys=True),
    is_log=True,
    triggers=frozenset({"aws:dynamodb"}),
)
KAFKA: Final = Source(
    message=lambda record: json.loads(_kafka_value(record)),
    message_id=_kafka_id,
    sent_ms=lambda record: record["timestamp"],
    records=_kafka_records,
    group=lambda record: f"{record['topic']}-{record['partition']}",
    text=lambda record: None if record.get("value") is None else _kafka_value(record),
    is_log=True,
    triggers=frozenset({"aws:kafka", "SelfManagedKafka"}),
)
"""The id of a record names its cluster. One without a value (a tombstone) breaks the contract."""
