"""The code of an article on this kind of application, run against this one."""

import json
import uuid
from datetime import datetime
from typing import Any

import pytest

from tests.pipeline.pipeline import HISTORY, Pipeline

pytestmark = pytest.mark.integration


def define_cloud_event(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an event as an article defines it: a CloudEvent with random ids and local times."""
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid1()),
        "source": "acr.com.car-ride-simulator",
        "type": f"acme.acr.CarRider{kind}Event",
        "time": datetime.now().isoformat(),  # noqa: DTZ005 - as the article does
        "datacontenttype": "application/json",
        "idempotencyId": str(uuid.uuid1()),
        "eventCount": 1,
        "data": data,
    }


@pytest.mark.parametrize("envelope", ["cloud event", "attributes"])
def test_what_an_article_publishes_twice_takes_effect_once(
    pipeline: Pipeline, envelope: str
) -> None:
    """Put on the bus twice, an article's event is New, and then Duplicate."""
    ride = {"orderID": "order_01", "customerID": "customer_a", "passengers": 2, "price": 550}
    event = define_cloud_event(
        "Created", {**ride, "pickup": "sector_01", "destination": "sector_03"}
    )
    if envelope == "attributes":
        names = ("type", "source", "idempotencyId", "eventCount")
        attributes = {name: event[name] for name in names} | {"eventTime": event["time"]}
        event = {"attributes": attributes, "data": event["data"]}
    for taken in (1, 2):
        pipeline.put(json.loads(json.dumps(event)))
        history = pipeline.ledger().consumers[HISTORY]
        assert (history.effects, history.duplicates_absorbed) == (1, taken - 1)
    ((created,),) = pipeline.rides()
    assert (created.type, created.data["status"]) == ("CarRideCreated", "requested")
