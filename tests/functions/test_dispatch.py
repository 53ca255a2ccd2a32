"""Dispatch on the tables of this process.

One car to a ride, one ride to a car, and what it emits.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import assignment_table
import assignments
from carride.dynamodb import DynamoDB
from carride.facts import CarAssigned, Fact
from carride.saga_step import Outbox
from carride_idempotency import Check, Update
from carride_idempotency.effects import action_of
from carride_idempotency.testing import Invocation
from carride_idempotency.testing.worlds import OVERTAKEN, Fault
from tests.functions.world import World
from tests.kit.rides import NOW, Life
from tests.kit.rides import event as event_of

TABLES = assignment_table.Tables("assignments", "cars")
OUTBOX = Outbox("outbox", "us-east-1")


@pytest.fixture
def world() -> World:
    """The functions, with one car."""
    world = World()
    world.park("car_01")
    return world


def deliver(world: World, *facts: Fact, **attributes: Any) -> None:
    """Deliver facts to dispatch one after the other."""
    for fact in facts:
        world.deliver("dispatch", world.envelope(fact, **attributes))


def test_what_is_emitted_follows_from_what_was_heard(world: World) -> None:
    """The event in the outbox is a whole one.

    Of the ride, caused by the acceptance, with its correlation and trace.
    """
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    heard = world.envelope(Life().accepted, traceparent=trace)
    world.deliver("dispatch", heard)
    (emitted,) = world.outbox()
    assert isinstance(emitted.data, CarAssigned)
    assert (emitted.data.car_id, emitted.subject, emitted.sequence) == (
        "car_01",
        "order_01",
        "00000002",
    )
    cause = heard["detail"]["id"], heard["detail"]["correlationid"]
    assert (emitted.traceparent, emitted.causationid, emitted.correlationid) == (trace, *cause)


@pytest.mark.parametrize(
    ("cars", "pickup", "reason", "metrics"),
    [
        (["car_01"], "sector_01", None, []),
        (["car_01", "taken"], "airport", "airport is outside of the city", ["NoCarAvailable"]),
        (["taken"], "sector_63", "every car has another ride", ["NoCarAvailable"]),
        (
            [],
            "sector_01",
            "the fleet has no cars: ./carride drive fleet --cars 64 --yes",
            ["EmptyFleet"],
        ),
    ],
)
def test_a_ride_without_a_car_says_why(
    cars: list[str],
    pickup: str,
    reason: str | None,
    metrics: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The event has the reason, and a metric tells an empty fleet from a busy one."""
    world = World()
    for car in cars:
        world.park(car, ride="order_99" if car == "taken" else None)
    deliver(world, Life(pickup=pickup).accepted)
    (emitted,) = world.outbox()
    assert getattr(emitted.data, "reason", None) == reason
    out = capsys.readouterr().out
    assert [name for name in ("NoCarAvailable", "EmptyFleet") if f'"{name}":1' in out] == metrics


def test_every_write_by_itself_refuses_what_is_out_of_date(world: World) -> None:
    """A decision on an older ride is refused by the ride's item and by its car's."""
    ride = Life()
    late = Life("order_02")
    reader = assignment_table.Reader(TABLES, DynamoDB(world.dynamodb))
    deliver(world, late.completed)
    start = assignments.spot(assignments.Car("car_01", "sector_01"))
    unserved = reader.ride("order_02")
    car = reader.free_car(start, True, [])
    deliver(world, ride.accepted)
    assigned = reader.ride("order_01")
    stale: list[tuple[Any, assignment_table.Seen, assignments.Decision]] = [
        (late.accepted, unserved, assignments.decide(unserved.assignment, late.accepted, car))
    ]
    deliver(world, ride.completed, late.accepted, Life("order_03").accepted)
    stale += [(ride.declined, assigned, assignments.decide(assigned.assignment, ride.declined))]
    for fact, seen, decision in stale:
        writes = assignment_table.effects(
            TABLES, event_of(fact), seen, decision, why="", outbox=OUTBOX, now=NOW
        )
        conditional = [action_of(write) for write in writes if isinstance(write, Check | Update)]
        assert len(conditional) == 2
        for action in conditional:
            with pytest.raises(world.dynamodb.exceptions.TransactionCanceledException):
                world.dynamodb.transact_write_items(TransactItems=[action])


