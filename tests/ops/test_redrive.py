"""Which dead-lettered messages a redrive sends, and which ones it leaves in their queue."""

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from carride.entry import BusEntry
from ops import redrive
from ops.audit.queues import peek
from ops.stack import StackRef
from tests.carride.fakes import FakeBus, client_error
from tests.carride.rides import NOW, entry
from tests.functions.saga import create_table
from tests.ops.world import AWAY, stack

RULE: Final = "RideHistoryRule"


class Bus(FakeBus):
    """A bus that refuses one ride, and its rule."""

    def __init__(self) -> None:
        super().__init__(lambda request: "MalformedDetail" if "order_02" in request["Detail"] else None)

    def describe_event_bus(self, **request: Any) -> Any:
        """Return its ARN."""
        return {"Arn": "arn:aws:events:us-east-2:1:event-bus/bus"}

    def list_targets_by_rule(self, **request: Any) -> Any:
        """Return the one target of its rule."""
        return {"Targets": [{"Arn": "arn:aws:lambda:us-east-2:1:function:ride-history"}]}


def invoke(**request: Any) -> None:
    """Refuse large events, as Lambda does."""
    if len(request["Payload"].encode()) > 1_000:
        raise client_error("RequestEntityTooLargeException", 413)


@pytest.fixture
def ref() -> Iterator[StackRef]:
    """A stack with two dead-letter queues."""
    with mock_aws():
        sqs = boto3.client("sqs", region_name=AWAY)
        dynamodb = boto3.client("dynamodb", region_name=AWAY)
        create_table(dynamodb, "records", "idempotencyKey")
        services: dict[str, Any] = {
            "dynamodb": dynamodb,
            "sqs": sqs,
            "events": Bus(),
            "lambda": SimpleNamespace(invoke=invoke),
        }
        queues = {
            f"{name}Url": sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("ProducerDlq", "RideHistoryDlq")
        }
        rules = {"AWS::Events::Rule": {RULE: RULE}}
        yield stack(
            lambda service, _: services[service],
            AWAY,
            rules,
            CarRideBusName="bus",
            IdempotencyTableName="records",
            **queues,
        )


def envelope(kept: BusEntry, **changes: Any) -> str:
    """Return an event in EventBridge's envelope."""
    fields = {"source": kept.source, "detail-type": kept.detail_type, "time": kept.time.isoformat()}
    return json.dumps({**fields, "detail": json.loads(kept.detail)} | changes)


def put(ref: StackRef, queue: str, *bodies: str) -> dict[str, str]:
    """Put messages into a queue, and return their ids by body."""
    url, sqs = ref.outputs[f"{queue}Url"], ref.client("sqs")
    return {body: sqs.send_message(QueueUrl=url, MessageBody=body)["MessageId"] for body in bodies}


def test_messages_that_the_bus_does_not_accept_stay(ref: StackRef) -> None:
    """An accepted event leaves the queue. The others stay as the same messages, each with its reason."""
    gone = envelope(entry("order_01"), time="2026-11-21T08:30:00")
    by_lambda = {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": {}}
    by_consumer = {"reason": "UNKNOWN", "consumer": "a", "event": None, "eventGzip": "H4sI"}
    reasons = {
        envelope(entry("order_02")): "refused: MalformedDetail",
        envelope(entry("order_03"), time="then"): "its time cannot be read",
        envelope(entry("order_04"), time="9999-12-31T23:59:59-01:00"): "its time cannot be read",
        envelope(entry("order_05"), source=None): "its source cannot be read",
        **dict.fromkeys(map(json.dumps, (by_lambda, by_consumer, {"detailGzip": "H4sI"})), "the event is not in it"),
        **dict.fromkeys(("no json", "[" * 20_000, f'{{"price":{"9" * 5_000}}}'), "UNREADABLE"),
    }
    ids = put(ref, "ProducerDlq", gone, *reasons)
    assert redrive.waiting(ref, "ProducerDlq")["UNREADABLE"] == 3
    done = redrive.redrive(ref, "ProducerDlq")
    assert done == {"sent": 1} | {why: list(reasons.values()).count(why) for why in reasons.values()}
    (sent,) = ref.client("events").events
    assert sent["Time"] == NOW, "a time without a zone is in UTC"
    left = peek(ref.client("sqs"), ref.outputs["ProducerDlqUrl"])
    assert {message["Body"]: message["MessageId"] for message in left} == {body: ids[body] for body in reasons}


def test_a_message_that_its_target_refuses_does_not_stop_the_others(ref: StackRef) -> None:
    """It stays, with AWS's error code as the reason."""
    put(ref, "RideHistoryDlq", envelope(entry("order_01")), envelope(entry(size=5_000)), envelope(entry("order_03")))
    assert redrive.redrive(ref, "RideHistoryDlq") == {"sent": 2, "refused: RequestEntityTooLargeException": 1}


@pytest.mark.parametrize("by_lambda", [True, False], ids=["RetriesExhausted", "ReceivesExhausted"])
@pytest.mark.parametrize(
    ("attempt", "lease_s", "stays"),
    [(2, -600, False), (3, -600, True), (3, 600, True)],
    ids=["left", "crashed", "runs"],
)
def test_a_key_whose_attempts_all_crashed_is_released_first(
    ref: StackRef, attempt: int, lease_s: int, stays: bool, by_lambda: bool
) -> None:
    """Its next delivery would be given up without a run. A running attempt is not released."""
    crashed, dynamodb = json.loads(envelope(entry("order_01"))), ref.client("dynamodb")
    key = {"idempotencyKey": {"S": f"ride-history#{crashed['detail']['idempotencyid']}"}}
    numbers = {"attempt": attempt, "leaseExpiry": int(time.time() + lease_s) * 1000, "createdAt": 1, "updatedAt": 1}
    texts = {"status": "IN_PROGRESS", "owner": "one", "fingerprint": "f", "delivery": "d", "region": AWAY}
    record = {name: {"N": str(number)} for name, number in numbers.items()}
    record |= {name: {"S": text} for name, text in texts.items()}
    dynamodb.put_item(TableName="records", Item=key | record)
    message = {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": crashed}
    put(ref, "RideHistoryDlq", json.dumps(message if by_lambda else crashed))
    assert redrive.redrive(ref, "RideHistoryDlq") == ({"its attempts are used up": 1} if stays else {"sent": 1})
    if stays:
        released = lease_s < 0
        done = redrive.redrive(ref, "RideHistoryDlq", release=True)
        assert done == ({"sent": 1} if released else {"its attempts are used up": 1})
        found = dynamodb.get_item(TableName="records", Key=key)["Item"]
        assert (found["status"]["S"], found["attempt"]["N"]) == (("FAILED", "0") if released else ("IN_PROGRESS", "3"))


def test_an_interrupted_redrive_hides_no_message(ref: StackRef) -> None:
    """Messages that were not sent are visible afterwards."""
    put(ref, "RideHistoryDlq", *(envelope(entry(f"order_{number}")) for number in range(3)))

    def interrupted(**request: Any) -> None:
        raise KeyboardInterrupt

    ref.client("lambda").invoke = interrupted
    with pytest.raises(KeyboardInterrupt):
        redrive.redrive(ref, "RideHistoryDlq")
    assert redrive.waiting(ref, "RideHistoryDlq").total() == 3
