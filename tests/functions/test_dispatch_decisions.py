"""Which car serves a ride, and when it is free again."""

from bisect import bisect
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import assignments
import simulated_rides
from assignments import Assignment, Car, State
from carride.facts import CarAssigned, CarReleased, Fact, NoCarAvailable
from ops.fleet import cars
from tests.kit.rides import Life

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
    """However a ride's events arrive, it has one car at most, and none at the end.

    An overdue ride is settled all the same. A ride that was called off before it was accepted gets
    no car.
    """
    heard = [*facts[:place], *ends, *facts[place:]][lost:]
    seen = Assignment(State.UNKNOWN)
    emitted = list[type[Fact]]()
    for fact in [*heard, LIFE.overdue]:
        decision = assignments.decide(
            seen, fact, free if assignments.wants_car(seen, fact) else None
        )
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


# ── The city ──────────────────────────────────────────────────────────────────────────────────────

SECTORS = st.integers(1, assignments.BLOCKS**2).map(lambda number: f"sector_{number:02d}")


class City:
    """Free cars in order of the index, and the spots that were asked for."""

    def __init__(self, cars: Iterable[Car]) -> None:
        self.free = {assignments.spot(car): car for car in cars}
        self._spots = sorted(self.free)
        self.asked: list[assignments.Spot] = []

    def find(self, start: assignments.Spot, forward: bool) -> Car | None:
        """Find a car as the index does, which is behind: it has cars that were taken since."""
        self.asked.append(start)
        at = bisect(self._spots, start)
        for spot in self._spots[at:] if forward else self._spots[:at][::-1]:
            if spot.shard != start.shard:
                return None
            if spot in self.free:
                return self.free[spot]
        return None

    def nearest(self, pickup: str, order_id: str = "order_01") -> Car | None:
        """Return the nearest car."""
        return assignments.nearest(pickup, order_id, self.find)


def distance(one: str, other: str) -> int:
    """Return how far two sectors are from each other along rows and columns."""
    (row, column), (other_row, other_column) = (
        divmod(int(sector.removeprefix("sector_")) - 1, assignments.BLOCKS)
        for sector in (one, other)
    )
    return abs(row - other_row) + abs(column - other_column)


@given(pickup=SECTORS, stands=st.lists(SECTORS, max_size=6), data=st.data())
def test_the_nearest_car_is_found_along_the_streets(
    pickup: str, stands: list[str], data: st.DataObject
) -> None:
    """The order of parking changes no choice, and no shard without a nearer car is asked."""
    fleet = [Car(f"car_{number}", sector) for number, sector in enumerate(stands)]
    city = City(fleet)
    found = city.nearest(pickup)
    assert City(data.draw(st.permutations(fleet))).nearest(pickup) == found
    if found is None:
        assert (fleet, len(city.asked)) == ([], 2 * assignments.BLOCKS**2 // assignments.SHARD)
        return
    away = distance(pickup, found.sector)
    assert away == min(distance(pickup, sector) for sector in stands)
    assert all(distance(pickup, spot.place.partition("/")[0]) <= away for spot in city.asked)


@pytest.mark.parametrize("dispatchers", [1, 50, 500])
def test_dispatchers_of_a_busy_city_hardly_get_into_each_others_way(dispatchers: int) -> None:
    """Of 20,000 cars, 70 % are busy.

    A ride reads about one page of the index, and few want a car that is just taken.

    The dispatchers choose at the same moment, and then commit one after the other; who is refused
    chooses again.
    """
    random = Random(7)  # noqa: S311 - a simulation, not a secret
    city = City(car for car in cars(20_000) if random.random() > 0.7)
    spots = {car: spot for spot, car in city.free.items()}
    waiting = [(f"order_{number}", f"sector_{random.randint(1, 64):02d}") for number in range(2000)]
    rides = len(waiting)
    refused = 0
    while waiting:
        batch = waiting[:dispatchers]
        waiting = waiting[dispatchers:]
        for ride, car in [(ride, city.nearest(ride[1], ride[0])) for ride in batch]:
            assert car is not None
            if spots[car] in city.free:
                del city.free[spots[car]]
            else:
                refused += 1
                waiting.append(ride)
    assert len(city.asked) / rides < 1.2
    assert refused / rides <= 0.00025 * dispatchers


def test_the_city_is_the_one_that_rides_are_simulated_in() -> None:
    """Dispatch and simulation number the same sectors."""
    assert assignments.BLOCKS == simulated_rides.BLOCKS
    last = simulated_rides.sector(assignments.BLOCKS**2 - 1)
    assert [assignments.zone(each) for each in ("sector_01", "sector_09", last)] == [
        "zone_01",
        "zone_02",
        "zone_08",
    ]


@pytest.mark.parametrize("pickup", ["sector_00", "sector_65", "downtown", "sector_x", "sector_"])
def test_outside_of_the_city_there_is_no_car(pickup: str) -> None:
    """A pickup that is not a sector of the city is in no zone, and nobody is asked."""
    city = City([CAR])
    assert (city.nearest(pickup), city.asked) == (None, [])
    assert assignments.zone(pickup) is None
