"""How the audit reads each kind of evidence, from in-process services."""

import base64
import gzip
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from assignment_table import free
from assignments import Car
from carride.events import RideEvent, parse_event
from carride.facts import CarRideCreated
from carride.history import kept
from carride_idempotency import marshalling
from carride_idempotency.fingerprint import fingerprint
from ops.audit.evidence import (
    ALWAYS,
    CONSUMERS,
    NEVER,
    DeadLettered,
    Delivered,
    Effect,
    Named,
    Published,
    RideItem,
)
from ops.audit.queues import (
    GLIMPSE_SECONDS,
    Letters,
    dead_letter,
    peek,
)
from ops.audit.reading import (
    deliveries,
    is_unlisted,
    kept_since,
    logged_items,
    published,
    read_records,
    ride_items,
    rides_of_cars,
    scan,
)
from ops.dead_letters import letter_of
from ops.tests.world import create_table, empty_stack, log, stack
from tests.kit.rides import booked

GROUP: Final = "/aws/events/carride"
NOW: Final = datetime.now(UTC).replace(microsecond=0)
EXPIRES: Final = datetime(2026, 11, 21, tzinfo=UTC)
HISTORY, DISPATCH = (each for each in CONSUMERS if each.name in ("ride-history", "dispatch"))


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    """Keep every call inside this process."""
    with mock_aws():
        yield


def ride_event(event_id: str = "event-1", **attributes: Any) -> dict[str, Any]:
    """Return an event of the bus that honours the contract."""
    event = RideEvent.of(
        CarRideCreated.of(booked()), source="acr.com.car-ride", time=EXPIRES, expirytime=EXPIRES
    )
    envelope = {
        "id": event_id,
        "source": event.source,
        "detail-type": "CarRideEvent",
        "detail": event.to_detail(),
    }
    return envelope | attributes


FACT: Final = ride_event()["detail"]["idempotencyid"]
BROKEN: Final = ride_event("event-2", detail={"nonsense": True})
"""An event of the bus whose detail breaks the contract."""


def message(body: object, **attributes: str) -> Any:
    """Return a message as SQS returns it."""
    values = {
        name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
    }
    return {"Body": json.dumps(body), "MessageAttributes": values}


ID: Final = "00000000-0000-4000-8000-000000000001"
NUMBER: Final = f'{{"price":{"9" * 5_000}}}'
CUT: Final = json.dumps({"version": "0", "id": ID, "detail": {}})[:-2] + "[" * 20_000
UNREADABLE: Final = (
    "[" * 20_000,
    '{"a":' * 20_000 + "1" + "}" * 20_000,
    NUMBER,
    "no json",
    '{"cut',
    "1",
)
DELIVERY: Final = {"message": "delivery", "consumer": "ride-history"}


def without(*names: str, **added: object) -> dict[str, Any]:
    """Return the event without some attributes, and with others."""
    detail = {name: value for name, value in ride_event()["detail"].items() if name not in names}
    return ride_event(detail=detail | added)


IN_BASE64: Final = base64.b64encode(json.dumps(ride_event()["detail"]["data"]).encode()).decode()
SPELT: Final = {"idempotencyId": ride_event()["detail"]["idempotencyid"]}


@pytest.mark.parametrize(
    ("event", "missing"),
    [
        (ride_event(), None),
        (without("data", data_base64=IN_BASE64), None),
        (without("subject"), "subject"),
        (without("idempotencyid", **SPELT), None),
        (without("idempotencyid", "subject", **SPELT), None),
        (without("idempotencyid", "data", data_base64=IN_BASE64, **SPELT), "data"),
        (without(idempotencyid=None, **SPELT), "idempotencyid"),
        (BROKEN, None),
    ],
)
def test_an_event_that_partners_cannot_get_says_what_it_lacks(
    event: dict[str, Any], missing: str | None
) -> None:
    """Only what consumers accept is named; they dead-letter the rest."""
    ref = empty_stack()
    log(ref, "CarRideEvents", event)
    assert [each.missing_for_partners for each in published(ref)] == [missing]


