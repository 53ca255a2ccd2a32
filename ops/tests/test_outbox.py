"""Events of the outbox are republished as its pipe would have published them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from moto import mock_aws

from carride.events import RideEvent
from carride.facts import Fact
from carride.outbox import outbox_item
from carride_idempotency import marshalling
from ops.outbox import entry_of, republish, written
from ops.stack import OperatorError
from ops.tests.world import AWAY, HOME, client_of, create_table, stack
from tests.kit.fakes import FakeBus, FakeQueue, client_error
from tests.kit.pipe import piped
from tests.kit.rides import every_fact

NOW: Final = datetime(2026, 11, 21, 8, 30, 0, 500_000, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)


def item(fact: Fact, time: datetime = NOW, region: str = HOME) -> dict[str, Any]:
    """Return an item of the outbox."""
    event = RideEvent.of(fact, source="acr.com.car-ride", time=time)
    return outbox_item(event, region=region, now=time)


@pytest.mark.parametrize("fact", every_fact(), ids=lambda fact: type(fact).__name__)
def test_an_item_is_republished_as_its_pipe_publishes_it(fact: Fact) -> None:
    """Detail, source and time are the same, so that consumers recognise a published event."""
    stored = item(fact)
    entry = entry_of(marshalling.item(stored))
    assert json.loads(entry.detail) == piped(stored)
    assert (entry.source, entry.detail_type, entry.time) == (
        "acr.com.car-ride",
        "CarRideEvent",
        NOW,
    )


@pytest.fixture
def dynamodb() -> Iterator[Any]:
    """An empty outbox."""
    with mock_aws():
        client = client_of("dynamodb", AWAY)
        create_table(client, "outbox", "id")
        yield client


def test_events_that_the_other_region_wrote_in_the_window_are_republished(dynamodb: Any) -> None:
    """Neither this region's events nor older ones are.

    Whole seconds and fractions compare correctly.
    """
    second = NOW.replace(microsecond=0)
    for time, region in (
        *((NOW, HOME), (second, HOME), (NOW, AWAY)),
        *((NOW - 3 * HOUR, HOME), (NOW + 3 * HOUR, HOME)),
    ):
        stored = marshalling.item(item(every_fact()[0], time, region)) | {
            "id": {"S": f"{time}{region}"}
        }
        dynamodb.put_item(TableName="outbox", Item=stored)
    found = written(stack(lambda *_: dynamodb, OutboxTableName="outbox"), HOME, NOW - HOUR, NOW)
    assert sorted(entry.time for entry in found) == [second, NOW]


def test_refused_events_are_reported(dynamodb: Any) -> None:
    """A dead-lettered event does not count as republished.

    An event in neither place is an error.
    """
    for fact in every_fact()[:3]:
        dynamodb.put_item(TableName="outbox", Item=marshalling.item(item(fact)))
    bus = FakeBus(
        lambda entry: "NotAuthorizedForSource" if "CarRideStarted" in entry["Detail"] else None
    )
    services: dict[str, Any] = {"dynamodb": dynamodb, "events": bus, "sqs": FakeQueue()}
    ref = stack(
        lambda service, _: services[service],
        OutboxTableName="outbox",
        CarRideBusName="bus",
        ProducerDlqUrl="url",
    )
    reports: list[str] = []
    assert republish(ref, HOME, NOW - HOUR, NOW, reports.append) == (2, 1)
    assert "NotAuthorizedForSource" in reports[-1]
    services["sqs"] = FakeQueue(failures=[client_error("InvalidAddress", 404)])
    with pytest.raises(OperatorError, match="NotAuthorizedForSource"):
        republish(ref, HOME, NOW - HOUR, NOW)
