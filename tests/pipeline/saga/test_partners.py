"""What a partner needs to hear of rides: a queue that the topic fills."""

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from local.partner import subscribe
from tests.kit.rides import Life
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


# ── Every form of an event ────────────────────────────────────────────────────────────────────────

type Detail = dict[str, Any]


def as_written(order_id: str) -> Detail:
    """Return the end of a ride as this project publishes it."""
    return event_of(Life(order_id).completed).to_detail()


def without(*names: str) -> Callable[[str], Detail]:
    """Return what makes the event without these attributes."""

    def make(order_id: str) -> Detail:
        return {name: value for name, value in as_written(order_id).items() if name not in names}

    return make


def in_base64(order_id: str) -> Detail:
    """Return the event as the outbox publishes it."""
    detail = as_written(order_id)
    detail["data_base64"] = base64.b64encode(json.dumps(detail.pop("data")).encode()).decode()
    return detail


def spelt_idempotency_id(order_id: str) -> Detail:
    """Return the event with idempotencyId instead of idempotencyid."""
    detail = as_written(order_id)
    return {"idempotencyId": detail.pop("idempotencyid"), **detail}


def spelt_idempotency_id_in_base64(order_id: str) -> Detail:
    detail = in_base64(order_id)
    return {"idempotencyId": detail.pop("idempotencyid"), **detail}


def spelt_both_ways(order_id: str) -> Detail:
    return {"idempotencyId": "another", **as_written(order_id)}


def older(order_id: str) -> Detail:
    """Return the event in the older envelope."""
    detail = as_written(order_id)
    attributes = {name: detail[name] for name in ("type", "source")}
    attributes |= {"idempotencyId": detail["idempotencyid"], "eventTime": detail["time"]}
    return {"attributes": {**attributes, "eventCount": 4}, "data": detail["data"]}


def of_another_producer(order_id: str, *, spelt: str = "idempotencyId", **more: Any) -> Detail:
    """Return the event as a CloudEvent of another producer, which has what all of them need."""
    data = as_written(order_id)["data"]
    return {
        "specversion": "1.0",
        "id": f"event of {order_id}",
        "source": "acr.com.car-ride-simulator",
        "type": "acme.acr.CarRiderCompletedEvent",
        "time": "2026-11-21T08:30:00",
        spelt: f"id of {order_id}",
        "data": {name: value for name, value in data.items() if name != "version"},
        **more,
    }


def counted(order_id: str) -> Detail:
    return of_another_producer(
        order_id, spelt="idempotencyid", subject=order_id, sequence="00000004"
    )


def uncounted(order_id: str) -> Detail:
    return of_another_producer(order_id, spelt="idempotencyid", subject=order_id)


def older_of_another_producer(order_id: str) -> Detail:
    detail = of_another_producer(order_id)
    attributes = {name: detail[name] for name in ("type", "source", "idempotencyId")}
    attributes |= {"eventTime": detail["time"], "eventCount": 1}
    return {"attributes": attributes, "data": detail["data"]}


FORMS: Final[dict[Callable[[str], Detail], tuple[object, str | None]]] = {
    as_written: ("00000004", None),
    without("partitionkey", "correlationid", "dataschema", "datacontenttype"): ("00000004", None),
    without("subject"): (None, "subject"),
    in_base64: ("00000004", None),
    spelt_idempotency_id: (None, None),
    spelt_idempotency_id_in_base64: (None, "data"),
    spelt_both_ways: ("00000004", None),
    older: (4, None),
    of_another_producer: (None, None),
    counted: ("00000004", None),
    uncounted: (None, "sequence"),
    older_of_another_producer: (1, None),
}
"""Each accepted form of an event: the partners' `eventCount`, and what keeps it from them."""


def as_partners_get_it(detail: Detail, order_id: str, count: object) -> Detail:
    """Return the message that partners get of an event."""
    given = detail.get("attributes", detail)
    attributes = {
        "type": given["type"],
        "source": given["source"],
        "idempotencyId": given.get("idempotencyid") or given["idempotencyId"],
        "eventTime": given.get("time") or given["eventTime"],
    }
    if count is not None:
        attributes["eventCount"] = count
    return {"attributes": attributes, "data": {"orderID": order_id}}


def test_each_accepted_form_of_an_event_passes_each_rule(town: Town) -> None:
    """Every consumer acts on it once; partners get it whole, or the audit names what it lacks."""
    topic = town.stack.outputs["PartnersTopicArn"]
    queue = subscribe(town.cloud.client("sns"), town.cloud.client("sqs"), topic, "by-form")
    expected, named = [], {}
    for make, (count, missing) in FORMS.items():
        order_id = town.ride().order_id
        detail = make(order_id)
        (event_id,) = town.put(detail)
        if missing is None:
            expected.append(as_partners_get_it(detail, order_id, count))
        else:
            named[event_id] = missing
    ledger = town.ledger()
    effects = {name: each.effects for name, each in ledger.consumers.items()}
    assert effects == dict.fromkeys(("ride-history", "dispatch", "payment"), len(FORMS))
    heard = [
        message
        for message in messages(town, queue)
        if not message["attributes"]["type"].startswith(("Car", "Payment"))
        or message["attributes"]["type"] == "CarRideCompleted"
    ]
    assert sorted(heard, key=json.dumps) == sorted(expected, key=json.dumps)
    reasons = ", ".join(f"{event_id} has no {missing}" for event_id, missing in named.items())
    assert ledger.routes["events that fit no partners' rule"] == f"{len(named)}: {reasons}"
