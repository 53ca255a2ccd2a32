"""What is republished out of the outbox is what its pipe would have told."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import boto3
import pytest
from moto import mock_aws

from carride.events import RideEvent
from carride.facts import Fact
from carride.outbox import outbox_item
from idempotency import marshalling
from ops.failover import Failover
from ops.outbox import entry_of, written
from ops.site import OperatorError, Site
from tests.carride.fakes import FakeBus, FakeQueue
from tests.carride.pipe import piped
from tests.carride.rides import every_fact

NOW: Final = datetime(2026, 11, 21, 8, 30, 0, 500_000, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)


def item(fact: Fact, time: datetime = NOW, region: str = "us-west-2") -> dict[str, Any]:
    """Return an item of the outbox."""
    event = RideEvent.of(fact, source="acr.com.car-ride", time=time)
    return outbox_item(event, region=region, now=time)


@pytest.mark.parametrize("fact", every_fact(), ids=lambda fact: type(fact).__name__)
def test_an_item_is_republished_as_its_pipe_tells_it(fact: Fact) -> None:
    """The same detail, source and time: consumers recognise what was told already."""
    stored = item(fact)
    entry = entry_of(marshalling.item(stored))
    assert json.loads(entry.detail) == piped(stored)
    assert (entry.source, entry.detail_type, entry.time) == ("acr.com.car-ride", "CarRideEvent", NOW)


@pytest.fixture
def site() -> Iterator[Site]:
    """A region with an empty outbox."""
    with mock_aws():
        client = boto3.client("dynamodb", region_name="us-east-2")
        client.create_table(
            TableName="outbox",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        site = Site("carride", "us-east-2", lambda service, region: client)
        site.__dict__["outputs"] = {"OutboxTableName": "outbox"}
        yield site


def test_what_the_other_region_wrote_in_the_window_is_republished(site: Site) -> None:
    """Not what this region wrote, nor what is older; a whole second and a part of one are in order."""
    fact = every_fact()[0]
    for time, region in (
        (NOW, "us-west-2"),
        (NOW.replace(microsecond=0), "us-west-2"),
        (NOW, "us-east-2"),
        (NOW - 3 * HOUR, "us-west-2"),
        (NOW + 3 * HOUR, "us-west-2"),
    ):
        stored = marshalling.item(item(fact, time, region)) | {"id": {"S": f"{time}{region}"}}
        site.client("dynamodb").put_item(TableName="outbox", Item=stored)
    found = written(site, "us-west-2", NOW - HOUR, NOW)
    assert sorted(entry.time for entry in found) == [NOW.replace(microsecond=0), NOW]


def test_a_failover_says_what_the_bus_refused(site: Site) -> None:
    """What lies in the dead-letter queue is not counted as republished; what is in neither stops the failover."""
    for fact in every_fact()[:3]:
        site.client("dynamodb").put_item(TableName="outbox", Item=marshalling.item(item(fact)))
    services: dict[str, Any] = {
        "dynamodb": site.client("dynamodb"),
        "events": FakeBus(lambda entry: "NotAuthorizedForSource" if "CarRideStarted" in entry["Detail"] else None),
        "sqs": FakeQueue(),
    }
    secondary = Site("carride", "us-east-2", lambda service, region: services[service])
    secondary.__dict__["outputs"] = {**site.outputs, "CarRideBusName": "bus", "ProducerDlqUrl": "url"}
    primary = Site("carride", "us-west-2", lambda service, region: None)
    said: list[str] = []
    failover = Failover(primary, secondary, report=said.append, sleep=lambda seconds: None)
    assert failover.republish(NOW - HOUR, NOW) == (2, 1)
    assert "NotAuthorizedForSource" in said[-1]
    services["sqs"] = FakeQueue(lambda _: "InternalError")
    with pytest.raises(OperatorError, match="NotAuthorizedForSource"):
        failover.republish(NOW - HOUR, NOW)
