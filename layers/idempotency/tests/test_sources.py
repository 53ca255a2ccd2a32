"""How each event source is read."""

import base64
import json
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import pytest

from carride_idempotency import TRANSPORT_ID, ConfigurationError, Consumer, sources
from carride_idempotency.clock import to_ms
from carride_idempotency.sources import Source, event_ms, is_eventbridge, payload_of
from carride_idempotency.testing import dynamodb_stream_event, http_event, sqs_event
from tests.samples import World, event

DETAIL: Final = {"idempotencyid": "id-1", "data": {"orderID": "order_01"}}
BODY: Final = json.dumps(DETAIL)
ENCODED: Final = base64.b64encode(BODY.encode()).decode()
SENT_MS: Final = 1_795_248_000_000  # 2026-11-21T08:00:00Z
SENT: Final = "2026-11-21T08:00:00Z"
EVENT: Final = event() | {"id": "message-1", "time": SENT, "detail": DETAIL}
SQS_ATTRIBUTES: Final = {
    "SentTimestamp": str(SENT_MS),
    "ApproximateReceiveCount": "3",
    "MessageGroupId": "g",
}
SQS: Final = {
    "messageId": "message-1",
    "attributes": SQS_ATTRIBUTES,
    "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:rides.fifo",
}


class Read(NamedTuple):
    text: object = BODY
    message_id: str = "message-1"
    failure_id: object = None
    group: str | None = None
    attempts: int | None = None


KEYS: Final = {"id": {"S": "order_01"}}
CHANGE: Final = {
    "ApproximateCreationDateTime": SENT_MS / 1000,
    "SequenceNumber": "111",
    "Keys": KEYS,
}
KINESIS: Final = {
    "data": ENCODED,
    "approximateArrivalTimestamp": SENT_MS / 1000,
    "sequenceNumber": "49590338",
}
MESSAGES: Final[list[tuple[Source, dict[str, Any], Read]]] = [
    (
        sources.SNS,
        {
            "Records": [
                {
                    "Sns": {
                        "Message": BODY,
                        "MessageId": "message-1",
                        "Timestamp": "2026-11-21T08:00:00.000Z",
                    }
                }
            ]
        },
        Read(),
    ),
    (sources.SQS, SQS | {"body": BODY}, Read(failure_id="message-1", attempts=3, group="g")),
    (
        sources.SNS_IN_SQS,
        SQS | {"body": json.dumps({"MessageId": "n1", "Message": BODY})},
        Read(failure_id="message-1", attempts=3, group="g"),
    ),
    (
        sources.KINESIS,
        {"eventID": "message-1", "kinesis": KINESIS | {"partitionKey": "g"}},
        Read(BODY.encode(), failure_id="49590338", group="g"),
    ),
    (
        sources.DYNAMODB_STREAM,
        {"eventID": "message-1", "dynamodb": CHANGE},
        Read(None, failure_id="111", group='{"id": {"S": "order_01"}}'),
    ),
    (
        sources.KAFKA,
        {"topic": "rides", "partition": 0, "offset": 15, "timestamp": SENT_MS, "value": ENCODED},
        Read(
            BODY.encode(),
            "rides-0@15",
            group="rides-0",
        ),
    ),
]


@pytest.mark.parametrize(("source", "raw", "read"), MESSAGES)
def test_message_is_read_in_the_words_of_its_source(
    source: Source, raw: dict[str, Any], read: Read
) -> None:
    """Each source finds a message's id, text, group, receive count, time, and id of failure."""
    failure_id = source.failure_id and source.failure_id(raw)
    found = Read(
        source.text(raw),
        source.message_id(raw),
        failure_id,
        source.group(raw),
        source.attempts(raw),
    )
    assert found == read
    assert source.message(raw) == (CHANGE if source is sources.DYNAMODB_STREAM else DETAIL)
    assert (source.sent_ms(raw), source.comes_again(raw), source.replayed(raw)) == (
        SENT_MS,
        True,
        False,
    )
    batch = {"records": {"rides-0": [raw]}} if source is sources.KAFKA else {"Records": [raw]}
    assert source.records(batch) == [raw]


