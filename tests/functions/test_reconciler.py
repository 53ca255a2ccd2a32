"""Overdue rides are settled, once each: no car stays held, no money stays reserved."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import compress, permutations, product
from typing import Any, Final
from uuid import uuid4

import pytest
from msgspec.structs import replace

import reconciler
from carride.dynamodb import DynamoDB
from carride.events import SOURCE, RideEvent
from carride.facts import ALIASES, Fact
from carride.overdue import LIMIT, SHARDS, Stage, shard, shards
from carride_idempotency import StoreError
from carride_idempotency.stores.transport import ServiceError
from carride_idempotency.testing import Crash, FakeDynamoDB
from carride_idempotency.testing.worlds import CRASH_BEFORE, OVERTAKEN, Fault
from local.simulated_gateway import Books, Troubles
from tests.functions.gateways import FakeGateway
from tests.functions.world import World
from tests.kit.rides import NOW, Life
from tools.transformed import source

WAYS = [["accept"], ["accept", "start"], ["accept", "start", "complete"], ["accept", "cancel"]]


@pytest.fixture
def world() -> World:
    """The functions, with one car."""
    world = World()
    world.park("car_01")
    return world


@contextmanager
def held_back(world: World, consumer: str) -> Iterator[list[Any]]:
    """Hold back what a consumer is sent meanwhile; yield these events."""
    waiting: list[Any] = []
    deliver = world.deliver

    def held(name: str, event: Any, **options: Any) -> str:
        if name != consumer:
            return deliver(name, event, **options)
        waiting.append(event)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "deliver", held)
        yield waiting


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[-1])
def test_a_booking_whose_end_was_lost_ends_as_it_did(world: World, way: list[str]) -> None:
    """A driven ride is paid, though its completion was lost.

    A ride that nobody ends is cancelled and paid back.
    """

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


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_ride_is_settled_whichever_events_were_lost(end: str) -> None:
    """No car stays held, no money reserved, and a driven ride is paid.

    A driven ride of which dispatch has heard nothing stays open until dispatch catches up. Only the
    audit sees that payment has heard nothing of a ride that dispatch has ended.
    """
    is_driven = end == "complete"
    ended = "CarRideCompleted" if is_driven else "CarRideCancelled"
    way = ["accept", "start", end] if is_driven else ["accept", end]
    to_dispatch = [("dispatch", "CarRideAccepted"), ("dispatch", ended)]
    to_payment = [("payment", "CarAssigned"), ("payment", ended)]
    for chosen in product((False, True), repeat=4):
        lost = set(compress(to_dispatch + to_payment, chosen))
        world = World()
        world.park("car_01")
        world.booked(*way)
        world.flow(lambda *delivery: delivery in lost)  # noqa: B023 - called before the next one
        for _ in range(2):
            world.reconcile()
        statuses = [charge["status"] for charge in world.gateway.ledger()]
        assert (world.cars(), len(statuses) <= 1) == ({"car_01": None}, True), lost
        assert set(statuses) <= {"captured", "refunded"}, lost
        is_silent = lost >= set(to_dispatch)
        is_unpaid = lost >= set(to_payment)
        assert bool(world.open()) == (is_driven and is_silent and not lost & {to_payment[1]}), lost
        is_over = ("dispatch", ended) not in lost
        is_served = ("dispatch", "CarRideAccepted") not in lost
        is_paid = is_driven and is_served and not (is_unpaid and is_over)
        assert ("captured" in statuses) == is_paid, lost


def test_a_run_takes_effect_once(world: World) -> None:
    """The schedule's second delivery of one tick returns what the first did, and does nothing."""
    world.booked("accept")
    world.flow()
    first = world.reconcile()
    emitted = world.emitted()
    assert first == {"reconciled": 1, "overdue": 0}
    assert (world.tick(), world.emitted()) == (first, emitted)


