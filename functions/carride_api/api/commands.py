"""What clients ask for, and what it makes of a ride. Pure: no I/O, no clock.

A command is the body of a request. It decides: given the ride as it is, it returns the fact that it becomes, or raises
the ride's refusal.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta, Struct

from carride import ride as rides
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
from carride.ride import Cents, CustomerID, OrderID, Passengers, Ride, Sector, Version
from carride.shapes import json_name
from carride.simulation import LONGEST_LIFE, Mode, Share, Spec, SpecError

_LONGEST_SIMULATION_S: Final = 600
"""The simulator has 900: none is left half-done for want of time."""
_SIMULATED_RIDES: Final = 10
"""Where nothing else ends a simulation."""


class Book(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """A customer asks for a ride at the price that was quoted to them."""

    customer_id: CustomerID
    pickup: Sector
    destination: Sector
    passengers: Passengers = 1
    price: Cents

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


class Change(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True, tag_field="action"):
    """Something is to become of a ride that the client has seen at ``version``."""

    version: Version

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
    price: Cents

    def decide(self, ride: Ride) -> Fact:
        """See `Change.decide`."""
        changed = rides.change_destination(ride, self.destination, self.price, seen=self.version)
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

    def settled(self, seed: int) -> Self:
        """Return what is to be simulated with nothing left open: with an end, and a seed where it has none.

        Raises:
            SpecError: it has two ends or none, or takes too long.
        """
        rides = _SIMULATED_RIDES if self.rides is None and self.duration is None else self.rides
        Spec(rides=rides, duration=self.duration, rate=self.rate).check_end()
        if rides is not None and self.rate is not None:
            events = rides * LONGEST_LIFE * (1 + self.duplicates)
            if events > self.rate * _LONGEST_SIMULATION_S:
                raise SpecError(
                    "rate", f"{rides} rides can be {events:.0f} events, which have to take no more than 10 minutes"
                )
        return msgspec.structs.replace(self, rides=rides, seed=seed if self.seed is None else self.seed)
