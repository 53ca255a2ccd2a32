"""The ride history on the tables of this process: an event's effect on a ride's timeline."""

import json

from msgspec.structs import replace

from carride.events import SOURCE, RideEvent
from carride.history import kept, latest_in, merged, timeline_of
from local.local_aws import ROOT
from tests.functions.world import World
from tests.kit.rides import NOW, Life

RIDE = Life()
EVENTS = ROOT / "events"


def test_an_entry_is_in_the_record_of_its_event() -> None:
    """One write without a transaction makes both, so neither is there without the other.

    Neither expires.
    """
    world = World()
    for fact in (RIDE.accepted, RIDE.created):
        world.deliver("ride-history", world.envelope(fact))
    assert [entry.type for entry in timeline_of(world.item("rides"))] == [
        "CarRideCreated",
        "CarRideAccepted",
    ]
    for record in world.items("history"):
        assert (record["status"], record["orderID"]) == ("COMPLETED", "order_01")
        assert "expiryTimestamp" not in record


def test_events_of_another_producer_take_effect_once() -> None:
    """Its events have random ids and all count as the first.

    In any order, repeated, the ride ends as completed.
    """
    world = World()
    names = ("other_producer_completed", "other_producer")
    events = [json.loads((EVENTS / f"ride_history_{name}.json").read_text()) for name in names]
    outcomes = [world.deliver("ride-history", event) for event in (*events, *events)]
    assert outcomes == ["New", "New", "Duplicate", "Duplicate"]
    item = world.item("rides", "order_05")
    assert item["effects"] == 2
    assert [entry.data["status"] for entry in timeline_of(item)] == ["requested", "completed"]


def test_the_events_of_the_articles_take_effect_once() -> None:
    """Ids of any form, times without a zone and events without a status are read as meant.

    An update that does not say what has changed is given up at once.
    """
    world = World()
    names = ("cancelled", "created", "updated")
    paths = [EVENTS / f"ride_history_article_{name}.json" for name in names]
    events = [json.loads(path.read_text()) for path in paths]
    outcomes = [world.deliver("ride-history", event) for event in (*events, *events[:2])]
    assert outcomes == ["New", "New", "DeadLettered", "Duplicate", "Duplicate"]
    item = world.item("rides", "order_06")
    entries = timeline_of(item)
    assert [entry.data["status"] for entry in entries] == ["requested", "cancelled"]
    assert [entry.time for entry in entries] == [
        "2040-01-02T08:30:00.123456+00:00",
        "2040-01-02T08:40:00.123456+00:00",
    ]
    assert [letter.reason for letter in world.given_up()] == ["CONTRACT"]


def test_a_later_version_counts_though_an_earlier_one_was_nearer_to_the_end() -> None:
    """A producer that counts its events says in which order they happened."""
    accepted_again = replace(RIDE.accepted, version=9)
    events = [
        RideEvent.of(each, source=SOURCE, time=NOW) for each in (RIDE.started, accepted_again)
    ]
    records = [kept(each) | {"idempotencyKey": f"ride-history#{each.id}"} for each in events]
    [item] = merged(records)
    assert latest_in(timeline_of(item))["status"] == "accepted"


def test_another_payload_under_a_known_id_is_dead_lettered() -> None:
    """Two facts that share an id are a producer's mistake, and the second overwrites nothing."""
    world = World()
    first = world.envelope(RIDE.created)
    second = world.envelope(RIDE.created)
    second["detail"]["data"]["price"] = 1
    assert [world.deliver("ride-history", event) for event in (first, second)] == [
        "New",
        "DeadLettered",
    ]
    assert [letter.reason for letter in world.given_up()] == ["PAYLOAD_MISMATCH"]
    assert timeline_of(world.item("rides"))[0].data["price"] == RIDE.created.price
