"""What a redrive says of each dead letter, and which ones it leaves in their queue."""

import json
from collections.abc import Iterator
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from carride.entry import BusEntry
from ops import redrive
from ops.audit.queues import peek
from ops.site import Resource, Site
from tests.carride.fakes import FakeBus, client_error
from tests.carride.rides import NOW, entry

RULE: Final = "RideHistoryRule"


class Bus(FakeBus):
    """A bus that refuses one ride, and its rule."""

    def __init__(self) -> None:
        super().__init__(lambda request: "MalformedDetail" if "order_02" in request["Detail"] else None)

    def describe_event_bus(self, **request: Any) -> Any:
        """Return its name."""
        return {"Arn": "arn:aws:events:us-east-2:1:event-bus/bus"}

    def list_targets_by_rule(self, **request: Any) -> Any:
        """Return the one target of its rule."""
        return {"Targets": [{"Arn": "arn:aws:lambda:us-east-2:1:function:ride-history"}]}


class Functions:
    """A function that takes no large event."""

    def invoke(self, **request: Any) -> None:
        """Refuse, as Lambda does."""
        if len(request["Payload"].encode()) > 1_000:
            raise client_error("RequestEntityTooLargeException", 413)


@pytest.fixture
def site() -> Iterator[Site]:
    """A stack with two dead-letter queues."""
    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-2")
        services: dict[str, Any] = {"sqs": sqs, "events": Bus(), "lambda": Functions()}
        site = Site("carride", "us-east-2", lambda service, region: services[service])
        queues = {
            f"{name}Url": sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("ProducerDlq", "RideHistoryDlq")
        }
        site.__dict__["outputs"] = {"CarRideBusName": "bus", **queues}
        site.__dict__["resources"] = {RULE: Resource("AWS::Events::Rule", RULE)}
        yield site


def letter(kept: BusEntry, **changes: Any) -> str:
    """Return an event in EventBridge's envelope."""
    time = kept.time.isoformat()
    envelope = {"source": kept.source, "detail-type": kept.detail_type, "time": time, "detail": json.loads(kept.detail)}
    return json.dumps(envelope | changes)


def put(site: Site, queue: str, *bodies: str) -> dict[str, str]:
    """Put messages into a queue, and return their ids by body."""
    url, sqs = site.outputs[f"{queue}Url"], site.client("sqs")
    return {body: sqs.send_message(QueueUrl=url, MessageBody=body)["MessageId"] for body in bodies}


def test_what_the_bus_does_not_accept_stays_as_old_as_it_is(site: Site) -> None:
    """Only what was accepted is sent and gone. The others lie there as the same messages, and each says why."""
    gone = letter(entry("order_01"), time="2026-11-21T08:30:00")
    reasons = {
        letter(entry("order_02")): "refused: MalformedDetail",
        letter(entry("order_03"), time="then"): "its time cannot be read",
        letter(entry("order_04"), time="9999-12-31T23:59:59-01:00"): "its time cannot be read",
        letter(entry("order_05"), source=None): "its source cannot be read",
        json.dumps(
            {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": {}}
        ): "the event is not in it",
        json.dumps({"detailGzip": "H4sI"}): "the event is not in it",
        json.dumps(
            {"reason": "UNKNOWN", "consumer": "a", "event": None, "eventGzip": "H4sI"}
        ): "the event is not in it",
        **dict.fromkeys(("no json", "[" * 20_000, f'{{"price":{"9" * 5_000}}}'), "UNREADABLE"),
    }
    ids = put(site, "ProducerDlq", gone, *reasons)
    assert redrive.waiting(site, "ProducerDlq")["UNREADABLE"] == 3
    done = redrive.redrive(site, "ProducerDlq")
    assert done == {"sent": 1} | {why: list(reasons.values()).count(why) for why in reasons.values()}
    (sent,) = site.client("events").events
    assert sent["Time"] == NOW, "a time without a zone is in UTC"
    left = peek(site.client("sqs"), site.outputs["ProducerDlqUrl"])
    assert {message["Body"]: message["MessageId"] for message in left} == {body: ids[body] for body in reasons}


def test_one_letter_that_its_target_refuses_does_not_stop_the_others(site: Site) -> None:
    """What AWS answers is the reason for which it stays."""
    put(site, "RideHistoryDlq", letter(entry("order_01")), letter(entry(size=5_000)), letter(entry("order_03")))
    assert redrive.redrive(site, "RideHistoryDlq") == {"sent": 2, "refused: RequestEntityTooLargeException": 1}


def test_an_interrupted_redrive_hides_no_letter(site: Site) -> None:
    """Whoever looks afterwards finds what was not sent."""
    put(site, "RideHistoryDlq", *(letter(entry(f"order_{number}")) for number in range(3)))

    def interrupted(**request: Any) -> None:
        raise KeyboardInterrupt

    site.client("lambda").invoke = interrupted
    with pytest.raises(KeyboardInterrupt):
        redrive.redrive(site, "RideHistoryDlq")
    assert redrive.waiting(site, "RideHistoryDlq").total() == 3