def test_a_ride_is_compensated_once_and_stays_visible(world: World) -> None:
    """Dispatch never gets the event.

    No second one is emitted, and every run counts the ride as overdue.
    """
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
    """Nobody knows the ride's data, so there is no event to emit.

    An operator sees that it is overdue.
    """
    world.publish(Life().accepted, lost=lambda consumer, _: consumer == "ride-history")
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    assert world.reconcile() == {"reconciled": 0, "overdue": 1}
    assert "CarRideOverdue" not in world.emitted()


@pytest.mark.parametrize("booked", [True, False], ids=["booked", "simulated"])
def test_a_long_ride_is_left_alone(world: World, *, booked: bool) -> None:
    """It has had its car for too long, but something has happened to it lately."""
    ride = Life()
    almost = LIMIT.total_seconds() - 60
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
    read = reconciler.Reader.ride

    def overtaken(self: Any, order: str, *when: Any) -> Any:
        seen = read(self, order, *when)
        world.change(order_id, "start", 2)
        return seen

    monkeypatch.setattr(reconciler.Reader, "ride", overtaken)
    assert world.reconcile() == {"reconciled": 0, "overdue": 0}
    assert world.item("bookings", order_id)["status"] == "started"
    assert "CarRideCancelled" not in world.emitted()


def test_what_does_not_fit_waits_for_the_next_run(world: World) -> None:
    """A run without time settles nothing and fails nothing."""
    world.booked("accept")
    assert world.reconcile(timeout_s=10)["reconciled"] == 0
    world.clock.advance(360)
    assert world.tick()["reconciled"] == 1


def test_a_ride_that_cannot_be_settled_does_not_keep_others_from_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails after the others are settled, so that somebody hears of it."""
    first, other = (world.booked("accept", customer=name) for name in ("customer_a", "customer_b"))
    read = reconciler.Reader.ride

    def unavailable(self: Any, order_id: str, *when: Any) -> Any:
        if order_id == first:
            raise ServiceError("InternalServerError", 500, "try again", {})
        return read(self, order_id, *when)

    monkeypatch.setattr(reconciler.Reader, "ride", unavailable)
    with pytest.raises(ExceptionGroup, match="1 rides could not be settled, 1 were"):
        world.reconcile()
    assert world.item("bookings", other)["status"] == "cancelled"


def test_what_has_ended_is_not_set_aside(world: World) -> None:
    """An item that needs nothing, or is not there, stays out of the index of open rides."""
    for customer, actions in {"customer_a": ["accept", "cancel"], "customer_b": ["accept"]}.items():
        order_id = world.booked(*actions, customer=customer)
    world.flow(lambda consumer, fact: (consumer, fact) == ("dispatch", "CarRideCancelled"))
    world.reconcile(lost=lambda consumer, _: consumer == "payment")
    assert world.state("payments", order_id) == "cancelled"
    items = [item for table in ("assignments", "payments") for item in world.items(table)]
    assert [item for item in items if "state" not in item] == []
    assert [item for item in items if "openShard" in item and "openSince" not in item] == []


def test_rides_are_spread_over_all_partitions() -> None:
    """No partition of the index is hot, and none is overlooked."""
    assert {shard(f"order_{number}") for number in range(300)} == set(shards(Stage.OPEN))


def test_a_run_reads_each_partition_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most runs, one every five minutes, find nothing: a second look would only cost."""
    asked: list[tuple[str, str]] = []
    query = DynamoDB.query

    def noted(self: Any, **request: Any) -> Any:
        asked.append((request["TableName"], request["ExpressionAttributeValues"][":shard"]["S"]))
        return query(self, **request)

    monkeypatch.setattr(DynamoDB, "query", noted)
    assert world.reconcile() == {"reconciled": 0, "overdue": 0}
    tables = 3
    assert len(asked) == len(set(asked)) == tables * len(Stage) * SHARDS


