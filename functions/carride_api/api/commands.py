"""What clients ask for, and what it makes of a ride. Pure: no I/O, no clock.

A command is the body of a request. It decides: given the ride as it is, it returns the fact that it becomes, or raises
the ride's refusal.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

from api.callers import Action
from carride import ride as rides
from carride.decoding import json_name
from carride.events import (
    CarRideAccepted,
    CarRideCancelled,
    CarRideCompleted,
    CarRideCreated,
    CarRideDestinationChanged,
    CarRideStarted,
    Fact,
    Reason,
)
from carride.ride import CURRENCY, CustomerID, OrderID, Passengers, Price, Ride, RideError, Sector, Version
from carride.simulation import LONGEST_LIFE, Mode, Share, Spec, SpecError

MOST_VERSIONS: Final = 100
"""Of a ride. An entry of its history takes half a KB, and DynamoDB refuses an item of more than 400 KB."""
_TO_THE_END: Final = 3
"""Changes that are kept for a ride's way to its end: it is accepted, starts and is completed."""

_LONGEST_SIMULATION_S: Final = 600
_MOST_TIME_S: Final = 800
"""For all events of a simulation. The simulator has 900: none is left half-done for want of time."""
_SIMULATED_RIDES: Final = 10
"""Where nothing else ends a simulation."""


class Book(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """A customer asks for a ride at the price that was quoted to them."""

    customer_id: CustomerID
    pickup: Sector
    destination: Sector
    passengers: Passengers = 1
    price: Price
    currency: Annotated[Literal["EUR"], Meta(description="The price's currency: no other is accepted.")] = CURRENCY

    def decide(self, order_id: OrderID) -> Fact:
        """Return the fact that the ride ``order_id`` was booked.

        Raises:
            NoTripError: it would end where it begins.
        """
        ride = rides.request(
            order_id=order_id,
            customer_id=self.customer_id,
            pickup=self.pickup,
            destination=self.destination,
            passengers=self.passengers,
            price=self.price,
        )
        return CarRideCreated.of(ride)


class TooManyChangesError(RideError):
    """Raised when the destination of a ride has changed as often as it can."""

    def __init__(self, ride: Ride) -> None:
        super().__init__(
            f"{ride.order_id} is at version {ride.version} of {MOST_VERSIONS}: drive it to its end, or cancel it"
        )


class TooMuchError(SpecError):
    """Raised for a simulation that is too large or too slow; ``fits`` is a value of ``field`` that would do."""

    def __init__(self, field: str, problem: str, fits: float) -> None:
        super().__init__(field, f"{problem}; {field}={fits:g} would fit")
        self.fits = fits


class Change(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True, tag_field="action"):
    """Something is to become of a ride that the client has seen at ``version``."""

    version: Version

    @property
    def action(self) -> Action:
        """What the change is called."""
        return Action(str(self.__struct_config__.tag))

    def decide(self, ride: Ride) -> Fact:
        """Return the fact that the change makes of ``ride``.

        Raises:
            RideError: the ride has changed since the client saw it, or its status does not allow the change.
        """
        raise NotImplementedError


class Accept(Change, frozen=True, kw_only=True, tag="accept"):
    """The company will drive the ride."""

    def decide(self, ride: Ride) -> Fact:
        """See `Change.decide`."""
        return CarRideAccepted.of(rides.accept(ride, seen=self.version))


class Start(Change, frozen=True, kw_only=True, tag="start"):
    """The passengers are in the car."""

    def decide(self, ride: Ride) -> Fact:
        """See `Change.decide`."""
        return CarRideStarted.of(rides.start(ride, seen=self.version))


class Complete(Change, frozen=True, kw_only=True, tag="complete"):
    """The passengers have arrived."""

    def decide(self, ride: Ride) -> Fact:
        """See `Change.decide`."""
        return CarRideCompleted.of(rides.complete(ride, seen=self.version))


class Cancel(Change, frozen=True, kw_only=True, tag="cancel"):
    """The ride is called off."""

    reason: Reason

    def decide(self, ride: Ride) -> Fact:
        """See `Change.decide`."""
        return CarRideCancelled.of(rides.cancel(ride, seen=self.version), reason=self.reason)


class ChangeDestination(Change, frozen=True, kw_only=True, tag="changeDestination"):
    """The passengers want to go elsewhere, at the price that was quoted to them."""

    destination: Sector
    price: Price

    def decide(self, ride: Ride) -> Fact:
        """See `Change.decide`.

        Raises:
            TooManyChangesError: the ride needs its last versions for its way to the end.
        """
        changed = rides.change_destination(ride, self.destination, self.price, seen=self.version)
        if changed.version + _TO_THE_END > MOST_VERSIONS:
            raise TooManyChangesError(ride)
        return CarRideDestinationChanged.of(changed, previous_destination=ride.destination, previous_price=ride.price)


CHANGES: Final[Mapping[str, type[Change]]] = {
    str(change.__struct_config__.tag): change for change in (Accept, Start, Complete, Cancel, ChangeDestination)
}
"""The changes by the ``action`` that asks for them."""


class Simulate(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """Simulated rides are to be published; few enough for one call of the simulator."""

    mode: Annotated[Mode, Meta(description="Rides drawn by the seed, or those known beforehand.")] = Mode.RANDOM
    rides: Annotated[int, Meta(ge=1, le=500, description="How many; 10 without a duration.")] | None = None
    duration: (
        Annotated[
            float, Meta(gt=0, le=_LONGEST_SIMULATION_S, description="Seconds to fill at the rate; in place of rides.")
        ]
        | None
    ) = None
    rate: Annotated[float, Meta(gt=0, le=50, description="Events a second; else as fast as can be.")] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """The same rides for the same seed; left out, one of the idempotency key's own."""
    duplicates: Share = 0.0
    out_of_order: Share = 0.0
    older: Share = 0.0

    def settled(self, seed: int, most_events: int) -> Self:
        """Return what is to be simulated with nothing left open: with an end, and a seed where it has none.

        Args:
            seed: the one to use where the request has none.
            most_events: how many events the stage takes of one simulation.

        Raises:
            TooMuchError: it would be more events than that, or not be over while the simulator runs.
            SpecError: it has two ends or none.
        """
        rides = _SIMULATED_RIDES if self.rides is None and self.duration is None else self.rides
        Spec(rides=rides, duration=self.duration, rate=self.rate).check_end()
        life = LONGEST_LIFE * (1 + self.duplicates)  # of one ride, at most: each that has begun is told to its end
        if self.duration is None or self.rate is None:
            events = (rides or 0) * life
            field, fits, slowest = "rides", most_events / life, events / _MOST_TIME_S
        else:
            events = self.duration * self.rate + life
            field, fits = "duration", (most_events - life) / self.rate
            slowest = life / (_MOST_TIME_S - self.duration)
        if events > most_events:
            raise TooMuchError(field, f"up to {events:.0f} events are more than {most_events}", math.floor(fits))
        if self.rate is not None and self.rate < slowest:
            slow = f"up to {events:.0f} events take {events / self.rate:.0f} seconds, not {_MOST_TIME_S}"
            raise TooMuchError("rate", slow, math.ceil(slowest * 1000) / 1000)
        return msgspec.structs.replace(self, rides=rides, seed=seed if self.seed is None else self.seed)
