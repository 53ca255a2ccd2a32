"""Rides that stand still are settled, once each: no car stays held, no money stays reserved."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import open_rides
from carride.overdue import LIMIT, Stage, is_overdue, opened, shard, shards
from local.simulated_gateway import Books, Troubles
from tests.functions.gateways import FakeGateway
from tests.functions.saga import NOW, Life, items
from tests.functions.whole_saga import WholeSaga, whole_saga

WAYS = [
    [],
    ["accept"],
    ["accept", "start"],
    ["accept", "start", "complete"],
    ["accept", "cancel"],
]
COMPENSATIONS = {"CarRideOverdue", "CarRideCancelled"}


@pytest.fixture
def saga() -> Iterator[WholeSaga]:
    """Yield the saga with one car."""
    with whole_saga() as found:
        found.park()
        yield found


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(20))
def test_whatever_was_lost_every_ride_is_settled(seed: int) -> None:
    """Rides are left at any point and consumers lose any events of theirs; two runs later nothing is open or held."""
    chance = random.Random(seed)  # noqa: S311 - a choice of losses, not a secret
    gateway = FakeGateway(Books(Troubles(declined=0.2), seed=seed))
    share = chance.choice([0.0, 0.2, 0.6])

    def lost(consumer: str, fact_type: str) -> bool:
        return consumer != "ride_history" and fact_type not in COMPENSATIONS and chance.random() < share

    with whole_saga(gateway) as saga:
        for number in range(chance.randrange(3)):
            saga.park(f"car_{number}")
        for number in range(2):
            way = chance.choice(WAYS)
            if chance.random() < 0.5:
                saga.book(*way, name=f"customer_{number}")
            else:
                ride = Life(f"order_{number}")
                facts = {"accept": ride.accepted, "start": ride.started, "complete": ride.completed}
                saga.hear(ride.created, *(facts.get(action, ride.cancelled) for action in way), lost=lost)
            saga.flow(lost)
        saga.reconcile()
        saga.reconcile(hours=1 / 12)
        assert saga.open() == set()
        assert set(saga.cars().values()) <= {None}
        charged = {charge["reference"]: charge for charge in gateway.ledger() if charge["status"] != "declined"}
        assert {charge["status"] for charge in charged.values()} <= {"captured", "refunded"}
        assert len(charged) == len([charge for charge in gateway.ledger() if charge["status"] != "declined"])
        had_car = {item["orderID"] for item in items(saga.dynamodb, "assignments") if "carID" in item}
        assert set(charged) <= had_car
        before = saga.emitted()
        assert saga.reconcile() == {"reconciled": 0, "overdue": 0}
        assert saga.emitted() == before


@pytest.mark.parametrize("booked", [True, False], ids=["booked", "simulated"])
@pytest.mark.parametrize("way", WAYS[1:], ids=lambda way: way[-1])
def test_a_ride_that_the_saga_lost_sight_of_ends_as_it_did(saga: WholeSaga, way: list[str], *, booked: bool) -> None:
    """A driven ride is paid, though its completion was lost; a ride that nobody ends is cancelled and paid back."""

    def lost(consumer: str, fact_type: str) -> bool:
        return fact_type in {"CarRideCompleted", "CarRideCancelled"} and consumer != "ride_history" and not ended

    ended = False
    ride = Life()
    facts = {"accept": ride.accepted, "start": ride.started, "complete": ride.completed, "cancel": ride.cancelled}
    if booked:
        order_id = saga.book(*way)
        saga.flow(lost)
    else:
        order_id = ride.order_id
        saga.hear(ride.created, *(facts[action] for action in way), lost=lost)
    assert saga.cars() == {"car_01": order_id}
    ended = True
    assert saga.reconcile(lost=lost) == {"reconciled": 1, "overdue": 0}
    driven = way[-1] == "complete"
    assert (saga.item("payments", order_id)["state"], saga.cars()) == (
        "captured" if driven else "refunded",
        {"car_01": None},
    )
    if booked:
        assert saga.item("bookings", order_id)["status"] == ("completed" if driven else "cancelled")
    assert saga.open() == set()


def test_a_driven_ride_is_paid_though_payment_never_heard_of_it(saga: WholeSaga) -> None:
    """Car and completion were lost on their way to payment; dispatch knows that there was a car."""
    saga.book("accept", "start", "complete")
    saga.flow(lambda consumer, fact_type: consumer == "payment" or fact_type == "CarRideCompleted")
    saga.reconcile()
    assert [charge["captures"] for charge in saga.gateway.ledger()] == [[1250]]


def test_a_run_takes_effect_once(saga: WholeSaga) -> None:
    """The schedule's second delivery of one tick returns what the first did, and does nothing."""
    saga.book("accept")
    saga.flow()
    tick = datetime.now(UTC) + timedelta(hours=5)
    first = saga.tick(tick)
    late = saga.book("accept", name="customer_b")
    saga.flow()
    emitted = saga.emitted()
    assert first == {"reconciled": 1, "overdue": 0}
    assert (saga.tick(tick), saga.emitted()) == (first, emitted)
    assert saga.item("bookings", late)["status"] == "accepted"


def test_a_ride_is_compensated_once_and_stays_visible(saga: WholeSaga) -> None:
    """Dispatch never gets the event: no second one is emitted, and every run counts the ride as overdue."""
    ride = Life()
    saga.hear(ride.created, ride.accepted)
    unheard = lambda consumer, _: consumer == "dispatch"  # noqa: E731 - one line for one condition
    assert saga.reconcile(lost=unheard) == {"reconciled": 1, "overdue": 0}
    emitted = saga.emitted()
    for _ in range(5):
        assert saga.reconcile(lost=unheard) == {"reconciled": 0, "overdue": 1}
    assert (saga.emitted(), saga.open(Stage.RECONCILED)) == (emitted, {ride.order_id})
    saga.hear(ride.completed)
    assert (saga.reconcile(), saga.open()) == ({"reconciled": 0, "overdue": 0}, set())