def test_a_log_shows_published_events_and_deliveries() -> None:
    """Copies, broken events and replays are told apart.

    An unreadable line may have been any event, and does not count as a delivery.

    Other lines are neither; a delivery without a key has no idempotency id.
    """
    replayed = ride_event(**{"replay-name": "again", "region": "us-west-2"})
    others = (ride_event(source="somebody.else"), ride_event(**{"detail-type": "Something"}))
    new = DELIVERY | {"outcome": "New", "key": f"ride-history#{FACT}"}
    ref = empty_stack()
    log(ref, "CarRideEvents", ride_event(), BROKEN, replayed, *others)
    log(ref, "RideHistory", {"message": "starting"}, new, DELIVERY | {"outcome": "DeadLettered"})
    for group in ("CarRideEvents", "RideHistory"):
        lines = [
            {"timestamp": int(NOW.timestamp() * 1000), "message": text}
            for text in (CUT, *UNREADABLE)
        ]
        ref.client("logs").put_log_events(logGroupName=group, logStreamName=group, logEvents=lines)
    found = list(published(ref))
    assert all(event.time >= NOW for event in found)
    data = ride_event()["detail"]["data"]
    event = Published(
        "event-1",
        "CarRideCreated",
        FACT,
        Named("order_01", "CarRideCreated", 1),
        EXPIRES,
        fingerprint=fingerprint(parse_event(ride_event()).payload),
        price=data["price"],
        customer=data["customerID"],
    )
    readable = [
        event,
        Published("event-2", None, None),
        event._replace(replayed=True, region="us-west-2"),
    ]
    known = [
        each._replace(time=ALWAYS)
        for each in found
        if not each.event_id.startswith("unreadable line ")
    ]
    assert sorted(known, key=str) == sorted([*readable, Published(ID, None, None)], key=str)
    assert len(found) - len(known) == len(UNREADABLE)
    assert [each._replace(time=NEVER) for each in deliveries(ref, HISTORY)] == [
        Delivered("ride-history", "New", FACT), Delivered("ride-history", "DeadLettered", None),
    ]  # fmt: skip


def packed(value: object) -> str:
    """Compress a value as the publisher and the consumers do."""
    return base64.b64encode(gzip.compress(json.dumps(value).encode())).decode()


def moved(body: str, **attributes: str) -> Any:
    """Return a message that SQS moved from the queue of dispatch."""
    source = {"DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:1:DispatchQueue"}
    return message(body, **attributes) | {
        "MessageId": "1",
        "Body": body,
        "Attributes": source | {"SentTimestamp": "1770000000000"},
    }


REFUSED: Final = {name: value for name, value in ride_event().items() if name != "id"}
PACKED: Final = REFUSED | {"detail": None, "detailGzip": packed(REFUSED["detail"])}
BY_CONSUMER: Final = {
    "reason": "QUARANTINED",
    "message": "…",
    "consumer": "dispatch",
    "event": None,
}
BY_LAMBDA: Final = {"requestContext": {"condition": "Exhausted"}}
BY_PIPE: Final = {"context": {"condition": "Exhausted"}, "DDBStreamBatchInfo": {}}
RECORD: Final = {"messageId": "1", "body": json.dumps(ride_event())}
CUT_RECORD: Final = {"messageId": "1", "body": CUT}
MESSAGES: Final[dict[str, tuple[Any, str, str | None, str | None]]] = {
    "consumer": (message(BY_CONSUMER | {"event": ride_event()}), "QUARANTINED", "event-1", FACT),
    "broken": (message(BY_CONSUMER | {"event": BROKEN}), "QUARANTINED", "event-2", None),
    "compressed": (
        message(BY_CONSUMER | {"eventGzip": packed(ride_event())}),
        "QUARANTINED",
        "event-1",
        FACT,
    ),
    "of a batch": (message(BY_CONSUMER | {"event": RECORD}), "QUARANTINED", "event-1", FACT),
    "Lambda": (message(BY_LAMBDA | {"requestPayload": ride_event()}), "Exhausted", "event-1", FACT),
    "no event": (message(BY_LAMBDA | {"requestPayload": None}), "Exhausted", None, None),
    "pipe": (message(BY_PIPE), "Exhausted", None, None),
    "unreadable": ({"Body": CUT}, "UNREADABLE", ID, None),
    "unreadable, of a batch": (
        message(BY_CONSUMER | {"event": CUT_RECORD}),
        "QUARANTINED",
        ID,
        None,
    ),
    "SQS": (
        moved(json.dumps(ride_event())),
        "ReceivesExhausted",
        "event-1",
        FACT,
    ),
    "SQS, unreadable": (moved(CUT), "ReceivesExhausted", ID, None),
    "anybody": (message(ride_event()), "UnknownSender", "event-1", FACT),
    "a function's own queue": (
        message(ride_event(), RequestID="1", ErrorCode="200", ErrorMessage="no"),
        "InvocationFailed",
        "event-1",
        FACT,
    ),
    "topic": (
        message({"Type": "Notification", "TopicArn": "a", "Message": json.dumps(ride_event())}),
        "Undelivered",
        "event-1",
        FACT,
    ),
    "rule": (message(ride_event(), ERROR_CODE="NO_PERMISSIONS"), "NO_PERMISSIONS", "event-1", FACT),
    "publisher": (message(REFUSED, ERROR_CODE="InternalFailure"), "InternalFailure", None, FACT),
    "publisher, compressed": (message(PACKED, ERROR_CODE="A"), "A", None, FACT),
}