ROWS: Final[list[dict[str, object] | None]] = [
    None,
    {},
    {"rideID": "mine"},
    {"rideID": "order_02"},
    {"rideID": 1},
    {"rideID": "mine", "sector": 1},
]
"""What may have become of a car's row: it is gone, free, taken, or spoilt."""


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("heard", [None, "accepted", "completed", "cancelled"])
@pytest.mark.parametrize("end", ["completed", "cancelled", "declined", "overdue"])
def test_the_end_of_a_ride_takes_effect_whatever_has_become_of_its_car(
    world: World,
    row: dict[str, object] | None,
    heard: str | None,
    end: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its car counts as released, and is free only if it was its own.

    Another ride's car stays that ride's.
    """
    ride = Life()
    deliver(world, *([getattr(ride, heard)] if heard else []))
    world.dynamodb.clear("cars")
    mine = row is not None and row.get("rideID") == "mine"
    if row is not None:
        holder = {"rideID": ride.order_id} if mine else {}
        world.put(
            "cars", {"zone": "zone_01", "carID": "car_01", "sector": "sector_01"} | row | holder
        )
    before = world.cars()
    deliver(world, getattr(ride, end))
    released = heard == "accepted" and mine
    assert world.cars() == ({"car_01": None} if released else before)
    if heard == "accepted":
        assert world.state("assignments") == "released"
        assert ('"CarNotHeld":1' in capsys.readouterr().out) == (not released)


TEXTS: Final = ["sector_65", "sector_9", "zone_02", "sector_1\n", "car 1", "x" * 65, "sector_٣"]
ORDERS: Final = itertools.count()


@given(
    spoilt=st.dictionaries(
        st.sampled_from(["zone", "carID", "sector", "extra"]),
        st.sampled_from([None, 7, True, [], {}, b"x", {"a"}, *TEXTS]),
        min_size=1,
    )
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_that_holds_no_car_is_skipped_and_reported(
    world: World,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    spoilt: dict[str, Any],
) -> None:
    """Rides near it get the other car, and one metric and one line of the log name the row."""
    keys = {
        name: each
        for name, each in spoilt.items()
        if name in {"sector", "extra"} or isinstance(each, str)
    }
    at = assignment_table.free(assignments.Car("car_00", "sector_01"))
    row = {"zone": "zone_01", "carID": "car_00", "sector": "sector_01"} | at | keys
    row = {name: value for name, value in row.items() if value is not None}
    world.dynamodb.clear("cars")
    world.park("car_01", sector="sector_08")
    world.put("cars", row)
    place = row["zone"], row.get("sector")
    fine = row["carID"] in {"car_00", *TEXTS[:3]} and place in [
        ("zone_01", "sector_01"),
        ("zone_02", "sector_9"),
    ]
    skipped = not fine
    ride = Life(f"order_{next(ORDERS)}")
    capsys.readouterr()
    caplog.clear()
    deliver(world, ride.accepted)
    assert world.item("assignments", ride.order_id)["carID"] == (row["carID"] if fine else "car_01")
    assert capsys.readouterr().out.count('"CarRowSkipped":1') == skipped
    assert [vars(line)["rows"] for line in caplog.records if line.message == "CarRowSkipped"] == (
        [[f"{row['zone']}/{row['carID']}"]] if skipped else []
    )


def test_each_car_has_one_ride_however_many_reach_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty rides from one place reach for twelve cars in threads: twelve get one each.

    Then all cars are free.
    """
    monkeypatch.setattr(World, "concurrency", None)
    world = World()
    world.park(*(f"car_{number:02d}" for number in range(12)))
    rides = [Life(f"order_{number:02d}", pickup="sector_28") for number in range(30)]

    handler = world.handlers["dispatch"]

    def batch(*facts: Fact) -> Any:
        return handler(world.batch(*map(world.envelope, facts)), Invocation(world.clock))

    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(
            lambda first: batch(*(ride.accepted for ride in rides[first::3])), range(3)
        )
        assert [*answers] == [{"batchItemFailures": []}] * 3
    taken = {
        item["orderID"]: item["carID"]
        for item in world.items("assignments")
        if item["state"] == "assigned"
    }
    assert {car: ride for ride, car in taken.items()} == world.cars()
    assert sorted(world.emitted()) == ["CarAssigned"] * 12 + ["NoCarAvailable"] * 18
    assert batch(*(ride.completed for ride in rides)) == {"batchItemFailures": []}
    assert set(world.cars().values()) == {None}


CHANGED_MEANWHILE: Final[dict[str, tuple[list[Fact], list[str]]]] = {
    "its car was taken": ([Life("order_03").accepted], ["CarAssigned"]),
    "it was completed": ([Life().completed], ["CarAssigned", "CarReleased"]),
}
"""What is heard while a ride is decided upon, so that its commit is refused; and what is emitted
for it then."""


@pytest.mark.parametrize("changed", CHANGED_MEANWHILE)
def test_a_refused_decision_looks_for_a_car_again(world: World, changed: str) -> None:
    """Another ride has freed one meanwhile, which it then gets."""
    heard, emitted = CHANGED_MEANWHILE[changed]
    busy = Life("order_02")
    deliver(world, busy.accepted)
    if changed == "its car was taken":
        world.park("car_02")

    def overtake() -> None:
        deliver(world, *heard, busy.completed)

    fault = Fault(OVERTAKEN, lambda _, what: what.startswith("TransactWriteItems"), overtake)
    world.deliver("dispatch", world.envelope(Life().accepted), fault=fault)
    assert [event.type for event in world.outbox() if event.subject == "order_01"] == emitted
    assert world.item("assignments")["carID"] == "car_01"
