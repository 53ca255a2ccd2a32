"""The ride history on the tables of this process: an event's effect on a ride's item, and what the item says."""

import json

import pytest

from carride.history import merged, timeline_of
from local.local_aws import ROOT
from tests.functions.saga import Life
from tests.functions.world import World

RIDE = Life()
EVENTS = ROOT / "events"


def test_a_crash_between_entry_and_record_repeats_nothing() -> None:
    """The next delivery finds the entry, and writes the record; later ones are duplicates."""
    world = World()
    event = world.envelope(RIDE.accepted)

    def crash(operation: str) -> None:
        if operation == "PutItem":
            raise KeyboardInterrupt

    world.dynamodb.before = crash
    with pytest.raises(KeyboardInterrupt):
        world.deliver("ride-history", event)
    world.dynamodb.before = lambda _: None
    assert [world.deliver("ride-history", event) for _ in range(2)] == ["New", "Duplicate"]
    world.deliver("ride-history", world.envelope(RIDE.created))
    item = world.item("rides")
    assert [entry.type for entry in timeline_of(item)] == ["CarRideCreated", "CarRideAccepted"]
    assert item["effects"] == 2


def test_an_effect_that_took_place_twice_shows() -> None:
    """An item with more effects than entries has too many effects; one with an entry of another item has not."""
    one, two = {"event#1": {}, "effects": 2}, {"event#1": {}, "event#2": {}, "effects": 2}
    [item] = merged([{"orderID": "order_01"} | one, {"orderID": "order_01#saga"} | two])
    assert item == {"orderID": "order_01", "event#1": {}, "event#2": {}, "effects": 3}


def test_events_of_another_producer_take_effect_once() -> None:
    """Its events have random ids and all count as the first; in any order, repeated, the ride ends as completed."""
    world = World()
    names = ("other_producer_completed", "other_producer")
    events = [json.loads((EVENTS / f"ride_history_{name}.json").read_text()) for name in names]
    outcomes = [world.deliver("ride-history", event) for event in (*events, *events)]
    assert outcomes == ["New", "New", "Duplicate", "Duplicate"]
    item = world.item("rides", "order_05")
    assert item["effects"] == 2
    assert [entry.data["status"] for entry in timeline_of(item)] == ["requested", "completed"]


def test_another_payload_under_a_known_id_is_dead_lettered() -> None:
    """Two facts that share an id are a mistake of the producer, and the second never overwrites the first."""
    world = World()
    first, second = world.envelope(RIDE.created), world.envelope(RIDE.created)
    second["detail"]["data"]["price"] = 1
    assert [world.deliver("ride-history", event) for event in (first, second)] == ["New", "DeadLettered"]
    assert [letter.reason for letter in world.dead_letters()] == ["PAYLOAD_MISMATCH"]
    assert timeline_of(world.item("rides"))[0].data["price"] == RIDE.created.price