def test_an_unknown_ride_is_visible_too(saga: WholeSaga) -> None:
    """Nobody knows the ride's data, so there is no event to emit; an operator sees that it is overdue."""
    saga.hear(Life().accepted, lost=lambda consumer, _: consumer == "ride_history")
    assert saga.reconcile() == {"reconciled": 1, "overdue": 0}
    assert saga.reconcile() == {"reconciled": 0, "overdue": 1}
    assert "CarRideOverdue" not in saga.emitted()


def test_a_long_ride_is_left_alone(saga: WholeSaga, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has had its car for too long, but something has happened to it lately."""
    order_id = saga.book("accept")
    saga.flow()
    monkeypatch.setattr("carride.bookings.opened", lambda ride, time: opened(ride, time + timedelta(hours=4)))
    saga.change(order_id, "start", 2)
    monkeypatch.undo()
    saga.flow()
    assert saga.reconcile()["reconciled"] == 0
    assert saga.cars() == {"car_01": order_id}


def test_a_booking_that_changes_meanwhile_is_not_cancelled(saga: WholeSaga, monkeypatch: pytest.MonkeyPatch) -> None:
    """The customer starts the ride between the look and the commit, which is refused."""
    order_id = saga.book("accept")
    find = open_rides.OpenRides.find

    def overtaken(self: Any, order: str) -> Any:
        seen = find(self, order)
        saga.change(order_id, "start", 2)
        return seen

    monkeypatch.setattr(open_rides.OpenRides, "find", overtaken)
    assert saga.reconcile() == {"reconciled": 0, "overdue": 0}
    assert saga.item("bookings", order_id)["status"] == "started"
    assert "CarRideCancelled" not in saga.emitted()


def test_what_does_not_fit_waits_for_the_next_run(saga: WholeSaga) -> None:
    """A run without time settles nothing and fails nothing."""
    saga.book("accept")
    assert saga.reconcile(timeout_s=10)["reconciled"] == 0
    assert saga.reconcile(hours=0.1)["reconciled"] == 1


def test_a_ride_that_cannot_be_settled_does_not_keep_others_from_it(saga: WholeSaga) -> None:
    """The run fails after the others are settled, so that somebody hears of it."""
    broken, other = (saga.book("accept", name=name) for name in ("customer_a", "customer_b"))
    saga.dynamodb.update_item(
        TableName="bookings",
        Key={"orderID": {"S": broken}},
        UpdateExpression="SET passengers = :many",
        ExpressionAttributeValues={":many": {"S": "two"}},
    )
    with pytest.raises(ExceptionGroup, match="1 rides could not be settled, 1 were"):
        saga.reconcile()
    assert saga.item("bookings", other)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("age", "overdue"), [(timedelta(), False), (LIMIT - timedelta(seconds=1), False), (LIMIT, True)]
)
@pytest.mark.parametrize("hours", [0, 2, -8])
def test_a_ride_is_overdue_at_its_limit(age: timedelta, hours: int, *, overdue: bool) -> None:
    """Whatever time zone the time was written in."""
    since = (NOW - age).astimezone(timezone(timedelta(hours=hours)))
    assert is_overdue(since.isoformat(), NOW) == overdue


def test_rides_are_spread_over_all_partitions() -> None:
    """No partition of the index is hot, and none is overlooked."""
    assert {shard(f"order_{number}") for number in range(100)} == set(shards(Stage.OPEN))


# ── Stated outcomes: docs/architecture.md has a row for each ──────────────────────────────────────────────────────────


def test_completed_after_the_payment_was_declined() -> None:
    """The booking ends as it was driven; dispatch and payment stay as they are; the caller reads why it is unpaid."""
    with whole_saga(FakeGateway(Books(Troubles(declined=1.0)))) as saga:
        saga.park()
        order_id = saga.book("accept", "start")
        saga.flow()
        assert saga.change(order_id, "complete", 3)["status"] == "completed"
        saga.flow()
        assert (saga.item("assignments", order_id)["state"], saga.cars()) == ("released", {"car_01": None})
        assert (saga.item("payments", order_id)["state"], saga.open()) == ("declined", set())
        timeline = [each["type"] for each in saga.ask("GET", f"/carrides/{order_id}")["timeline"]]
        assert "PaymentDeclined" in timeline
        assert "PaymentCaptured" not in timeline


@pytest.mark.parametrize("ends", [True, False], ids=["completed", "abandoned"])
def test_accepted_without_a_car(*, ends: bool) -> None:
    """The booking stays with its caller, who reads that there is no car; nothing is charged however the ride ends."""
    with whole_saga() as saga:
        order_id = saga.book("accept")
        saga.flow()
        assert "NoCarAvailable" in [each["type"] for each in saga.ask("GET", f"/carrides/{order_id}")["timeline"]]
        assert saga.ask("GET", f"/carrides/{order_id}")["status"] == "accepted"
        if ends:
            saga.change(order_id, "start", 2)
            saga.change(order_id, "complete", 3)
            saga.flow()
        saga.reconcile()
        assert saga.item("bookings", order_id)["status"] == ("completed" if ends else "cancelled")
        assert saga.item("assignments", order_id)["state"] == "unserved"
        assert (saga.item("payments", order_id)["state"], saga.gateway.ledger(), saga.open()) == (
            "cancelled",
            [],
            set(),
        )
