"""How the audit reads each kind of evidence, from in-process services."""

import base64
import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from carride import ride as rides
from carride.events import CarRideCreated, RideEvent
from ops import audit
from ops.ledger import DeadLettered, Delivered, Published, State

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_logs.type_defs import InputLogEventTypeDef

GROUP = "/aws/events/carride"


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    """Keep every call inside this process."""
    with mock_aws():
        yield


def ride_event(event_id: str = "event-1", **attributes: Any) -> dict[str, Any]:
    """Return an event of the bus that honours the contract."""
    ride = rides.request(
        order_id="order_01",
        customer_id="customer_a",
        pickup="sector_01",
        destination="sector_03",
        passengers=1,
        price=900,
    )
    told = RideEvent.of(CarRideCreated.of(ride), source="acr.com.car-ride", time=datetime(2026, 11, 21, tzinfo=UTC))
    envelope = {"id": event_id, "source": "acr.com.car-ride", "detail-type": "CarRideEvent", "detail": told.to_detail()}
    return envelope | attributes


FACT = ride_event()["detail"]["idempotencyid"]


def broken_event(event_id: str = "event-2") -> dict[str, Any]:
    """Return an event of the bus whose detail breaks the contract."""
    return ride_event(event_id, detail={"nonsense": True})


def write_log(*lines: str) -> "CloudWatchLogsClient":
    """Write lines to a new log group and return the client."""
    logs = boto3.client("logs")
    logs.create_log_group(logGroupName=GROUP)
    logs.create_log_stream(logGroupName=GROUP, logStreamName="stream")
    now = int(datetime.now(UTC).timestamp() * 1000)
    events: list[InputLogEventTypeDef] = [{"timestamp": now, "message": line} for line in lines]
    logs.put_log_events(logGroupName=GROUP, logStreamName="stream", logEvents=events)
    return logs


def letter(body: object, **attributes: str) -> Any:
    """Return a message as SQS hands it out."""
    values = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    return {"Body": json.dumps(body), "MessageAttributes": values}


def test_published_are_the_ride_events_of_the_log() -> None:
    """Copies, broken events and replays are told apart; what no consumer subscribes to is left out."""
    logs = write_log(
        json.dumps(ride_event()),
        json.dumps(broken_event()),
        json.dumps(ride_event(**{"replay-name": "again"})),
        json.dumps(ride_event(source="somebody.else")),
        json.dumps(ride_event(**{"detail-type": "Something"})),
    )
    assert list(audit.published(logs, GROUP)) == [
        Published("event-1", "CarRideCreated", FACT),
        Published("event-2", None, None),
        Published("event-1", "CarRideCreated", FACT, replayed=True),
    ]


def test_deliveries_are_the_consumers_structured_lines() -> None:
    """The runtime's own lines and other messages are no deliveries; an event without a key has no fact."""
    logs = write_log(
        "START RequestId: 1 Version: $LATEST",
        json.dumps({"message": "starting"}),
        json.dumps(
            {"message": "delivery", "consumer": "ride-history", "outcome": "New", "key": f"ride-history#{FACT}"}
        ),
        json.dumps({"message": "delivery", "consumer": "ride-history", "outcome": "DeadLettered"}),
    )
    assert list(audit.deliveries(logs, GROUP)) == [
        Delivered("ride-history", "New", FACT),
        Delivered("ride-history", "DeadLettered", None),
    ]


def test_a_letter_of_the_consumer_says_its_reason() -> None:
    """The consumer's own dead letter carries the reason and the event as it came."""
    sent = {"reason": "CONTRACT", "message": "…", "consumer": "ride-history", "key": None, "event": broken_event()}
    assert audit.dead_letter("RideHistoryDlq", "ride-history", letter(sent)) == DeadLettered(
        "RideHistoryDlq", "CONTRACT", "ride-history", "event-2", None
    )


def test_a_compressed_letter_is_unpacked() -> None:
    """An event too large for one message is still recognised."""
    packed = base64.b64encode(gzip.compress(json.dumps(ride_event()).encode())).decode()
    sent = {"reason": "QUARANTINED", "consumer": "ride-history", "event": None, "eventGzip": packed}
    assert audit.dead_letter("RideHistoryDlq", "ride-history", letter(sent)).fact == FACT


def test_a_letter_of_a_batch_consumer_holds_the_record() -> None:
    """Where a queue lies in front of the consumer, the event is in the record's body."""
    record = {"messageId": "message-1", "body": json.dumps(ride_event())}
    sent = {"reason": "QUARANTINED", "consumer": "dispatch", "event": record}
    assert audit.dead_letter("DispatchDlq", "dispatch", letter(sent)) == DeadLettered(
        "DispatchDlq", "QUARANTINED", "dispatch", "event-1", FACT
    )


