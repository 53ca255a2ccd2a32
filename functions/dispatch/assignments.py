"""Which car serves a ride, and when it is free again. Pure: no I/O, no clock, no AWS.

What dispatch knows of a ride, and what an event makes of it::

                 CarRideAccepted        CarRideCompleted  CarRideCancelled,  CarRideOverdue
                                                          PaymentDeclined
    unknown      assigned, or unserved  completed         cancelled          cancelled
    assigned     ·                      released          released           released
    completed    released, or unserved  ·                 ·                  cancelled
    unserved, released, cancelled: final, every event leaves them as they are

Events come in any order. If a ride was called off before dispatch heard of its acceptance, it never
gets a car. If it was completed before that, it gets a car and gives it back in one step: payment
waits for `CarAssigned`. If its acceptance never comes, the ride is overdue and gets no car.
"""

import hashlib
from collections.abc import Callable, Mapping
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
from carride_idempotency import Policy

CONSUMED: Final = frozenset(
    {CarRideAccepted, CarRideCancelled, CarRideCompleted, PaymentDeclined, CarRideOverdue}
)
"""The facts that dispatch acts on: the rule's pattern lists the same."""

EMITTED: Final = frozenset[type[Fact]]((CarAssigned, NoCarAvailable, CarReleased))
"""The facts that dispatch adds; none of them is consumed by it, or it would feed itself."""

POLICY: Final = Policy(
    # All effects are in the commit. So a message that comes again need not wait until the lease of
    # a killed attempt is over.
    same_delivery_takes_over=True,
    # If another ride takes the car meanwhile, the decision is made again.
    conflict_reruns=20,
)
"""Protects the events of dispatch. It is claimed, not atomic.

A message may kill its process. Its claim shows which message of the batch it was, and counts the
crash. Without a claim, each crash would use up a receive of every message in the batch.
"""

SHARD: Final = 2
"""Neighbouring sectors of a row that share a partition of the index of free cars, which takes 1,000
writes a second."""

NO_CAR: Final = "every car has another ride"

NO_FLEET: Final = "the fleet has no cars: ./carride drive fleet --cars 64 --yes"
"""Why no ride of a new stack gets a car, and what to do."""

BLOCKS: Final = 8
"""The city is a square of this many sectors a side, numbered row by row: sector_01 to sector_64. A
row is a zone."""


class Car(NamedTuple):
    """A car, which waits at its stand between two rides."""

    car_id: str
    sector: str  # where its stand is


class Spot(NamedTuple):
    """Where a free car is in the index of free cars, which holds no other cars."""

    shard: str  # the partition
    place: str  # the sort key: the sector, then a hash of the car's id


type FindCar = Callable[[Spot, bool], Car | None]
"""Finds a free car in the shard of a spot: with True the first one at its place or after it, with
False the last one before it."""


class State(StrEnum):
    """What dispatch knows of a ride."""

    UNKNOWN = "unknown"
    ASSIGNED = "assigned"  # it holds a car
    UNSERVED = "unserved"  # no car was free
    RELEASED = "released"  # its car is free again
    CANCELLED = "cancelled"  # it was called off before it could get a car
    COMPLETED = "completed"  # its end was heard of before its acceptance


# Where dispatch waits for an event of the ride.
OPEN: Final = frozenset({State.ASSIGNED, State.COMPLETED})


class Assignment(NamedTuple):
    """A ride, as dispatch has it."""

    state: State
    car: Car | None = None  # the car that it holds, or held


class Decision(NamedTuple):
    """What an event makes of a ride."""

    after: Assignment
    # What to emit, in this order.
    facts: tuple[type[CarAssigned | NoCarAvailable | CarReleased], ...] = ()


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
        case (
            CarRideCompleted() | CarRideCancelled() | PaymentDeclined() | CarRideOverdue(),
            State.ASSIGNED,
        ):
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


def reason(pickup: str, has_fleet: Callable[[], bool]) -> str:
    """Return why there is no free car for a ride that begins in the sector ``pickup``."""
    if zone(pickup) is None:
        return f"{pickup} is outside of the city"
    return NO_CAR if has_fleet() else NO_FLEET


# ── The city ──────────────────────────────────────────────────────────────────────────────────────


class _Row(Struct, frozen=True, rename=json_name):
    car_id: CarID
    sector: Sector


def parked(row: Mapping[str, object]) -> Car | None:
    """Return the car that a row holds; None if the row holds none, or is not of the car's zone."""
    try:
        car = Car(*msgspec.structs.astuple(shaped(row, _Row)))
    except FieldError:
        return None
    zone_name = zone(car.sector)
    is_in_city = zone_name is not None
    if is_in_city and zone_name == row.get("zone"):
        return car
    return None


def zone(sector: str) -> str | None:
    """Return the zone of a sector; None where the sector is not in the city."""
    place = _place(sector)
    if place is None:
        return None
    row, _ = place
    return ZONES[row]


ZONES: Final = [f"zone_{row + 1:02d}" for row in range(BLOCKS)]


def spot(car: Car) -> Spot:
    """Return where a car of the city is in the index while it is free."""
    row, column = _place(car.sector) or (0, 0)
    return _spot(row, column, car.car_id)


def nearest(pickup: str, order_id: str, find: FindCar) -> Car | None:
    """Return the free car whose stand is nearest to the pickup, along the streets, or None.

    Rides that begin in one sector prefer different cars of it, so that they do not compete for one.
    Outside of the city there are no cars. The function asks ``find`` for the nearest shards first,
    and no more often than needed.
    """
    start = _place(pickup)
    if start is None:
        return None
    best: Car | None = None
    best_distance = _FARTHEST
    for row, column in _nearest_of_each_shard(start):
        for forward in (True, False):
            if best_distance <= _distance(start, (row, column)):
                return best  # whatever stands here is as far away, or further
            car = find(_spot(row, column, order_id), forward)
            if car is None:
                continue
            distance = _distance(start, _place(car.sector))
            if distance < best_distance:
                best = car
                best_distance = distance
    return best


def _nearest_of_each_shard(start: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the place of each shard that is nearest to ``start``, nearest first."""
    places: list[tuple[int, int]] = []
    for row in range(BLOCKS):
        for first in range(0, BLOCKS, SHARD):
            last = first + SHARD - 1
            column = min(max(start[1], first), last)
            places.append((row, column))
    return sorted(places, key=lambda place: _distance(start, place))


def _place(sector: str) -> tuple[int, int] | None:
    """Return a sector's row and column, counted from 0."""
    prefix, _, digits = sector.partition("_")
    if prefix != "sector" or not digits.isdecimal():
        return None
    number = int(digits)
    if not 1 <= number <= BLOCKS * BLOCKS:
        return None
    return divmod(number - 1, BLOCKS)


def _spot(row: int, column: int, name: str) -> Spot:
    number = row * BLOCKS + column + 1
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    shard = f"{ZONES[row]}.{column // SHARD}"
    return Spot(shard, place=f"sector_{number:02d}/{digest}")


_FARTHEST: Final = 4 * BLOCKS  # blocks; no stand is as far away


def _distance(start: tuple[int, int], place: tuple[int, int] | None) -> int:
    # A stand that is nowhere is further away than all others.
    row, column = place or (BLOCKS, BLOCKS)
    return abs(row - start[0]) + abs(column - start[1])
