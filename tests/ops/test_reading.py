"""How the audit reads each kind of evidence, from in-process services."""

import base64
import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws

from carride import ride as rides
from carride.events import RideEvent
from carride.facts import CarRideCreated
from idempotency import marshalling
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    NEVER,
    DeadLettered,
    Delivered,
    Effect,
    Evidence,
    Named,
    Published,
    RideItem,
)
from ops.audit.queues import dead_letter, peek
from ops.audit.reading import deliveries, published, reported, ride_items, rides_of_cars
from ops.audit.saga import check
from ops.site import Site
from tests.functions.saga import create_table

GROUP = "/aws/events/carride"
NOW = datetime.now(UTC).replace(microsecond=0)
EXPIRES = datetime(2026, 11, 21, tzinfo=UTC)
HISTORY, DISPATCH = (each for each in CONSUMERS if each.name in ("ride-history", "dispatch"))


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
    told = RideEvent.of(CarRideCreated.of(ride), source="acr.com.car-ride", time=EXPIRES, expirytime=EXPIRES)
    envelope = {"id": event_id, "source": "acr.com.car-ride", "detail-type": "CarRideEvent", "detail": told.to_detail()}
    return envelope | attributes


FACT = ride_event()["detail"]["idempotencyid"]


BROKEN = ride_event("event-2", detail={"nonsense": True})
"""An event of the bus whose detail breaks the contract."""


def write_log(*lines: str) -> Any:
    """Write lines to a new log group and return the client."""
    logs = boto3.client("logs")
    logs.create_log_group(logGroupName=GROUP)
    logs.create_log_stream(logGroupName=GROUP, logStreamName="stream")
    now = int(datetime.now(UTC).timestamp() * 1000)
    logs.put_log_events(
        logGroupName=GROUP, logStreamName="stream", logEvents=[{"timestamp": now, "message": line} for line in lines]
    )
    return logs


def site(client: Any, **outputs: str) -> Site:
    """Return a stack of which one service is asked."""
    stack = Site("carride", "us-east-1", lambda service, region: client)
    stack.__dict__["outputs"] = {"RideHistoryLogGroupName": GROUP, **outputs}
    return stack


def letter(body: object, **attributes: str) -> Any:
    """Return a message as SQS hands it out."""
    values = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    return {"Body": json.dumps(body), "MessageAttributes": values}


def test_published_are_the_ride_events_of_the_log() -> None:
    """Copies, broken events and replays are told apart; what no consumer subscribes to is left out."""
    logs = write_log(
        json.dumps(ride_event()),
        json.dumps(BROKEN),
        json.dumps(ride_event(**{"replay-name": "again", "region": "us-west-2"})),
        json.dumps(ride_event(source="somebody.else")),
        json.dumps(ride_event(**{"detail-type": "Something"})),
    )
    found = list(published(logs, GROUP))
    assert all(event.time >= NOW for event in found)
    named = Named("order_01", "CarRideCreated", 1)
    assert [event._replace(time=ALWAYS) for event in found] == [
        Published("event-1", "CarRideCreated", FACT, named, EXPIRES),
        Published("event-2", None, None),
        Published("event-1", "CarRideCreated", FACT, named, EXPIRES, replayed=True, region="us-west-2"),
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
    unreadable, event = published(logs, GROUP)
    assert (unreadable.type, unreadable.fact, event.fact) == (None, None, FACT)
    assert unreadable.event_id.startswith("unreadable line ")
    assert list(deliveries(site(logs), HISTORY)) == []


def test_an_event_that_cannot_be_read_is_accounted_for_by_its_letter() -> None:
    """EventBridge's id is found in what it logged and in the letter, even inside of a record."""
    text = json.dumps({"version": "0", "id": ID, "detail": {}})[:-2] + "[" * 20_000
    (line,) = published(write_log(text), GROUP)
    record = {"reason": "CONTRACT", "consumer": "dispatch", "event": {"messageId": "1", "body": text}}
    kept = [dead_letter("DispatchDlq", "dispatch", {"Body": body}) for body in (text, json.dumps(record))]
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
    assert [each._replace(time=NEVER) for each in deliveries(site(logs), HISTORY)] == [
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
        (letter(BY_CONSUMER | {"event": BROKEN}), "QUARANTINED", "event-2", None),
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
    found = dead_letter("TheDlq", "dispatch", message)
    assert found == DeadLettered("TheDlq", reason, "dispatch", event_id, fact)


def test_peeking_reads_every_message_and_leaves_them_all() -> None:
    """Two audits in a row see the same messages: none is deleted, none stays hidden."""
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="RideHistoryDlq")["QueueUrl"]
    for number in range(23):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    for _ in range(2):
        assert {message["Body"] for message in peek(sqs, url)} == {str(number) for number in range(23)}


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
    assert [message["MessageId"] for message in peek(queue, "url")] == list(map(str, range(300)))
    assert set(queue.shown_from.values()) == {queue.now}


def test_a_consumer_without_a_table_is_audited_by_its_log() -> None:
    """Each fact has one effect, though its line was lost and only a duplicate shows it; more commits show."""
    outcomes = ["New once", "Duplicate once", "Duplicate unreported", "New twice", "Retried twice"]
    outcomes += ["Failed failed", "DeadLettered poison", "Expired late"]
    logged = [Delivered("points", line.split()[0], line.split()[1]) for line in outcomes]
    assert list(reported("points", logged)) == [
        RideItem("points", fact, (Effect(fact, None, NEVER),), count)
        for fact, count in (("once", 1), ("unreported", 1), ("twice", 2))
    ]


def test_a_table_says_which_facts_took_effect_what_they_emitted_and_what_is_still_needed() -> None:
    """The entries of an item are its effects, and the counter how often they took place."""
    dynamodb = boto3.client("dynamodb")
    create_table(dynamodb, "rides", "orderID")
    entry = {"type": "CarRideAccepted", "sequence": 2, "time": EXPIRES.isoformat(), "emitted": ["CarAssigned"]}
    kept = {f"event#{FACT}": entry, "orderID": "order_01", "effects": 2, "state": "assigned", "carID": "car_01"}
    item: Any = marshalling.item(kept | {"openSince": "2026-11-21T00:00:00Z"})
    dynamodb.put_item(TableName="rides", Item=item)
    effect = Effect(FACT, Named("order_01", "CarRideAccepted", 2), EXPIRES, ("CarAssigned",))
    reader = site(dynamodb, AssignmentTableName="rides")
    assert list(ride_items(reader, DISPATCH)) == [
        RideItem("dispatch", "order_01", (effect,), 2, "assigned", "car_01", EXPIRES)
    ]


def test_a_car_whose_row_makes_no_sense_is_held_by_whatever_its_row_says() -> None:
    """Neither a number for a ride nor a second row of the same car hides a held car, or ends the audit."""
    dynamodb = boto3.client("dynamodb")
    create_table(dynamodb, "cars", "zone", "carID")
    rows: Any = [("zone_01", {"S": "order_01"}), ("zone_02", None), ("zone_03", {"N": "7"})]
    for zone, ride in rows:
        car = {"zone": {"S": zone}, "carID": {"S": "car_01" if zone != "zone_03" else "car_02"}}
        dynamodb.put_item(TableName="cars", Item=car | ({} if ride is None else {"rideID": ride}))
    cars = rides_of_cars(dynamodb, "cars")
    assert cars == {"car_01": "order_01", "car_02": "7"}
    assert check(Evidence(CONSUMERS, cars=cars)).cars_held == 2