@pytest.mark.parametrize("stuck", [0, 1, 99, 150, 199])
def test_no_stuck_ride_is_in_the_way_of_another(stuck: int) -> None:
    """Each is looked at within as many runs as it takes to look at all, a hundred in each."""
    rides = [f"order_{number}" for number in range(stuck + 1)]
    runs = -(-len(rides) // 100) + 1
    for began in (NOW, NOW + timedelta(hours=1), NOW + timedelta(days=1)):
        ticks = [began + number * timedelta(minutes=5) for number in range(runs)]
        looked = [set(reconciler.in_turn(rides, tick)[:100]) for tick in ticks]
        assert set().union(*looked) == set(rides)
    # With time for one ride only, each one's turn comes too.
    ticks = [NOW + number * timedelta(minutes=5) for number in range(200 * len(rides))]
    assert {reconciler.in_turn(rides, tick)[0] for tick in ticks} == set(rides)


def test_a_ride_behind_many_stuck_ones_is_settled(world: World) -> None:
    """Dispatch hears late of a driven ride, which was set aside behind 150 that stay there."""
    order_id = world.booked("accept", "start", "complete")
    world.flow(lambda consumer, _: consumer == "dispatch")
    opened = (world.now() - timedelta(days=1)).isoformat(timespec="microseconds")
    aside = [f"stuck_{number}" for number in range(5_000)]
    partition = shard(order_id, Stage.RECONCILED)
    for each in [name for name in aside if shard(name, Stage.RECONCILED) == partition][:150]:
        item = {"orderID": each, "state": "assigned", "effects": 0}
        world.put("assignments", item | {"openSince": opened, "openShard": partition})
    world.reconcile()
    assert world.state("payments", order_id) == "completed"
    for event in list(world.outbox()):
        if event.type in {"CarRideAccepted", "CarRideCompleted"}:
            world.deliver("dispatch", world.envelope(event))
    world.clock.advance(LIMIT.total_seconds() + 60)
    for _ in range(3):
        world.clock.advance(300)
        world.tick()
    assert world.state("payments", order_id) == "captured"


# ── Stated outcomes: docs/architecture.md has a row for each ──────────────────────────────────────


def test_completed_after_the_payment_was_declined() -> None:
    """The booking ends as it was driven; dispatch and payment stay as they are.

    The caller reads why it is unpaid.
    """
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
    """The booking stays with its caller, who reads that there is no car.

    Nothing is charged however the ride ends.
    """
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


# ── Runs in which something fails ─────────────────────────────────────────────────────────────────

TROUBLES: Final[dict[str, Exception | Fault]] = {
    "throttled": ServiceError("ThrottlingException", 400, "slow down", {}),
    "server error": ServiceError("InternalServerError", 500, "try again", {}),
    "access denied": ServiceError("AccessDeniedException", 400, "not allowed", {}),
    "killed": Fault(CRASH_BEFORE, lambda _, what: what.startswith("TransactWriteItems")),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_ride_is_settled_however_many_runs_have_failed(world: World, trouble: str) -> None:
    """The schedule has no last attempt: once the cause is mended, the next run settles the ride."""
    order_id = world.booked("accept")
    world.flow()
    world.clock.advance(LIMIT.total_seconds() + 60)
    found = TROUBLES[trouble]
    for _ in range(12):
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(found, Fault):
                with pytest.raises(Crash):
                    world.tick(fault=found)
            else:
                _refuse_commits(patch, found)
                with pytest.raises((ExceptionGroup, ServiceError, StoreError)):
                    world.tick()
        world.clock.advance(300)
    assert world.tick() == {"reconciled": 1, "overdue": 0}
    assert world.item("bookings", order_id)["status"] == "cancelled"


TIMEOUT_S: Final = source()["Resources"]["ReconcilerFunction"]["Properties"]["Timeout"]


def test_lambdas_first_retry_takes_over_a_killed_run(world: World) -> None:
    """Otherwise a run that was killed twice would leave a letter that needs nobody."""
    order_id = world.booked("accept")
    world.flow()
    world.clock.advance(LIMIT.total_seconds() + 60)
    event = {"time": world.now().isoformat()}
    killed = Fault(CRASH_BEFORE, lambda _, what: what.startswith("TransactWriteItems"))
    with pytest.raises(Crash):
        world.run("reconciler", event, "run", TIMEOUT_S, killed)
    world.clock.advance(60)
    counts = world.run("reconciler", event, "run", TIMEOUT_S)
    assert counts == {"reconciled": 1, "overdue": 0}
    assert world.item("bookings", order_id)["status"] == "cancelled"


def test_a_second_delivery_of_a_tick_leaves_the_work_to_the_first(world: World) -> None:
    """It would fail until its retries are used up, and leave a letter that needs nobody."""
    world.booked("accept")
    world.flow()
    world.clock.advance(LIMIT.total_seconds() + 60)
    event = {"time": world.now().isoformat()}
    seconds: list[dict[str, int]] = []

    def again() -> None:
        seconds.append(world.run("reconciler", event, "run", TIMEOUT_S))

    meanwhile = Fault(OVERTAKEN, lambda _, what: what.startswith("TransactWriteItems"), again)
    assert world.run("reconciler", event, "run", TIMEOUT_S, meanwhile)["reconciled"] == 1
    assert seconds == [{"reconciled": 0, "overdue": 0}]


def _refuse_commits(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Have DynamoDB refuse every transaction."""
    stock = FakeDynamoDB.__call__

    def call(self: FakeDynamoDB, operation: str, request: Any) -> Any:
        if operation == "TransactWriteItems":
            raise error
        return stock(self, operation, request)

    patch.setattr(FakeDynamoDB, "__call__", call)


def test_the_rides_that_stay_overdue_are_counted_whatever_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alarm on `Overdue` must not wait for a run without failures."""
    ride = Life()
    world.publish(ride.accepted, lost=lambda consumer, _: consumer == "ride-history")
    world.reconcile()
    world.booked("accept")
    world.flow()
    _refuse_commits(monkeypatch, ServiceError("AccessDeniedException", 400, "not allowed", {}))
    capsys.readouterr()
    with pytest.raises(ExceptionGroup, match="1 rides could not be settled, 0 were"):
        world.reconcile()
    assert '"Overdue":1' in capsys.readouterr().out


def test_a_ride_that_cannot_be_read_is_looked_at_once_and_stays_visible(world: World) -> None:
    """It is set aside, so that thousands slow no run, and it is counted as overdue."""
    broken, other = (world.booked("accept", customer=name) for name in ("customer_a", "customer_b"))
    world.flow()
    world.put("bookings", world.item("bookings", broken) | {"passengers": "two"})
    assert world.reconcile() == {"reconciled": 2, "overdue": 0}
    assert world.item("bookings", other)["status"] == "cancelled"
    for _ in range(3):
        world.clock.advance(300)
        assert world.tick() == {"reconciled": 0, "overdue": 1}
    assert world.open(Stage.RECONCILED) == {broken}


def test_an_error_does_not_hold_every_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names their number, and the first ten of them."""
    for number in range(12):
        world.booked("accept", customer=f"customer_{number}")
    _refuse_commits(monkeypatch, ServiceError("AccessDeniedException", 400, "not allowed", {}))
    with pytest.raises(ExceptionGroup, match="12 rides could not be settled") as caught:
        world.reconcile(lost=lambda *_: True)
    assert len(caught.value.exceptions) == 10


# ── Rides of producers that count every event as the first ──────────────────────────────────────


def adopted(world: World, *facts: Fact) -> None:
    """Publish facts as a producer that has names and ids of its own, and counts nothing."""
    names = {fact_type: alias for alias, fact_type in ALIASES.items()}
    for fact in facts:
        detail = RideEvent.of(replace(fact, version=1), source=SOURCE, time=world.now()).to_detail()
        del detail["idempotencyid"]
        own = {"type": names[detail["type"]], "idempotencyId": str(uuid4())}
        world.put_on_the_bus(detail | own)


def test_a_driven_ride_is_paid_though_only_the_history_has_its_completion(world: World) -> None:
    """Facts of dispatch and payment come after the completion, and do not reopen the ride."""
    ride = Life()
    adopted(world, ride.created, ride.completed)
    world.flow(lambda consumer, _: consumer != "ride-history")
    world.clock.advance(60)
    adopted(world, ride.accepted)
    world.flow()
    assert (world.state("payments"), world.cars()) == ("authorized", {"car_01": ride.order_id})
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    assert (world.state("payments"), world.cars()) == ("captured", {"car_01": None})
    assert world.open() == set()


def test_a_late_acceptance_does_not_reopen_a_ride(world: World) -> None:
    """Whoever reads the ride sees how it ended, and everything that happened."""
    ride = Life()
    for fact in (ride.created, ride.started, ride.completed, ride.accepted):
        world.clock.advance(60)
        adopted(world, fact)
        world.flow()
    found = world.read(ride.order_id).body
    assert (found["status"], world.state("payments")) == ("completed", "captured")
    assert [entry["type"] for entry in found["timeline"]][3:5] == ["CarAssigned", "CarReleased"]


@pytest.mark.parametrize("served", [True, False], ids=["served", "unserved"])
@pytest.mark.parametrize("heard", [1, 2, 3], ids=["requested", "accepted", "started"])
def test_a_ride_is_settled_again_once_its_completion_is_heard_of(
    world: World, heard: int, *, served: bool
) -> None:
    """It was written off while only payment knew that it was driven.

    It is paid if a car drove it, and nothing waits for ever. One event more is enough for that.
    """
    ride = Life()
    held = list[Any]()
    deliver = world.deliver

    def hold(consumer: str, event: Any, **options: Any) -> str:
        if consumer != "ride-history":
            return deliver(consumer, event, **options)
        held.append(event)
        return ""

    def lost(consumer: str, fact: str) -> bool:
        return fact == "CarAssigned" or (fact == "CarRideAccepted" and not served)

    changes = [ride.created, ride.accepted, ride.started, ride.completed]
    for fact in changes[:heard]:
        adopted(world, fact)
        world.flow(lost)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "deliver", hold)
        for fact in changes[heard:]:
            adopted(world, fact)
            world.flow(lost)
        assert world.reconcile(lost=lost) == {"reconciled": 1, "overdue": 0}
        assert world.state("payments") == "completed"
    for event in held:
        world.deliver("ride-history", event)
    assert world.reconcile() == {"reconciled": 1, "overdue": 1}
    assert world.state("payments") == ("captured" if served else "cancelled")
    assert (world.cars(), world.open()) == ({"car_01": None}, set())
    assert world.read(ride.order_id).body["status"] == "completed"
    emitted = world.emitted()
    assert world.reconcile() == {"reconciled": 0, "overdue": 0}
    assert world.emitted() == emitted


# ── Times that are not to be trusted, and a dispatch that stands still ────────────────────────────


@pytest.mark.parametrize("ahead_h", [2, 4, 5, 100])
def test_the_clock_of_a_producer_delays_nothing(world: World, ahead_h: float) -> None:
    """What the ride history heard in time counts from then, though its event is of the future."""
    ride = Life()
    time = world.now() + timedelta(hours=ahead_h)
    for fact in (ride.created, ride.accepted, ride.started):
        world.put_on_the_bus(RideEvent.of(fact, source=SOURCE, time=time).to_detail())
        world.flow()
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    assert (world.cars(), world.open()) == ({"car_01": None}, set())


def test_a_ride_that_was_driven_while_dispatch_stood_still_is_paid(world: World) -> None:
    """It stays overdue and is counted until dispatch has heard of it."""
    order_id = world.booked("accept", "start", "complete")
    with held_back(world, "dispatch") as waiting:
        world.flow()
        assert world.state("payments", order_id) == "completed"
        assert world.reconcile() == {"reconciled": 1, "overdue": 0}
        for _ in range(2):
            assert world.reconcile() == {"reconciled": 0, "overdue": 1}
    for event in reversed(waiting):
        world.deliver("dispatch", event)
        world.tick()
    world.flow()
    assert (world.state("assignments", order_id), world.cars()) == ("released", {"car_01": None})
    assert (world.state("payments", order_id), world.open()) == ("captured", set())
    assert "CarRideOverdue" not in world.emitted()


def test_a_driven_ride_is_paid_though_payment_never_hears_of_the_late_car(world: World) -> None:
    """The ride was set aside while dispatch stood still; a later run looks at it again."""
    order_id = world.booked("accept", "start", "complete")
    with held_back(world, "dispatch") as late:
        world.flow()
        assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    for event in late:
        world.deliver("dispatch", event)
    world.flow(lambda consumer, fact: (consumer, fact) == ("payment", "CarAssigned"))
    world.clock.advance(300)
    assert world.tick() == {"reconciled": 0, "overdue": 1}
    assert world.reconcile() == {"reconciled": 1, "overdue": 1}
    assert (world.state("payments", order_id), world.open()) == ("captured", set())
    assert world.reconcile() == {"reconciled": 0, "overdue": 0}


def test_a_ride_that_was_set_aside_is_looked_at_again_whatever_stands_beside_it() -> None:
    """Of many rides that dispatch hears of late, all that can be settled are, in a few runs."""
    world = World()
    world.park(*(f"car_{number}" for number in range(8)))
    rides = [world.booked("accept", "start", "complete", customer=f"c{n}") for n in range(8)]
    late = rides[1::2]
    with held_back(world, "dispatch") as waiting:
        world.flow()
        assert world.reconcile() == {"reconciled": 8, "overdue": 0}
    for event in waiting:
        if event["detail"]["subject"] in late:
            world.deliver("dispatch", event)
    world.flow(lambda consumer, fact: (consumer, fact) == ("payment", "CarAssigned"))
    for _ in range(3):
        world.reconcile()
    assert {world.state("payments", ride) for ride in late} == {"captured"}
    assert world.open() == {*rides} - {*late}


HEARD: Final = ("CarAssigned", "CarRideCompleted", "CarRideOverdue")


@pytest.mark.parametrize("order", [*permutations(HEARD), *permutations(HEARD[1:])], ids="-".join)
def test_a_ride_that_completes_after_it_was_called_off_is_paid_if_payment_heard_of_that_first(
    world: World, order: tuple[str, ...]
) -> None:
    """Its producer completes it late.

    Whatever payment hears in whichever order, nothing stays reserved and nothing waits for ever.
    """
    ride = Life()
    with held_back(world, "payment") as waiting:
        world.publish(ride.created, ride.accepted, ride.started)
        assert world.reconcile() == {"reconciled": 1, "overdue": 0}
        world.publish(ride.completed)
    held = {event["detail"]["type"]: event for event in waiting}
    for name in order:
        world.deliver("payment", held[name])
    world.flow()
    for _ in range(2):
        world.reconcile()
    heard_in_time = order.index("CarRideCompleted") < order.index("CarRideOverdue")
    assert (world.state("payments") == "captured") == heard_in_time
    statuses = {charge["status"] for charge in world.gateway.ledger()}
    assert statuses <= ({"captured"} if heard_in_time else {"refunded"})
    assert (world.cars(), world.open()) == ({"car_01": None}, set())


def test_a_completed_ride_whose_acceptance_never_reaches_dispatch_ends(world: World) -> None:
    """Dispatch has waited for the acceptance as long as a ride may: the ride had no car."""
    order_id = world.booked("accept", "start", "complete")
    world.flow(lambda consumer, fact: consumer == "dispatch" and fact == "CarRideAccepted")
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    assert (world.state("assignments", order_id), world.open()) == ("cancelled", set())
