"""Every usual event source is read by its own words."""

import base64
import json
from typing import Any

import pytest

from idempotency import sources
from idempotency.sources import Source, event_ms, payload_of

DETAIL = {"idempotencyid": "id-1", "data": {"orderID": "order_01"}}
BODY = json.dumps(DETAIL)
SENT_MS = 1_795_248_000_000  # 2026-11-21T08:00:00Z

EVENTS: dict[str, tuple[Source, dict[str, Any]]] = {
    "EventBridge": (sources.EVENTBRIDGE, {"id": "message-1", "time": "2026-11-21T08:00:00Z", "detail": DETAIL}),
    "SNS": (
        sources.SNS,
        {"Records": [{"Sns": {"Message": BODY, "MessageId": "message-1", "Timestamp": "2026-11-21T08:00:00.000Z"}}]},
    ),
    "SQS": (
        sources.SQS,
        {
            "Records": [
                {
                    "messageId": "message-1",
                    "body": BODY,
                    "attributes": {
                        "SentTimestamp": str(SENT_MS),
                        "ApproximateReceiveCount": "3",
                        "MessageGroupId": "g",
                    },
                }
            ]
        },
    ),
    "Kinesis": (
        sources.KINESIS,
        {
            "Records": [
                {
                    "eventID": "message-1",
                    "kinesis": {
                        "data": base64.b64encode(BODY.encode()).decode(),
                        "approximateArrivalTimestamp": SENT_MS / 1000,
                        "sequenceNumber": "49590338",
                        "partitionKey": "g",
                    },
                }
            ]
        },
    ),
    "DynamoDB stream": (
        sources.DYNAMODB_STREAM,
        {
            "Records": [
                {
                    "eventID": "message-1",
                    "dynamodb": {
                        "ApproximateCreationDateTime": SENT_MS / 1000,
                        "SequenceNumber": "111",
                        "Keys": {"id": {"S": "order_01"}},
                    },
                }
            ]
        },
    ),
    "Kafka": (
        sources.KAFKA,
        {
            "records": {
                "rides-0": [
                    {
                        "topic": "rides",
                        "partition": 0,
                        "offset": 15,
                        "timestamp": SENT_MS,
                        "value": base64.b64encode(BODY.encode()).decode(),
                    }
                ]
            }
        },
    ),
}
SINGLE = ("EventBridge", "SNS")


def raw_of(name: str) -> tuple[Source, Any]:
    """A source, and one of its messages."""
    source, event = EVENTS[name]
    return source, event if name in SINGLE else source.records(event)[0]


@pytest.mark.parametrize("name", EVENTS)
def test_message_id_is_the_transports_own(name: str) -> None:
    """Each source has one name for the id of a message."""
    source, raw = raw_of(name)
    assert source.message_id(raw) == ("rides-0@15" if name == "Kafka" else "message-1")


@pytest.mark.parametrize("name", ["SNS", "SQS", "Kinesis", "Kafka"])
def test_message_is_decoded(name: str) -> None:
    """What extractors see is the JSON that was sent."""
    source, raw = raw_of(name)
    assert source.message(raw) == DETAIL


@pytest.mark.parametrize("name", ["SNS", "SQS", "Kinesis", "DynamoDB stream", "Kafka"])
def test_time_of_sending_is_in_milliseconds(name: str) -> None:
    """Each source has its own unit of time; a delivery has one."""
    source, raw = raw_of(name)
    assert source.sent_ms(raw) == SENT_MS


@pytest.mark.parametrize(
    ("name", "failure_id"),
    [("SQS", "message-1"), ("Kinesis", "49590338"), ("DynamoDB stream", "111"), ("Kafka", None)],
)
def test_failed_record_is_reported_by_what_its_source_expects(name: str, failure_id: str | None) -> None:
    """SQS wants the message's id, streams the sequence number; Kafka takes back whole batches alone."""
    source, raw = raw_of(name)
    assert (source.failure_id and source.failure_id(raw)) == failure_id


@pytest.mark.parametrize(
    ("name", "group"),
    [("SQS", "g"), ("Kinesis", "g"), ("DynamoDB stream", '{"id": {"S": "order_01"}}'), ("Kafka", "rides-0")],
)
def test_group_is_what_the_source_keeps_in_order(name: str, group: str) -> None:
    """A failure holds back what the source promises to deliver behind it."""
    source, raw = raw_of(name)
    assert source.group(raw) == group


def test_standard_queue_has_no_groups() -> None:
    """Messages of a queue that is not FIFO are independent."""
    source, raw = raw_of("SQS")
    assert source.group(raw | {"attributes": {}}) is None


def test_receive_count_tells_a_second_attempt() -> None:
    """A message that killed its process is known by how often it was received."""
    source, raw = raw_of("SQS")
    assert source.attempts(raw) == 3


def test_replay_is_known_by_its_name() -> None:
    """EventBridge marks what it replays from an archive."""
    source, event = EVENTS["EventBridge"]
    assert source.replayed(event | {"replay-name": "eu-west-1.lost-hour"})
    assert not source.replayed(event)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        ({"detail": DETAIL, "id": "1"}, DETAIL["data"]),
        ({"detail": {"a": 1}}, {"a": 1}),
        ({"detail": "text"}, {"detail": "text"}),
        ({"orderID": "order_01"}, {"orderID": "order_01"}),
        ([1], [1]),
        (None, None),
    ],
)
def test_payload_is_what_happened(message: object, payload: object) -> None:
    """An envelope's own fields change between deliveries, and are no part of the fingerprint."""
    assert payload_of(message) == payload


def test_event_is_as_old_as_its_envelope_says() -> None:
    """A queue stamps its own time on an old event; the envelope inside knows better."""
    assert event_ms(EVENTS["EventBridge"][1]) == SENT_MS
    assert event_ms({"time": "2026-11-21T08:00:00Z"}) is None
    assert event_ms("text") is None
