"""Event sources: how the messages of each one are read.

What AWS calls optional is read by `said`: a field that is absent or null says nothing, and neither
does a time that stands for none. Only what a message is read from is needed.
"""

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
_BYTE_ORDER_MARK: Final = "\ufeff"
_LONGEST_ID: Final = 255
"""EventBridge's own ids are UUIDs; a caller by hand may send anything."""


def _nothing(raw: Raw) -> None:
    """Return None: the source does not say."""


def said(raw: Any, *path: str | int) -> Any:
    """Return what a record says in a field, which may be a nested one; None if it does not say."""
    found = raw
    for name in path:
        try:
            found = found[name]
        except (KeyError, IndexError, TypeError):
            return None
    return found


def _time(to_epoch_ms: Callable[[Any], int], *path: str | int) -> Callable[[Raw], int | None]:
    """Return what reads a record's time in epoch milliseconds.

    Kafka writes -1 for "no time", and other services 0: such a record does not say when it was
    sent. A time that cannot be read raises an error, because the window depends on it.
    """

    def read(raw: Raw) -> int | None:
        stated = said(raw, *path)
        if stated is None:
            return None
        at_ms = to_epoch_ms(stated)
        return at_ms if at_ms > 0 else None

    return read


def _of_text(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


def _of_seconds(seconds: float) -> int:
    return int(seconds * 1000)


def _json(text: str | bytes) -> Any:
    """Return the value of a JSON text, which may begin with a byte order mark."""
    if isinstance(text, str):
        text = text.removeprefix(_BYTE_ORDER_MARK)
    return json.loads(text)


def payload_of(message: Any) -> object:
    """Return what is fingerprinted: the content of an enveloped message, or a message as it is.

    The envelopes are EventBridge's and CloudEvents', whose metadata changes between deliveries. A
    message counts as enveloped only with every field that the envelope requires. The content of a
    CloudEvent is its ``data``, or else its ``data_base64``, or nothing.
    """
    if is_eventbridge(message):
        return _detail_of(message)
    if isinstance(message, dict) and message.keys() >= _CLOUD_EVENT:
        return _content_of(message)
    return message


def is_eventbridge(message: Any) -> bool:
    """Return whether a message has all the fields of EventBridge's envelope."""
    return isinstance(message, dict) and message.keys() >= _ENVELOPE


_event_time: Final = _time(_of_text, "time")


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
    return Envelope(event_id, _is_replayed(message))


def _is_replayed(event: Any) -> bool:
    return said(event, "replay-name") is not None


def event_ms(message: Any) -> int | None:
    """Return the time in EventBridge's envelope, in epoch milliseconds; None for other messages.

    A queue in between has a time of its own, even for an old event that was replayed or redriven.
    """
    return _event_time(message) if is_eventbridge(message) else None


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
    failure_id: Callable[[Raw], object] | None = None
    """The ``itemIdentifier`` by which a failed record of a batch is reported; without it the whole
    batch fails. So does a batch with a failed record that lacks it."""
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


def position_of(event: Any) -> str | None:
    """Return where a record of a stream or a topic stays, in words; None for other events.

    Whoever has the position can read the record again for as long as the stream or topic keeps it.
    """
    number = said(event, "kinesis", "sequenceNumber")
    if number is not None:
        shard = str(said(event, "eventID") or "").partition(":")[0]
        return f"in {said(event, 'eventSourceARN')}, {shard}, at sequence number {number}"
    number = said(event, "dynamodb", "SequenceNumber")
    if number is not None:
        return f"in {said(event, 'eventSourceARN')} at sequence number {number}"
    try:
        position = kafka_position(event)
    except KeyError:
        return None
    cluster = said(event, _CLUSTER)
    return f"in {cluster}, {position['partition']}, at offset {position['offset']}"


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
    if not source.triggers or trigger in source.triggers:
        return
    remedy = remedy_for(event)
    if remedy is None:
        return
    own = " or ".join(sorted(source.triggers))
    raise ConfigurationError(
        f"this is an event of {trigger}, but the handler takes those of {own}: {remedy}"
    )


def _detail_of(event: Any) -> object:
    """Return the content of an event's detail, or the whole detail; anything else as it is."""
    detail = event.get("detail", event) if isinstance(event, dict) else event
    if not isinstance(detail, dict):
        return detail
    return _content_of(detail) if detail.keys() >= _CLOUD_EVENT else detail.get("data", detail)


def _content_of(cloud_event: Mapping[str, Any]) -> object:
    return cloud_event.get("data", cloud_event.get("data_base64"))


def _fifo_group(record: Raw) -> str | None:
    """Return the group of a FIFO queue's message. In a standard queue a group is a tenant."""
    group: str | None = said(record, "attributes", "MessageGroupId")
    queue: str = said(record, "eventSourceARN") or ""
    return group if queue.endswith(".fifo") else None


def _receives(record: Raw) -> int | None:
    """Return how often a queue has delivered a message; None if what stands there is no number."""
    try:
        return int(said(record, "attributes", "ApproximateReceiveCount"))
    except (ValueError, TypeError):
        return None


def _changed_item(record: Raw) -> str | None:
    """Return the key of the item whose change a record is."""
    keys = said(record, "dynamodb", "Keys")
    return None if keys is None else json.dumps(keys, sort_keys=True)


def _kafka_records(event: Raw) -> list[Raw]:
    """Return the records of a Kafka batch, each with the name of its cluster."""
    servers: str = said(event, "bootstrapServers") or ""
    cluster = said(event, "eventSourceArn") or ",".join(sorted(servers.split(",")))
    found: list[Raw] = []
    for records in event["records"].values():
        found += [_named(record, cluster) for record in records]
    return found


def _named(record: Raw, cluster: str) -> Raw:
    if not cluster or not isinstance(record, dict):
        return record
    return {**record, _CLUSTER: cluster}


def _kafka_id(record: Raw) -> str:
    """Return the place of a record: positions repeat in topics of one name in other clusters."""
    position = kafka_position(record)
    place = f"{position['partition']}@{position['offset']}"
    return f"{record[_CLUSTER]}/{place}" if _CLUSTER in record else place


def _kafka_partition(record: Raw) -> str | None:
    topic = said(record, "topic")
    partition = said(record, "partition")
    return None if topic is None or partition is None else f"{topic}-{partition}"


def kafka_position(record: Raw) -> dict[str, object]:
    """Return what a mapping takes as the position of a failed record.

    Raises:
        KeyError: the record does not say it.
    """
    partition = _kafka_partition(record)
    offset = said(record, "offset")
    if partition is None or offset is None:
        raise KeyError("topic, partition or offset")
    return {"partition": partition, "offset": offset}


def _kafka_text(record: Raw) -> bytes | None:
    value = record.get("value")
    return None if value is None else base64.b64decode(value)


def _kafka_value(record: Raw) -> bytes:
    value = _kafka_text(record)
    if value is None:
        raise ValueError("a tombstone: the record has no value")
    return value


EVENTBRIDGE: Final = Source(
    message=lambda event: event,
    message_id=lambda event: event["id"],
    sent_ms=_event_time,
    replayed=_is_replayed,
    comes_again=is_eventbridge,
    payload=_detail_of,
    triggers=frozenset({_EVENTBRIDGE}),
)
"""An event without the whole envelope comes from a synchronous caller: EventBridge sends every
field."""
SNS: Final = Source(
    message=lambda event: _json(event["Records"][0]["Sns"]["Message"]),
    message_id=lambda event: event["Records"][0]["Sns"]["MessageId"],
    sent_ms=_time(_of_text, "Records", 0, "Sns", "Timestamp"),
    text=lambda event: event["Records"][0]["Sns"]["Message"],
    triggers=frozenset({"aws:sns"}),
)
SQS: Final = Source(
    message=lambda record: _json(record["body"]),
    message_id=lambda record: record["messageId"],
    sent_ms=_time(int, "attributes", "SentTimestamp"),
    failure_id=lambda record: record["messageId"],
    attempts=_receives,
    group=_fifo_group,
    text=lambda record: record["body"],
    triggers=frozenset({"aws:sqs"}),
)
SNS_IN_SQS: Final = SQS._replace(
    message=lambda record: _json(_json(record["body"])["Message"]),
    text=lambda record: _json(record["body"])["Message"],
)
"""A queue subscribed to a topic without raw message delivery: the message is in SNS's envelope."""
KINESIS: Final = Source(
    message=lambda record: _json(base64.b64decode(record["kinesis"]["data"])),
    message_id=lambda record: record["eventID"],
    sent_ms=_time(_of_seconds, "kinesis", "approximateArrivalTimestamp"),
    failure_id=lambda record: record["kinesis"]["sequenceNumber"],
    group=lambda record: said(record, "kinesis", "partitionKey"),
    text=lambda record: base64.b64decode(record["kinesis"]["data"]),
    is_log=True,
    triggers=frozenset({"aws:kinesis"}),
)
DYNAMODB_STREAM: Final = Source(
    message=lambda record: record["dynamodb"],
    message_id=lambda record: record["eventID"],
    sent_ms=_time(_of_seconds, "dynamodb", "ApproximateCreationDateTime"),
    failure_id=lambda record: record["dynamodb"]["SequenceNumber"],
    group=_changed_item,
    is_log=True,
    triggers=frozenset({"aws:dynamodb"}),
)
KAFKA: Final = Source(
    message=lambda record: _json(_kafka_value(record)),
    message_id=_kafka_id,
    sent_ms=_time(int, "timestamp"),
    records=_kafka_records,
    group=_kafka_partition,
    text=_kafka_text,
    is_log=True,
    triggers=frozenset({"aws:kafka", "SelfManagedKafka"}),
)
"""The id of a record names its cluster. One without a value (a tombstone) breaks the contract.

Any failure raises, so that the whole batch comes again: a mapping takes a report of failed records
for success unless it has ReportBatchItemFailures, which provisioned mode alone offers. With that
setting write ``KAFKA._replace(failure_id=kafka_position)``: each failed record comes again alone.
"""
