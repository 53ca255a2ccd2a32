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


ID = "00000000-0000-4000-8000-000000000001"
UNREADABLE = [
    "[" * 20_000,
    '{"a":' * 20_000 + "1" + "}" * 20_000,
    f'{{"price":{"9" * 5_000}}}',
    "no json",
    '{"cut',
    "1",
]


@pytest.mark.parametrize("line", UNREADABLE, ids=lambda line: line[:8])
def test_a_line_that_cannot_be_read_is_a_published_event(line: str) -> None:
    """It may have been any event, and the others are counted all the same; no report is read out of it."""
    logs = write_log(line, json.dumps(ride_event()))
    unreadable, event = audit.published(logs, GROUP)
    assert (unreadable.type, unreadable.fact, event.fact) == (None, None, FACT)
    assert unreadable.event_id.startswith("unreadable line ")
    assert list(audit.deliveries(logs, GROUP)) == []


def test_an_event_that_cannot_be_read_is_accounted_for_by_its_letter() -> None:
    """EventBridge's id is found in what it logged and in the letter, even inside of a record."""
    text = json.dumps({"version": "0", "id": ID, "detail": {}})[:-2] + "[" * 20_000
    (line,) = audit.published(write_log(text), GROUP)
    record = {"reason": "CONTRACT", "consumer": "dispatch", "event": {"messageId": "1", "body": text}}
    kept = [audit.dead_letter("DispatchDlq", "dispatch", {"Body": body}) for body in (text, json.dumps(record))]
    assert [line.event_id, *(letter.event_id for letter in kept)] == [ID] * 3
    assert [letter.reason for letter in kept] == ["UNREADABLE", "CONTRACT"]


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


PACKED = base64.b64encode(gzip.compress(json.dumps(ride_event()).encode())).decode()
PACKED_DETAIL = base64.b64encode(gzip.compress(json.dumps(ride_event()["detail"]).encode())).decode()
REFUSED = {name: value for name, value in ride_event().items() if name != "id"}
BY_CONSUMER = {"reason": "QUARANTINED", "message": "…", "consumer": "dispatch"}
BY_LAMBDA = {"requestContext": {"condition": "Exhausted"}}


@pytest.mark.parametrize(
    ("message", "reason", "event_id", "fact"),
    [
        (letter(BY_CONSUMER | {"event": ride_event()}), "QUARANTINED", "event-1", FACT),
        (letter(BY_CONSUMER | {"event": broken_event()}), "QUARANTINED", "event-2", None),
        (letter(BY_CONSUMER | {"event": None, "eventGzip": PACKED}), "QUARANTINED", "event-1", FACT),
        (
            letter(BY_CONSUMER | {"event": {"messageId": "1", "body": json.dumps(ride_event())}}),
            *("QUARANTINED", "event-1", FACT),
        ),
        (letter(BY_LAMBDA | {"requestPayload": ride_event()}), "Exhausted", "event-1", FACT),
        (letter(BY_LAMBDA | {"requestPayload": None}), "Exhausted", None, None),
        (letter({"context": {"condition": "Exhausted"}, "DDBStreamBatchInfo": {}}), "Exhausted", None, None),
        (letter(ride_event()), "ReceivesExhausted", "event-1", FACT),
        (letter(ride_event(), ERROR_CODE="NO_PERMISSIONS"), "NO_PERMISSIONS", "event-1", FACT),
        (letter(REFUSED, ERROR_CODE="InternalFailure"), "InternalFailure", None, FACT),
        (letter(REFUSED | {"detail": None, "detailGzip": PACKED_DETAIL}, ERROR_CODE="A"), "A", None, FACT),
    ],
    ids=[
        *("consumer", "broken", "compressed", "of a batch", "Lambda", "no event", "pipe", "SQS", "rule", "publisher"),
        "publisher, compressed",
    ],
)
def test_a_letter_says_why_it_lies_there_whoever_sent_it(
    message: Any, reason: str, event_id: str | None, fact: str | None
) -> None:
    """Reason, EventBridge's id and fact are found in the form of each sender, as far as they are in it."""
    found = audit.dead_letter("TheDlq", "dispatch", message)
    assert found == DeadLettered("TheDlq", reason, "dispatch", event_id, fact)


def test_peeking_reads_every_message_and_leaves_them_all() -> None:
    """Two audits in a row see the same messages: none is deleted, none stays hidden."""
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="RideHistoryDlq")["QueueUrl"]
    for number in range(23):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    for _ in range(2):
        assert {message["Body"] for message in audit.peek(sqs, url)} == {str(number) for number in range(23)}


class SlowQueue:
    """300 messages, of which a read takes three and ten seconds: the first show again before the last are read."""

    def __init__(self) -> None:
        self.now = 0
        self.shown_from = dict.fromkeys(map(str, range(300)), 0)

    def get_queue_attributes(self, **request: Any) -> Any:
        """Return a count that is too low."""
        return {"Attributes": {"ApproximateNumberOfMessages": "280"}}

    def receive_message(self, **request: Any) -> Any:
        """Return messages that are not hidden, the oldest first."""
        self.now += 10
        shown = [number for number, since in self.shown_from.items() if since <= self.now][:3]
        self.shown_from |= dict.fromkeys(shown, self.now + request["VisibilityTimeout"])
        return {"Messages": [{"MessageId": number, "ReceiptHandle": f"{number}@{self.now}"} for number in shown]}

    def change_message_visibility_batch(self, **request: Any) -> None:
        """Show messages again, by the receipts of the last time."""
        for entry in request["Entries"]:
            number, _, _ = entry["ReceiptHandle"].partition("@")
            self.shown_from[number] = self.now + entry["VisibilityTimeout"]


def test_peeking_into_a_slow_queue_reads_every_message_once_and_ends() -> None:
    """What shows again while the rest is read is known, and is put back with the rest."""
    queue: Any = SlowQueue()
    assert [message["MessageId"] for message in audit.peek(queue, "url")] == list(map(str, range(300)))
    assert set(queue.shown_from.values()) == {queue.now}


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
