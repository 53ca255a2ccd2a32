"""Which car serves a ride, and when it is free again."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import assignments
from assignments import Assignment, Car, State
from carride import simulation
from carride.facts import FACTS, CarAssigned, CarReleased, Fact, NoCarAvailable
from tests.functions.saga import Life

LIFE = Life()
CAR = Car("car_01", "sector_01")


@given(
    facts=st.permutations([LIFE.accepted, LIFE.created, LIFE.started, LIFE.assigned, LIFE.no_car]),
    ends=st.lists(st.sampled_from([LIFE.completed, LIFE.cancelled, LIFE.declined]), max_size=2),
    place=st.integers(0, 5),
    lost=st.integers(0, 7),
    free=st.sampled_from([CAR, None]),
)
def test_every_order_ends_with_one_car_at_most_and_none_that_is_held(
    facts: list[Fact], ends: list[Fact], place: int, lost: int, free: Car | None
) -> None:
    """However a ride's events arrive, and whichever are lost, it has one car at the most, and none at the end.

    An overdue ride is settled all the same. A ride that was called off before it was accepted gets no car.
    """
    heard = [*facts[:place], *ends, *facts[place:]][lost:]
    seen, emitted = Assignment(State.UNKNOWN), list[type[Fact]]()
    for fact in [*heard, LIFE.overdue]:
        decision = assignments.decide(seen, fact, free if assignments.wants_car(seen, fact) else None)
        assert type(fact) in assignments.CONSUMED or decision == assignments.Decision(seen)
        seen = decision.after
        emitted += decision.facts
    assert seen.state not in {State.UNKNOWN, *assignments.OPEN}
    first = next((fact for fact in heard if fact in [LIFE.accepted, *ends]), None)
    if LIFE.accepted not in heard or first in [LIFE.cancelled, LIFE.declined]:
        assert emitted == []
    elif free:
        assert (seen, emitted) == (Assignment(State.RELEASED, CAR), [CarAssigned, CarReleased])
    else:
        assert (seen, emitted) == (Assignment(State.UNSERVED), [NoCarAvailable])


def test_dispatch_does_not_feed_itself() -> None:
    """Nothing that dispatch emits is something that it acts on, and all of it is in the contract."""
    assert assignments.CONSUMED.isdisjoint(assignments.EMITTED)
    assert set(FACTS.values()) >= assignments.CONSUMED | assignments.EMITTED


# ── The city ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SECTORS = st.integers(1, assignments.BLOCKS**2).map(lambda number: f"sector_{number:02d}")


def nearest(pickup: str, cars: Sequence[Car], order_id: str = "order_01") -> tuple[Car | None, list[str]]:
    """Return the nearest of the cars, and the zones that were asked for."""
    asked: list[str] = []

    def free_in(zone: str) -> list[Car]:
        asked.append(zone)
        return [car for car in cars if assignments.zone(car.sector) == zone]

    return assignments.nearest(pickup, order_id, free_in), asked


def distance(one: str, other: str) -> int:
    """Return how far two sectors are from each other along rows and columns."""
    (row, column), (other_row, other_column) = (
        divmod(int(sector.removeprefix("sector_")) - 1, assignments.BLOCKS) for sector in (one, other)
    )
    return abs(row - other_row) + abs(column - other_column)


@given(pickup=SECTORS, stands=st.lists(SECTORS, max_size=6), data=st.data())
def test_the_nearest_car_is_found_along_the_streets(pickup: str, stands: list[str], data: st.DataObject) -> None:
    """Whatever order cars are listed in, the choice is the same, and no zone is asked for that has no nearer car."""
    cars = [Car(f"car_{number}", sector) for number, sector in enumerate(stands)]
    found, asked = nearest(pickup, cars)
    assert nearest(pickup, data.draw(st.permutations(cars)))[0] == found
    if found is None:
        assert (cars, len(asked)) == ([], assignments.BLOCKS)
        return
    away = distance(pickup, found.sector)
    assert away == min(distance(pickup, sector) for sector in stands)
    row = int(str(assignments.zone(pickup))[-2:])
    assert all(abs(int(zone[-2:]) - row) <= away for zone in asked)


def test_the_city_is_the_one_that_rides_are_simulated_in() -> None:
    """Dispatch and simulation number the same sectors."""
    assert assignments.BLOCKS == simulation.BLOCKS
    last = simulation.sector(assignments.BLOCKS**2 - 1)
    assert [assignments.zone(each) for each in ("sector_01", "sector_09", last)] == ["zone_01", "zone_02", "zone_08"]


def test_rides_from_one_place_do_not_all_reach_for_one_car() -> None:
    """Of cars that are equally near, rides prefer different ones: they would get into each other's way otherwise."""
    cars = [Car(f"car_{number:02d}", "sector_10") for number in range(8)]
    assert len({nearest("sector_10", cars, f"order_{number:02d}")[0] for number in range(40)}) == len(cars)


@pytest.mark.parametrize("pickup", ["sector_00", "sector_65", "downtown", "sector_x", "sector_"])
def test_outside_of_the_city_there_is_no_car(pickup: str) -> None:
    """A pickup that is no sector of the city is in no zone, and nobody is asked."""
    assert nearest(pickup, [CAR]) == (None, [])
    assert assignments.zone(pickup) is None