@pytest.mark.parametrize(("given", "reason", "event_id", "fact"), MESSAGES.values(), ids=MESSAGES)
def test_a_dead_lettered_message_shows_its_reason(
    given: Any, reason: str, event_id: str | None, fact: str | None
) -> None:
    """Reason, EventBridge's id and idempotency id are found in each sender's form."""
    assert dead_letter("TheDlq", "dispatch", given) == DeadLettered(
        "TheDlq", reason, "dispatch", event_id, fact
    )


@pytest.mark.parametrize("consumer", ["dispatch", "payment"])
def test_a_message_in_a_source_queue_names_no_key(consumer: str) -> None:
    """Whoever may send there has written a letter of a consumer, with its attributes."""
    victim = json.dumps(
        {
            "reason": "QUARANTINED",
            "message": "no",
            "consumer": consumer,
            "key": f"{consumer}#VICTIM",
            "attempt": 3,
            "event": ride_event(),
        }
    )
    letter = letter_of("DispatchDlq", moved(victim, Reason="QUARANTINED", Consumer=consumer))
    assert (letter.reason, letter.key, letter.fact) == ("ReceivesExhausted", None, None)


class SlowQueue:
    """300 messages, of which a read takes three and ten seconds, or less.

    The first show again before the last are read.
    """

    def __init__(self, read_s: float = 10) -> None:
        self.now = 0.0
        self._read_s = read_s
        self.shown_from = dict.fromkeys(map(str, range(300)), 0.0)
        self._hidden_from: dict[str, float] = {}
        self.asked: list[tuple[int, float]] = []
        """For how many seconds each read hid its messages, and when it began."""

    def get_queue_attributes(self, **request: Any) -> Any:
        """Return a count that is too low."""
        return {"Attributes": {"ApproximateNumberOfMessages": "280"}}

    def receive_message(self, **request: Any) -> Any:
        """Return messages that are not hidden, the oldest first."""
        self.asked.append((request["VisibilityTimeout"], self.now))
        shown = [number for number, since in self.shown_from.items() if since <= self.now][:3]
        self._hidden_from |= dict.fromkeys(shown, self.now)
        self.shown_from |= dict.fromkeys(shown, self.now + request["VisibilityTimeout"])
        self.now += self._read_s
        return {
            "Messages": [
                {"MessageId": number, "ReceiptHandle": f"{number}@{self.now}"} for number in shown
            ]
        }

    def change_message_visibility_batch(self, **request: Any) -> None:
        """Show messages again, by the receipts of their last read."""
        for entry in request["Entries"]:
            number, _, _ = entry["ReceiptHandle"].partition("@")
            self.shown_from[number] = self.now + entry["VisibilityTimeout"]
        self.now += self._read_s

    def longest_hidden(self) -> float:
        """Return the longest time for which a message was hidden by its last read."""
        return max(self.shown_from[each] - since for each, since in self._hidden_from.items())


