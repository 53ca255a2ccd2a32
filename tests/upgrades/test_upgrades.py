"""Today's code serves what earlier releases have written: records, items, outbox and events."""

from typing import Any, Final

import pytest

from carride.events import parse_event
from carride.facts import FACTS
from carride_idempotency import observation
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED
from carride_idempotency.record_items import record_of
from tests.carride.pipe import piped
from tests.functions.world import CONSUMED, World
from tests.upgrades import lived
from tests.upgrades.lived import CRASHED, GIVEN_UP, WAITING, restored
from tests.upgrades.samples import RELEASES, Item, Samples, read

HISTORY: Final = {"orderID", "entry"}
"""What a record of the ride history keeps besides the protocol's attributes."""
assert RELEASES, "write the samples of a release: python -m tests.upgrades.write VERSION"


@pytest.fixture(params=RELEASES)
def samples(request: pytest.FixtureRequest) -> Samples:
    """What a release wrote."""
    return read(request.param)


@pytest.fixture
def world(samples: Samples) -> World:
    """The tables of a release, and today's functions."""
    return restored(samples)


def records(samples: Samples) -> list[Item]:
    """Return the records of all consumers."""
    return [*samples.tables["idempotency"], *samples.tables["history"]]


def ride_of(world: World, customer: str) -> str:
    """Return the ride of a customer."""
    (ride,) = (item for item in world.items("bookings") if item["customerID"] == customer)
    order_id: str = ride["orderID"]
    return order_id


def test_each_kind_of_record_is_among_the_samples(samples: Samples) -> None:
    """A status without a sample could change its form unnoticed."""
    found = {item["status"]["S"] for item in samples.tables["idempotency"] if "status" in item}
    assert found == {COMPLETED, FAILED, IN_PROGRESS, QUARANTINED}


def test_every_attribute_of_a_record_is_read(samples: Samples) -> None:
    """An attribute that was renamed would be read as absent, such as a fingerprint."""
    for item in records(samples):
        kept = record_of(item).kept or {}
        assert kept.keys() <= HISTORY, f"{kept.keys() - HISTORY} of {item['idempotencyKey']}"


def test_the_outbox_and_the_events_are_read(samples: Samples, world: World) -> None:
    """The pipe makes the same event of an item, and a consumer reads it."""
    assert [piped(item) for item in world.items("outbox")] == samples.events
    for event in samples.events:
        assert parse_event({"detail": event}).type in FACTS


def test_what_took_effect_does_so_no_more(samples: Samples, world: World) -> None:
    """Each event that a consumer has completed is a duplicate, and no table changes."""
    completed = {
        item["idempotencyKey"]["S"]
        for item in records(samples)
        if item.get("status") == {"S": COMPLETED}
    }
    before = {table: world.items(table) for table in samples.tables}
    delivered = 0
    for detail in samples.events:
        event = parse_event({"detail": detail})
        for consumer, consumed in CONSUMED.items():
            if FACTS[event.type] not in consumed:
                continue
            if f"{consumer}#{event.idempotencyid}" in completed:
                world.deliver(consumer, world.envelope(event))
                delivered += 1
    assert delivered
    outcomes = [each.outcome for each in world.observations]
    assert outcomes == [observation.DUPLICATE] * delivered
    assert {table: world.items(table) for table in samples.tables} == before


def test_a_repeated_request_gets_its_stored_answer(world: World) -> None:
    """The key of a booking that the release answered books no second ride."""
    before = len(world.items("bookings"))
    answer = world.book(key=f"of-{WAITING}", customerID=WAITING)
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert answer.body["orderID"] == ride_of(world, WAITING)
    assert len(world.items("bookings")) == before


def test_an_open_ride_goes_on_and_is_paid(world: World) -> None:
    """A ride that waited for its start during the upgrade is driven and captured after it."""
    ride = ride_of(world, WAITING)
    (car,) = (name for name, held_by in world.cars().items() if held_by == ride)
    assert world.change(ride, "start", 2).status == 200
    assert world.change(ride, "complete", 3).status == 200
    world.flow()
    assert world.read(ride).body["status"] == "completed"
    assert world.item("payments", ride)["state"] == "captured"
    assert world.cars()[car] is None


@pytest.mark.parametrize(
    ("customer", "outcome"),
    [
        (lived.FAILED, observation.RETRIED),
        (CRASHED, observation.TAKEOVER),
        (GIVEN_UP, observation.QUARANTINED),
    ],
)
def test_an_attempt_of_the_release_is_gone_on_with(
    world: World, customer: str, outcome: str
) -> None:
    """The next delivery is a retry, a takeover once the lease has ended, or stays quarantined."""
    world.clock.advance(3_600)
    event: dict[str, Any] = lived.assigned(world, customer)
    world.deliver("payment", event, attempt=2)
    assert world.observations[-1].outcome == outcome
