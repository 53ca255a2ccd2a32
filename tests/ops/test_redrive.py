"""Which dead-lettered messages a redrive sends, and which ones it leaves in their queue."""

import json
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
        services: dict[str, Any] = {"sqs": sqs, "events": Bus(), "lambda": SimpleNamespace(invoke=invoke)}
        queues = {
            f"{name}Url": sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("ProducerDlq", "RideHistoryDlq")
        }
        rules = {"AWS::Events::Rule": {RULE: RULE}}
        yield stack(lambda service, _: services[service], AWAY, rules, CarRideBusName="bus", **queues)


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


def test_an_interrupted_redrive_hides_no_message(ref: StackRef) -> None:
    """Messages that were not sent are visible afterwards."""
    put(ref, "RideHistoryDlq", *(envelope(entry(f"order_{number}")) for number in range(3)))

    def interrupted(**request: Any) -> None:
        raise KeyboardInterrupt

    ref.client("lambda").invoke = interrupted
    with pytest.raises(KeyboardInterrupt):
        redrive.redrive(ref, "RideHistoryDlq")
    assert redrive.waiting(ref, "RideHistoryDlq").total() == 3