def test_replay_is_known_by_its_name() -> None:
    """EventBridge marks what it replays from an archive, and names its events."""
    source = sources.EVENTBRIDGE
    assert source.replayed(EVENT | {"replay-name": "eu-west-1.lost-hour"})
    assert not source.replayed(EVENT)
    assert (source.message_id(EVENT), source.sent_ms(EVENT)) == ("message-1", SENT_MS)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (EVENT, DETAIL["data"]),
        (EVENT | {"detail": {"a": 1}}, {"a": 1}),
        ({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": [1]}, [1]),
        ({"type": "t", "data": [1], "price": 5}, {"type": "t", "data": [1], "price": 5}),
        ({"orderID": "order_01"}, {"orderID": "order_01"}),
        ([1], [1]),
        (None, None),
    ],
)
def test_payload_is_what_happened(message: object, payload: object) -> None:
    """The fingerprint covers the payload without the envelope."""
    assert payload_of(message) == payload


@pytest.mark.parametrize("missing", sorted(EVENT))
def test_envelope_is_recognised_by_all_of_its_fields(missing: str) -> None:
    """A message that lacks a field of EventBridge's is a plain one, without a time of its own."""
    message = {name: value for name, value in EVENT.items() if name != missing}
    assert not is_eventbridge(message)
    assert not sources.EVENTBRIDGE.comes_again(message)
    assert (payload_of(message), event_ms(message), event_ms(EVENT)) == (message, None, SENT_MS)


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        ({"eventSourceArn": "arn:cluster/a"}, "arn:cluster/a"),
        ({"bootstrapServers": "b:9092,a:9092"}, "a:9092,b:9092"),
        ({}, ""),
    ],
)
def test_kafkas_id_names_its_cluster(cluster: dict[str, str], name: str) -> None:
    """Two clusters have topics of one name, and so records of one position."""
    record = {"topic": "rides", "partition": 0, "offset": 15}
    [raw] = sources.KAFKA.records(cluster | {"records": {"rides-0": [record]}})
    assert sources.KAFKA.message_id(raw) == (f"{name}/rides-0@15" if name else "rides-0@15")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_time_is_the_same_in_every_process(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone is UTC wherever the process runs; milliseconds are rounded down."""
    noon = datetime(2026, 11, 21, 12, microsecond=1999, tzinfo=UTC)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    times = [
        to_ms(noon),
        to_ms(noon.replace(tzinfo=None)),
        to_ms(noon.astimezone(timezone(timedelta(hours=-3)))),
    ]
    monkeypatch.undo()
    time.tzset()
    assert times == 3 * [1_795_262_400_001]


OF_SNS: Final = {
    "Records": [{"EventSource": "aws:sns", "Sns": {"Message": "{}", "MessageId": "m"}}]
}
OF_KAFKA: Final = {"eventSource": "SelfManagedKafka", "records": {"rides-0": []}}
FOREIGN: Final[list[tuple[Source, dict[str, Any], str]]] = [
    (sources.EVENTBRIDGE, sqs_event({"id": 1}), "batch_handler"),
    (sources.EVENTBRIDGE, dynamodb_stream_event({"id": 1}), "DYNAMODB_STREAM"),
    (sources.EVENTBRIDGE, OF_SNS, "source=SNS"),
    (sources.EVENTBRIDGE, OF_KAFKA, "source=KAFKA"),
    (sources.EVENTBRIDGE, http_event("POST", "/rides"), "http_handler"),
    (sources.SQS, event(), "event_handler"),
    (sources.SQS, dynamodb_stream_event({"id": 1}), "DYNAMODB_STREAM"),
    (sources.KINESIS, sqs_event({"id": 1}), "batch_handler"),
]


@pytest.mark.parametrize(("source", "foreign", "remedy"), FOREIGN)
def test_event_of_another_trigger_is_refused(
    world: World, source: Source, foreign: dict[str, Any], remedy: str
) -> None:
    """It neither runs nor is dead-lettered: the function fails with the decorator's name."""
    consumer: Consumer[Any] = world.consumer(key=TRANSPORT_ID, source=source)
    is_single = source in (sources.EVENTBRIDGE, sources.SNS)
    decorate: Any = consumer.event_handler if is_single else consumer.batch_handler
    with pytest.raises(ConfigurationError, match=remedy):
        decorate(world.work)(foreign, world.invocation())
    assert (world.work.runs, world.box.letters) == ([], [])
    assert [seen.outcome for seen in world.seen] == ["Failed"]


def test_event_of_no_known_trigger_is_a_message() -> None:
    """A synchronous caller sends what it likes, and so does S3, which is not a source here."""
    messages: list[Any] = [
        {"Records": []},
        {"Records": [{"eventSource": "aws:s3"}]},
        {"id": 1},
        None,
    ]
    for message in messages:
        sources.require_trigger(sources.EVENTBRIDGE, message)
