"""Which car serves a ride, and when it is free again."""

import itertools
import random
from collections.abc import Sequence

import pytest

import fleet
from carride import simulation
from carride.facts import FACTS, CarAssigned, CarReleased, Fact, NoCarAvailable
from fleet import Assignment, Car, State
from tests.functions.saga import Life

LIFE = Life()
CAR = Car("car_01", "sector_01")


def live(facts: Sequence[Fact], free: Car | None = CAR) -> tuple[Assignment, list[type[Fact]]]:
    """Return what becomes of a ride when the facts are heard in this order, and what is emitted."""
    seen = Assignment(State.UNKNOWN)
    emitted: list[type[Fact]] = []
    for fact in facts:
        decision = fleet.decide(seen, fact, free if fleet.wants_car(seen, fact) else None)
        seen = decision.after
        emitted += decision.facts
    return seen, emitted


def test_an_accepted_ride_gets_the_free_car() -> None:
    """The car is the ride's, and that is emitted."""
    assert live([LIFE.accepted]) == (Assignment(State.ASSIGNED, CAR), [CarAssigned])


def test_without_a_free_car_the_ride_stays_unserved() -> None:
    """That is emitted once, and nothing that follows changes it."""
    after, emitted = live([LIFE.accepted, LIFE.completed, LIFE.cancelled], free=None)
    assert (after.state, after.car, emitted) == (State.UNSERVED, None, [NoCarAvailable])


ENDS = [LIFE.completed, LIFE.cancelled, LIFE.declined, LIFE.overdue]


@pytest.mark.parametrize("end", ENDS, ids=lambda fact: type(fact).__name__)
def test_the_car_is_free_again_when_the_ride_is_over(end: Fact) -> None:
    """Whatever ends the ride, its car is released, once."""
    after, emitted = live([LIFE.accepted, end, LIFE.declined])
    assert (after, emitted) == (Assignment(State.RELEASED, CAR), [CarAssigned, CarReleased])


@pytest.mark.parametrize("facts", list(itertools.permutations([LIFE.accepted, LIFE.completed])))
def test_a_completed_ride_had_a_car_and_gave_it_back_whatever_the_order(facts: Sequence[Fact]) -> None:
    """Payment hears of the car even where the end of the ride was heard of first."""
    assert live(facts) == (Assignment(State.RELEASED, CAR), [CarAssigned, CarReleased])


def test_a_ride_that_was_called_off_first_never_gets_a_car() -> None:
    """The acceptance that comes late takes no car, and nothing is emitted."""
    after, emitted = live([LIFE.cancelled, LIFE.accepted])
    assert (after.state, after.car, emitted) == (State.CANCELLED, None, [])


@pytest.mark.parametrize("order", range(200))
def test_every_order_ends_with_one_car_at_most_and_none_that_is_held(order: int) -> None:
    """However a ride's events arrive, and whichever are lost, it has one car at the most, and none at the end."""
    chance = random.Random(order)  # noqa: S311 - an order of events, not a secret
    facts = chance.sample([LIFE.accepted, chance.choice(ENDS[:2]), LIFE.declined, LIFE.created, LIFE.started], 5)
    lost = chance.randrange(6)  # events before it are lost; an overdue ride is settled all the same
    after, emitted = live([*facts[lost:], LIFE.overdue], chance.choice([CAR, None]))
    assert after.state not in {State.UNKNOWN, *fleet.OPEN}
    assert emitted in ([], [CarAssigned, CarReleased], [NoCarAvailable])


def test_facts_of_others_change_nothing() -> None:
    """An event that the rule should not have handed over leaves the ride as it is."""
    seen = Assignment(State.ASSIGNED, CAR)
    for fact in (LIFE.created, LIFE.started, LIFE.assigned, LIFE.no_car):
        assert fleet.decide(seen, fact) == fleet.Decision(seen)


def test_dispatch_does_not_feed_itself() -> None:
    """Nothing that dispatch tells is something that it acts on, and all of it is in the contract."""
    assert fleet.CONSUMED.isdisjoint(fleet.EMITTED)
    assert set(FACTS.values()) >= fleet.CONSUMED | fleet.EMITTED


# ── The city ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def nearest(pickup: str, cars: Sequence[Car], order_id: str = "order_01") -> tuple[Car | None, list[str]]:
    """Return the nearest of the cars, and the zones that were asked for."""
    asked: list[str] = []

    def free_in(zone: str) -> list[Car]:
        asked.append(zone)
        return [car for car in cars if fleet.zone(car.sector) == zone]

    return fleet.nearest(pickup, order_id, free_in), asked


def test_the_city_is_the_one_that_rides_are_simulated_in() -> None:
    """Dispatch and simulation number the same sectors."""
    assert fleet.BLOCKS == simulation.BLOCKS
    last = simulation.sector(fleet.BLOCKS**2 - 1)
    assert (fleet.zone("sector_01"), fleet.zone("sector_09"), fleet.zone(last)) == ("zone_01", "zone_02", "zone_08")


def test_the_nearest_car_is_found_along_the_streets() -> None:
    """Distance counts sectors along rows and columns: two rows down is nearer than three columns to the right."""
    below, right = Car("car_01", "sector_17"), Car("car_02", "sector_04")
    assert nearest("sector_01", [right, below])[0] == below
    assert nearest("sector_01", [right])[0] == right


def test_no_zone_is_asked_for_that_cannot_hold_a_nearer_car() -> None:
    """A car at the pickup costs one question; a car at the other end of the city costs one for each zone."""
    assert nearest("sector_12", [Car("car_01", "sector_12"), Car("car_02", "sector_13")])[1] == ["zone_02"]
    assert len(nearest("sector_01", [Car("car_01", "sector_64")])[1]) == fleet.BLOCKS


def test_the_choice_is_the_same_whatever_order_the_cars_are_listed_in() -> None:
    """The same ride and the same free cars give the same car."""
    cars = [Car(f"car_{number:02d}", "sector_10") for number in range(8)]
    assert {nearest("sector_10", list(order))[0] for order in itertools.islice(itertools.permutations(cars), 500)} == {
        nearest("sector_10", cars)[0]
    }


def test_rides_from_one_place_do_not_all_reach_for_one_car() -> None:
    """Of cars that are equally near, rides prefer different ones: they would get into each other's way otherwise."""
    cars = [Car(f"car_{number:02d}", "sector_10") for number in range(8)]
    assert len({nearest("sector_10", cars, f"order_{number:02d}")[0] for number in range(40)}) == len(cars)


@pytest.mark.parametrize("pickup", ["sector_00", "sector_65", "downtown", "sector_x", "sector_"])
def test_outside_of_the_city_there_is_no_car(pickup: str) -> None:
    """A pickup that is no sector of the city is in no zone, and nobody is asked."""
    assert nearest(pickup, [CAR]) == (None, [])
    assert fleet.zone(pickup) is None


def test_without_cars_there_is_none() -> None:
    """Every zone is asked for, and none has one."""
    assert nearest("sector_28", [])[0] is None
