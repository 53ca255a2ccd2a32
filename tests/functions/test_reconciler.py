"""Overdue rides are settled, once each: no car stays held, no money stays reserved."""

from typing import Any

import pytest

import reconciler
from carride.overdue import LIMIT, Stage, shard, shards
from local.simulated_gateway import Books, Troubles
from tests.carride.rides import Life
from tests.functions.gateways import FakeGateway
from tests.functions.world import World

WAYS = [["accept"], ["accept", "start"], ["accept", "start", "complete"], ["accept", "cancel"]]


@pytest.fixture
def world() -> World:
    """The functions, with one car."""
    world = World()
    world.park("car_01")
    return world


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[-1])
def test_a_booking_whose_end_was_lost_ends_as_it_did(world: World, way: list[str]) -> None:
    """A driven ride is paid, though its completion was lost; a ride that nobody ends is cancelled and paid back."""

    def lost(consumer: str, fact_type: str) -> bool:
        return fact_type in {"CarRideCompleted", "CarRideCancelled"} and consumer != "ride-history"

    order_id = world.booked(*way)
    world.flow(lost)
    assert world.cars() == {"car_01": order_id}
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    driven = way[-1] == "complete"
    assert world.state("payments", order_id) == ("captured" if driven else "refunded")
    assert world.cars() == {"car_01": None}
    assert world.item("bookings", order_id)["status"] == ("completed" if driven else "cancelled")
    assert world.open() == set()


def test_a_run_takes_effect_once(world: World) -> None:
    """The schedule's second delivery of one tick returns what the first did, and does nothing."""
    world.booked("accept")
    world.flow()
    first = world.reconcile()
    emitted = world.emitted()
    assert first == {"reconciled": 1, "overdue": 0}
    assert (world.tick(), world.emitted()) == (first, emitted)


def test_a_ride_is_compensated_once_and_stays_visible(world: World) -> None:
    """Dispatch never gets the event: no second one is emitted, and every run counts the ride as overdue."""
    ride = Life()
    world.publish(ride.created, ride.accepted)
    assert world.reconcile(lost=lambda consumer, _: consumer == "dispatch") == {
        "reconciled": 1,
        "overdue": 0,
    }
    emitted = world.emitted()
    for _ in range(5):
        assert world.reconcile() == {"reconciled": 0, "overdue": 1}
    assert (world.emitted(), world.open(Stage.RECONCILED)) == (emitted, {ride.order_id})
    world.publish(ride.completed)
    assert (world.reconcile(), world.open()) == ({"reconciled": 0, "overdue": 0}, set())


def test_an_unknown_ride_is_visible_too(world: World) -> None:
    """Nobody knows the ride's data, so there is no event to emit; an operator sees that it is overdue."""
    world.publish(Life().accepted, lost=lambda consumer, _: consumer == "ride-history")
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    assert world.reconcile() == {"reconciled": 0, "overdue": 1}
    assert "CarRideOverdue" not in world.emitted()


@pytest.mark.parametrize("booked", [True, False], ids=["booked", "simulated"])
def test_a_long_ride_is_left_alone(world: World, *, booked: bool) -> None:
    """It has had its car for too long, but something has happened to it lately."""
    ride, almost = Life(), LIMIT.total_seconds() - 60
    if booked:
        order_id = world.booked("accept")
        world.flow()
        world.clock.advance(almost)
        world.change(order_id, "start", 2)
        world.flow()
    else:
        order_id = ride.order_id
        world.publish(ride.created, ride.accepted)
        world.clock.advance(almost)
        world.publish(ride.started)
    world.clock.advance(almost)
    assert world.tick()["reconciled"] == 0
    assert world.cars() == {"car_01": order_id}


def test_a_booking_that_changes_meanwhile_is_not_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The customer starts the ride after the reconciler has read it: the commit is refused."""
    order_id = world.booked("accept")
    find = reconciler.Reconciler.find

    def overtaken(self: Any, order: str) -> Any:
        seen = find(self, order)
        world.change(order_id, "start", 2)
        return seen

    monkeypatch.setattr(reconciler.Reconciler, "find", overtaken)
    assert world.reconcile() == {"reconciled": 0, "overdue": 0}
    assert world.item("bookings", order_id)["status"] == "started"
    assert "CarRideCancelled" not in world.emitted()


def test_what_does_not_fit_waits_for_the_next_run(world: World) -> None:
    """A run without time settles nothing and fails nothing."""
    world.booked("accept")
    assert world.reconcile(timeout_s=10)["reconciled"] == 0
    world.clock.advance(360)
    assert world.tick()["reconciled"] == 1


def test_a_ride_that_cannot_be_settled_does_not_keep_others_from_it(world: World) -> None:
    """The run fails after the others are settled, so that somebody hears of it."""
    broken, other = (world.booked("accept", customer=name) for name in ("customer_a", "customer_b"))
    world.put("bookings", world.item("bookings", broken) | {"passengers": "two"})
    with pytest.raises(ExceptionGroup, match="1 rides could not be settled, 1 were"):
        world.reconcile()
    assert world.item("bookings", other)["status"] == "cancelled"


def test_rides_are_spread_over_all_partitions() -> None:
    """No partition of the index is hot, and none is overlooked."""
    assert {shard(f"order_{number}") for number in range(300)} == set(shards(Stage.OPEN))


# ── Stated outcomes: docs/architecture.md has a row for each ──────────────────────────────────────


def test_completed_after_the_payment_was_declined() -> None:
    """The booking ends as it was driven; dispatch and payment stay as they are; the caller reads why it is unpaid."""
    world = World(FakeGateway(Books(Troubles(declined=1.0))))
    world.park("car_01")
    order_id = world.booked("accept", "start")
    world.flow()
    assert world.change(order_id, "complete", 3).body["status"] == "completed"
    world.flow()
    assert (world.state("assignments", order_id), world.cars()) == ("released", {"car_01": None})
    assert (world.state("payments", order_id), world.open()) == ("declined", set())
    timeline = [each["type"] for each in world.read(order_id).body["timeline"]]
    assert "PaymentDeclined" in timeline
    assert "PaymentCaptured" not in timeline


@pytest.mark.parametrize("ends", [True, False], ids=["completed", "abandoned"])
def test_accepted_without_a_car(*, ends: bool) -> None:
    """The booking stays with its caller, who reads that there is no car; nothing is charged however the ride ends."""
    world = World()
    order_id = world.booked("accept")
    world.flow()
    found = world.read(order_id).body
    assert "NoCarAvailable" in [each["type"] for each in found["timeline"]]
    assert found["status"] == "accepted"
    if ends:
        world.change(order_id, "start", 2)
        world.change(order_id, "complete", 3)
        world.flow()
    world.reconcile()
    assert world.item("bookings", order_id)["status"] == ("completed" if ends else "cancelled")
    assert world.state("assignments", order_id) == "unserved"
    assert (world.state("payments", order_id), world.gateway.ledger(), world.open()) == (
        "cancelled",
        [],
        set(),
    )
