"""The ride history on the tables of this process: an event's effect on a ride's item, and what the item says."""

import json

import ride_history
from carride.history import merged, timeline_of
from idempotency.effects import action_of
from local.local_aws import ROOT
from tests.functions.saga import Life, event_of
from tests.functions.world import World

RIDE = Life()
EVENTS = ROOT / "events"


def test_an_effect_that_took_place_twice_shows() -> None:
    """The item counts two effects and has one entry, by which the ledger notices."""
    world = World()
    for fact in (RIDE.accepted, RIDE.created):
        world.deliver("ride-history", world.envelope(fact))
    again = action_of(ride_history.effect("rides", event_of(RIDE.created)))
    world.dynamodb.transact_write_items(TransactItems=[again])
    item = world.item("rides")
    assert [entry.type for entry in timeline_of(item)] == ["CarRideCreated", "CarRideAccepted"]
    assert item["effects"] == 3
    entry = {"event#1": {}, "effects": 1}
    [item] = merged([{"orderID": "order_01"} | entry, {"orderID": "order_01#saga"} | entry])
    assert item["effects"] == 1, "an entry in both items is one effect"


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
    assert [letter.reason for letter in world.given_up()] == ["PAYLOAD_MISMATCH"]
    assert timeline_of(world.item("rides"))[0].data["price"] == RIDE.created.price
