"""What a partner needs to hear of rides: a queue that the topic fills."""

import json
from typing import Any

import pytest

from local.partner import subscribe
from tests.kit.rides import event as event_of
from tests.pipeline.saga.town import Town

pytestmark = pytest.mark.integration


def messages(town: Town, url: str) -> list[dict[str, Any]]:
    """Take everything out of a queue."""
    sqs = town.cloud.client("sqs")
    found = []
    while batch := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        found += [json.loads(message["Body"]) for message in batch]
        for message in batch:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_a_topic_and_a_queue_are_all_that_a_partner_needs(town: Town) -> None:
    """It gets each event of a ride in the older envelope, by any road, with no data but the id."""
    topic = town.stack.outputs["PartnersTopicArn"]
    ride = town.ride()
    queue = subscribe(town.cloud.client("sns"), town.cloud.client("sqs"), topic, "by-topic")
    town.hear(ride.created, ride.accepted, ride.completed)
    heard = messages(town, queue)
    assert sorted(event["attributes"]["type"] for event in heard) == [
        "CarAssigned",
        "CarReleased",
        "CarRideAccepted",
        "CarRideCompleted",
        "CarRideCreated",
        "PaymentAuthorized",
        "PaymentCaptured",
    ]
    (created,) = (event for event in heard if event["attributes"]["type"] == "CarRideCreated")
    fact = event_of(ride.created)
    assert created == {
        "attributes": {
            "type": "CarRideCreated",
            "source": "acr.com.car-ride",
            "idempotencyId": fact.idempotencyid,
            "eventTime": "2026-11-21T08:30:00Z",
            "eventCount": "00000001",
        },
        "data": {"orderID": ride.order_id},
    }
