"""Which car serves a ride, and when it is free again. Pure: no I/O, no clock, no AWS.

What dispatch knows of a ride, and what an event makes of it::

                     CarRideAccepted          CarRideCompleted   CarRideCancelled, PaymentDeclined   CarRideOverdue
    unknown          assigned, or unserved    completed          cancelled                           cancelled
    assigned         ·                        released           released                            released
    completed        released, or unserved    ·                  ·                                   cancelled
    unserved, released, cancelled: final, every event leaves them as they are

Events come in any order. A ride that was called off before dispatch heard of its acceptance never gets a car; one that
was completed before that gets it and gives it back in one step, so that payment learns of a car whatever the order. If
its acceptance never comes, the ride is overdue, and gets no car any more.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from carride.decoding import FieldError, json_name, shaped
from carride.facts import (
    CarAssigned,
    CarReleased,
    CarRideAccepted,
    CarRideCancelled,
    CarRideCompleted,
    CarRideOverdue,
    Fact,
    NoCarAvailable,
    PaymentDeclined,
)
from carride.ride import CarID, Sector

CONSUMED: Final = frozenset({CarRideAccepted, CarRideCancelled, CarRideCompleted, PaymentDeclined, CarRideOverdue})
"""The facts that dispatch acts on: the rule's pattern lists the same."""

EMITTED: Final = frozenset[type[Fact]]((CarAssigned, NoCarAvailable, CarReleased))
"""The facts that dispatch adds; none of them is consumed by it, or it would feed itself."""

NO_FLEET: Final = "the fleet has no cars: ./carride fleet --cars 64 --yes"
"""Why no ride of a new stack gets a car, and what to do."""

BLOCKS: Final = 8
"""The city is a square of this many sectors a side, numbered row by row: sector_01 to sector_64. A row is a zone."""


class Car(NamedTuple):
    """A car, which waits at its stand between two rides."""

    car_id: str
    sector: str
    """Where its stand is."""


class State(StrEnum):
    """What dispatch knows of a ride."""

    UNKNOWN = "unknown"
    ASSIGNED = "assigned"
    """It holds a car."""
    UNSERVED = "unserved"
    """No car was free."""
    RELEASED = "released"
    """Its car is free again."""
    CANCELLED = "cancelled"
    """It was called off before it could get a car."""
    COMPLETED = "completed"
    """Its end was heard of before its acceptance."""


OPEN: Final = frozenset({State.ASSIGNED, State.COMPLETED})
"""Where dispatch waits for an event of the ride."""


class Assignment(NamedTuple):
    """A ride, as dispatch has it."""

    state: State
    car: Car | None = None
    """The car that it holds, or held."""


class Decision(NamedTuple):
    """What an event makes of a ride."""

    after: Assignment
    facts: tuple[type[CarAssigned | NoCarAvailable | CarReleased], ...] = ()
    """What to emit, in this order."""


def wants_car(seen: Assignment, fact: Fact) -> bool:
    """Say whether `decide` needs the nearest free car."""
    return isinstance(fact, CarRideAccepted) and seen.state in {State.UNKNOWN, State.COMPLETED}


def decide(seen: Assignment, fact: Fact, free: Car | None = None) -> Decision:
    """Decide what a fact makes of a ride.

    Args:
        seen: the ride as it is.
        fact: what happened to it. A fact that dispatch does not consume changes nothing.
        free: the nearest free car, where `wants_car` asks for one; None where there is none.
    """
    match fact, seen.state:
        case CarRideAccepted(), State.UNKNOWN | State.COMPLETED if free is None:
            return Decision(Assignment(State.UNSERVED), (NoCarAvailable,))
        case CarRideAccepted(), State.UNKNOWN:
            return Decision(Assignment(State.ASSIGNED, free), (CarAssigned,))
        case CarRideAccepted(), State.COMPLETED:
            return Decision(Assignment(State.RELEASED, free), (CarAssigned, CarReleased))
        case CarRideCompleted() | CarRideCancelled() | PaymentDeclined() | CarRideOverdue(), State.ASSIGNED:
            return Decision(Assignment(State.RELEASED, seen.car), (CarReleased,))
        case CarRideCompleted(), State.UNKNOWN:
            return Decision(Assignment(State.COMPLETED))
        case (CarRideCancelled() | PaymentDeclined(), State.UNKNOWN) | (
            CarRideOverdue(),
            (State.UNKNOWN | State.COMPLETED),
        ):
            return Decision(Assignment(State.CANCELLED))
        case _:
            return Decision(seen)


def reason(pickup: str, cars: int) -> str:
    """Return why there is no free car.

    Args:
        pickup: the sector where the ride begins.
        cars: the number of cars in the city.
    """
    if zone(pickup) is None:
        return f"{pickup} is outside of the city"
    return f"each of the {cars} cars has another ride" if cars else NO_FLEET


# ── The city ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Row(Struct, frozen=True, rename=json_name):
    car_id: CarID
    sector: Sector


def parked(in_zone: str, row: Mapping[str, object]) -> Car | None:
    """Return the car that a row of a zone holds; None where no event or no street could name it."""
    try:
        car_id, sector = msgspec.structs.astuple(shaped(row, _Row))
    except FieldError:
        return None
    return Car(car_id, sector) if zone(sector) == in_zone else None


def zone(sector: str) -> str | None:
    """Return the zone of a sector; None where the sector is not in the city."""
    place = _place(sector)
    return None if place is None else _zone(place[0])


def nearest(pickup: str, order_id: str, free_in: Callable[[str], Iterable[Car]]) -> Car | None:
    """Return the free car whose stand is nearest to the pickup, along the streets; None where there is none.

    Of cars that are equally near each ride prefers another one, always the same: rides that begin at one place at the
    same moment do not all reach for the same car.

    Args:
        pickup: the sector where the ride begins; outside of the city there is no car.
        order_id: the ride.
        free_in: lists the free cars of a zone. It is asked for the nearest zones first, and for no more than needed.
    """
    start = _place(pickup)
    if start is None:
        return None
    row, _ = start
    best: tuple[int, bytes, Car] | None = None
    for there in sorted(range(BLOCKS), key=lambda there: abs(there - row)):
        if best is not None and best[0] <= abs(there - row):
            break  # whatever stands in this zone is as far away, or further
        reachable = [(_distance(start, car), _preference(order_id, car), car) for car in free_in(_zone(there))]
        best = min([*reachable, *([best] if best else [])], default=None)
    return None if best is None else best[2]


def _place(sector: str) -> tuple[int, int] | None:
    """Return a sector's row and column, counted from 0."""
    prefix, _, number = sector.partition("_")
    if prefix != "sector" or not number.isdecimal() or not 1 <= int(number) <= BLOCKS * BLOCKS:
        return None
    return divmod(int(number) - 1, BLOCKS)


def _zone(row: int) -> str:
    return f"zone_{row + 1:02d}"


def _distance(start: tuple[int, int], car: Car) -> int:
    row, column = _place(car.sector) or (BLOCKS, BLOCKS)  # a stand that is nowhere is further away than all others
    return abs(row - start[0]) + abs(column - start[1])


def _preference(order_id: str, car: Car) -> bytes:
    return hashlib.blake2b(f"{order_id}/{car.car_id}".encode(), digest_size=8).digest()
