"""The ride history on the tables of this process: an event's effect on a ride's item, and what the item says."""

import timeline
from carride.history import timeline_of
from idempotency.effects import action_of
from tests.functions.saga import Life, event_of
from tests.functions.world import World

RIDE = Life()


def test_an_effect_that_took_place_twice_shows() -> None:
    """The item counts two effects and has one entry, by which the ledger notices."""
    world = World()
    for fact in (RIDE.accepted, RIDE.created):
        world.deliver("ride-history", world.envelope(fact))
    again = action_of(timeline.effect("rides", event_of(RIDE.created)))
    world.dynamodb.transact_write_items(TransactItems=[again])
    item = world.item("rides")
    assert [entry.type for entry in timeline_of(item)] == ["CarRideCreated", "CarRideAccepted"]
    assert item["effects"] == 3


def test_another_payload_under_a_known_id_is_dead_lettered() -> None:
    """Two facts that share an id are a mistake of the producer, and the second never overwrites the first."""
    world = World()
    first, second = world.envelope(RIDE.created), world.envelope(RIDE.created)
    second["detail"]["data"]["price"] = 1
    assert [world.deliver("ride-history", event) for event in (first, second)] == ["New", "DeadLettered"]
    assert [letter.reason for letter in world.dead_letters()] == ["PAYLOAD_MISMATCH"]
    assert timeline_of(world.item("rides"))[0].data["price"] == RIDE.created.price