def test_a_message_that_was_received_too_often_is_the_event() -> None:
    """SQS moves a message as it is, and says nothing about it."""
    assert audit.dead_letter("DispatchDlq", "dispatch", letter(ride_event())) == DeadLettered(
        "DispatchDlq", "ReceivesExhausted", "dispatch", "event-1", FACT
    )


def test_a_letter_of_the_pipe_names_no_event() -> None:
    """A pipe says which record of the stream it gave up, and keeps what was in it to itself."""
    sent = {"context": {"condition": "RetryAttemptsExhausted"}, "DDBStreamBatchInfo": {"batchSize": 1}}
    assert audit.dead_letter("OutboxPipeDlq", None, letter(sent)) == DeadLettered(
        "OutboxPipeDlq", "RetryAttemptsExhausted", None, None, None
    )


def test_a_letter_of_lambda_says_the_condition() -> None:
    """What Lambda gave up after its retries carries the event as the request's payload."""
    sent = {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": ride_event()}
    assert audit.dead_letter("RideHistoryDlq", "ride-history", letter(sent)) == DeadLettered(
        "RideHistoryDlq", "RetriesExhausted", "ride-history", "event-1", FACT
    )


def test_a_letter_of_a_rule_says_the_error_code() -> None:
    """What EventBridge could not hand over is the event itself; the reason is an attribute."""
    assert audit.dead_letter(
        "RideHistoryRuleDlq", "ride-history", letter(ride_event(), ERROR_CODE="NO_PERMISSIONS")
    ) == DeadLettered("RideHistoryRuleDlq", "NO_PERMISSIONS", "ride-history", "event-1", FACT)


def test_a_letter_of_the_producer_stands_for_no_consumer() -> None:
    """What the bus refused never had an id there, and no consumer a chance at it."""
    refused = ride_event()
    del refused["id"]
    assert audit.dead_letter("ProducerDlq", None, letter(refused, ERROR_CODE="EntryTooLarge")) == DeadLettered(
        "ProducerDlq", "EntryTooLarge", None, None, FACT
    )


def test_a_letter_that_is_no_event_is_counted_too() -> None:
    """A failed invocation of the simulator lies in the producer's queue with whatever it was invoked with."""
    sent = {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": None}
    assert audit.dead_letter("ProducerDlq", None, letter(sent)) == DeadLettered(
        "ProducerDlq", "RetriesExhausted", None, None, None
    )


def test_peeking_reads_every_message_and_leaves_them_all() -> None:
    """Two audits in a row see the same messages: none is deleted, none stays hidden."""
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="RideHistoryDlq")["QueueUrl"]
    for number in range(23):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    for _ in range(2):
        assert {message["Body"] for message in audit.peek(sqs, url)} == {str(number) for number in range(23)}


def test_a_consumer_without_a_table_is_held_to_what_it_reports() -> None:
    """Each fact has one effect, though its report was lost and only a duplicate tells of it; more commits show."""
    reports = [
        ("New", "once"),
        ("Duplicate", "once"),
        ("Duplicate", "unreported"),
        ("New", "twice"),
        ("Retried", "twice"),
    ]
    others = [("Failed", "failed"), ("DeadLettered", "poison"), ("Expired", "late")]
    logs = write_log(
        *(
            json.dumps({"message": "delivery", "consumer": "points", "outcome": outcome, "key": f"points#{fact}"})
            for outcome, fact in reports + others
        )
    )
    assert list(audit.reported_states(logs, GROUP, "points")) == [
        State("points", "once", frozenset({"once"}), 1),
        State("points", "unreported", frozenset({"unreported"}), 1),
        State("points", "twice", frozenset({"twice"}), 2),
    ]


def test_a_table_says_which_facts_took_effect_and_how_often() -> None:
    """The entries of an item are its facts, and the counter its effects."""
    dynamodb = boto3.client("dynamodb")
    dynamodb.create_table(
        TableName="rides",
        KeySchema=[{"AttributeName": "orderID", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "orderID", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    dynamodb.put_item(
        TableName="rides",
        Item={"orderID": {"S": "order_01"}, "effects": {"N": "2"}, f"event#{FACT}": {"M": {}}},
    )
    states = list(audit.states(dynamodb, "rides", "ride-history"))
    assert states == [State("ride-history", "order_01", frozenset({FACT}), 2)]