@pytest.mark.parametrize("read_s", [0.001, 0.1, 2, 10])
def test_peeking_into_a_slow_queue_reads_every_message_once_and_ends(
    read_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that shows again is yielded once, and is visible afterwards like the others.

    None is hidden for longer than twice the time that reading has taken, or two seconds: a reader
    that is killed hides it no longer, either.
    """
    queue: Any = SlowQueue(read_s)
    clock = SimpleNamespace(monotonic=lambda: queue.now)
    monkeypatch.setattr("carride_idempotency.operators.queues.time", clock)
    assert [each["MessageId"] for each in peek(queue, "url")] == list(map(str, range(300)))
    assert max(queue.shown_from.values()) <= queue.now
    for hidden_s, since in queue.asked:
        assert hidden_s <= max(GLIMPSE_SECONDS, math.ceil(2 * since))


@pytest.mark.parametrize("read_s", [0.01, 0.1, 0.5, 1.0, 1.5])
def test_a_glance_hides_no_message_for_longer_than_two_seconds(
    read_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly the queue answers, and also while its messages are given back."""
    queue: Any = SlowQueue(read_s)
    clock = SimpleNamespace(monotonic=lambda: queue.now)
    monkeypatch.setattr("carride_idempotency.operators.queues.time", clock)
    read = list(Letters(stack(lambda *_: queue).glancing(), "url"))
    assert 0 < len(read) <= 300
    assert queue.longest_hidden() <= 2
    assert max(queue.shown_from.values()) <= queue.now


def test_a_consumer_without_a_table_is_audited_by_its_log() -> None:
    """A duplicate alone shows one effect, because the line of its commit was lost.

    Several commits show as many.
    """
    outcomes = ["New once", "Duplicate once", "Duplicate unreported", "New twice", "Retried twice"]
    outcomes += ["Failed failed", "DeadLettered poison", "Expired late"]
    logged = [Delivered("points", outcome, fact) for outcome, fact in map(str.split, outcomes)]
    assert list(logged_items("points", logged)) == [
        RideItem("points", fact, (Effect(fact, None, NEVER),), count)
        for fact, count in (("once", 1), ("unreported", 1), ("twice", 2))
    ]


def test_a_broken_item_of_a_car_does_not_hide_its_ride() -> None:
    """A number instead of a ride, or a second item of the same car, still shows the car as held."""
    dynamodb = boto3.client("dynamodb")
    create_table(dynamodb, "cars", "zone", "carID")
    for zone, car, held in (
        ("zone_01", "car_01", {"rideID": {"S": "order_01"}}),
        ("zone_02", "car_01", {}),
        ("zone_03", "car_02", {"rideID": {"N": "7"}}),
    ):
        dynamodb.put_item(TableName="cars", Item={"zone": {"S": zone}, "carID": {"S": car}, **held})
    assert rides_of_cars(scan(dynamodb, "cars")) == {"car_01": "order_01", "car_02": "7"}


class Logs:
    """CloudWatch Logs, whose clock is ahead of this machine's by some seconds."""

    def __init__(self, ahead_s: float) -> None:
        self.now = datetime.now(UTC) + timedelta(seconds=ahead_s)

    def describe_log_groups(self, **_: Any) -> Any:
        """Return the log of the bus, which is kept for a day."""
        headers = {"date": format_datetime(self.now, usegmt=True)}
        group = {"logGroupName": "events", "retentionInDays": 1}
        return {"logGroups": [group], "ResponseMetadata": {"HTTPHeaders": headers}}


@pytest.mark.parametrize("ahead_s", [3600, -1200, 1])
def test_the_present_is_that_of_aws(ahead_s: float) -> None:
    """An operator's clock an hour slow would hide losses; a fast one would invent some."""
    logs = Logs(ahead_s)
    ref = stack(lambda *_: logs, CarRideEventsLogGroupName="events")
    present = kept_since(ref) + timedelta(days=1)
    assert abs(present - logs.now) < timedelta(seconds=3)


def test_an_entry_of_the_history_is_as_old_as_its_record() -> None:
    """The time of the event is its producer's word, and may be a year off."""
    ref = empty_stack()
    record = {
        "idempotencyKey": f"ride-history#{FACT}",
        "status": "COMPLETED",
        "updatedAt": int(NOW.timestamp() * 1000),
        **kept(parse_event(ride_event())),
    }
    ref.client("dynamodb").put_item(TableName="RideHistory", Item=marshalling.item(record))
    (item,) = ride_items(ref, HISTORY)
    assert [effect.time for effect in item.effects] == [NOW]


@pytest.mark.parametrize(
    ("key", "status", "sent", "given_up"),
    [
        (f"payment#{FACT}", "QUARANTINED", True, True),
        (f"payment#{FACT}", "QUARANTINED", False, False),
        (f"payment#{FACT}", "FAILED", True, False),
        ("payment#%letter:eu-west-1#event-9", "QUARANTINED", True, False),
    ],
    ids=["its letter was sent", "no letter yet", "released", "the mark of a letter"],
)
def test_a_key_whose_letter_was_sent_is_given_up(
    key: str, status: str, sent: bool, given_up: bool
) -> None:
    """The mark of a letter that breaks the contract is no key."""
    ref = empty_stack()
    record = {"idempotencyKey": key, "status": status, "deadLettered": sent}
    ref.client("dynamodb").put_item(TableName="Idempotency", Item=marshalling.item(record))
    assert [*read_records(ref).given_up] == [key] * given_up


@pytest.mark.parametrize(
    ("changes", "unlisted"),
    [
        ({}, False),
        ({"freeShard": None, "freePlace": None}, True),
        ({"freeShard": "zone_08.0"}, True),
        ({"freeShard": None, "rideID": "order_01"}, False),
        ({"freeShard": None, "sector": "nowhere"}, False),
    ],
    ids=["listed", "not in the index", "in another place", "held by a ride", "no car"],
)
def test_a_free_car_outside_of_its_place_in_the_index_is_found(
    changes: dict[str, str | None], unlisted: bool
) -> None:
    """A row that holds no car is reported by dispatch; a held car belongs outside of the index."""
    car = Car("car_01", "sector_01")
    row = {"zone": "zone_01", "carID": "car_01", "sector": "sector_01", **free(car)} | changes
    assert is_unlisted({name: each for name, each in row.items() if each}) is unlisted
