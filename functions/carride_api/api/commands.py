"""The commands that book, change and simulate rides: the bodies of requests, and their effect.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from api.callers import Action
from carride import facts
from carride import ride as rides
from carride.decoding import json_name
from carride.facts import Fact, Reason
from carride.ride import (
    CURRENCY,
    CustomerID,
    OrderID,
    Passengers,
    Price,
    Ride,
    RideError,
    Sector,
    Version,
)
from carride.simulation_spec import Mode, Share

# An entry of a ride's timeline takes half a KB, and DynamoDB refuses items of more than 400 KB.
MOST_VERSIONS: Final = 100
_TO_THE_END: Final = 3  # versions reserved for accepting, starting and completing the ride


class TooManyChangesError(RideError):
    """Raised when the destination of a ride has changed too often."""

    def __init__(self, ride: Ride) -> None:
        super().__init__(
            f"{ride.order_id} is at version {ride.version} of {MOST_VERSIONS}: "
            "it can only be completed or cancelled"
        )


class Book(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """Book a ride at the price that was quoted to the customer."""

    customer_id: CustomerID
    pickup: Sector
    destination: Sector
    passengers: Passengers = 1
    price: Price
    currency: Annotated[
        Literal["EUR"], Meta(description="The price's currency: no other is accepted.")
    ] = CURRENCY


class Simulate(Struct, frozen=True, kw_only=True, rename=json_name, forbid_unknown_fields=True):
    """Simulate as many rides as one call of the simulator can publish."""

    mode: Annotated[Mode, Meta(description="Random or predefined rides.")] = Mode.RANDOM
    rides: Annotated[int, Meta(ge=1, le=500, description="By default 10.")] | None = None
    duration: (
        Annotated[float, Meta(gt=0, le=600, description="Seconds, instead of rides.")] | None
    ) = None
    rate: (
        Annotated[float, Meta(gt=0, le=50, description="Events a second; by default no limit.")]
        | None
    ) = None
    # By default derived from the idempotency key.
    seed: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    duplicates: Share = 0.0
    out_of_order: Share = 0.0
    older: Share = 0.0


class Change(
    Struct,
    frozen=True,
    kw_only=True,
    rename=json_name,
    forbid_unknown_fields=True,
    tag_field="action",
):
    """Change a ride that the client has read at ``version``."""

    version: Version

    @property
    def action(self) -> Action:
        """The action's name."""
        return Action(str(self.__struct_config__.tag))


class Accept(Change, frozen=True, kw_only=True, tag="accept"):
    """Accept the ride: the company will drive it."""


class Start(Change, frozen=True, kw_only=True, tag="start"):
    """Start the ride: the passengers are in the car."""


class Complete(Change, frozen=True, kw_only=True, tag="complete"):
    """Complete the ride: the passengers have arrived."""


class Cancel(Change, frozen=True, kw_only=True, tag="cancel"):
    """Cancel the ride: its owner can until it starts, staff until it ends."""

    reason: Reason


class ChangeDestination(Change, frozen=True, kw_only=True, tag="changeDestination"):
    """Change the destination, at the price that was quoted to the customer."""

    destination: Sector
    price: Price


AnyChange = Accept | Start | Complete | Cancel | ChangeDestination

CHANGES: Final[Mapping[str, type[AnyChange]]] = {
    str(change.__struct_config__.tag): change for change in get_args(AnyChange)
}


def book(command: Book, order_id: OrderID) -> Ride:
    """Return the new ride ``order_id``; raise FieldError if it would end where it begins."""
    fields = msgspec.structs.asdict(command)
    del fields["currency"]  # there is only one
    return rides.request(order_id=order_id, **fields)


def change[R: Ride](command: AnyChange, ride: R, *, by_staff: bool = True) -> tuple[R, Fact]:
    """Return the ride after a change, and the fact that the change makes.

    ``by_staff`` says whether a member of staff asks for it.

    Raises:
        RideError: the ride is at another version, or its status does not allow the change, or not
            to this caller.
        FieldError: the new destination is the pickup or the present one.
    """
    seen = command.version
    match command:
        case Accept():
            changed = rides.accept(ride, seen=seen)
            return changed, facts.CarRideAccepted.of(changed)
        case Start():
            changed = rides.start(ride, seen=seen)
            return changed, facts.CarRideStarted.of(changed)
        case Complete():
            changed = rides.complete(ride, seen=seen)
            return changed, facts.CarRideCompleted.of(changed)
        case Cancel(reason=reason):
            changed = rides.cancel(ride, seen=seen, by_staff=by_staff)
            return changed, facts.CarRideCancelled.of(changed, reason=reason)
        case ChangeDestination(destination=destination, price=price):
            changed = rides.change_destination(ride, destination, price, seen=seen)
            if changed.version + _TO_THE_END > MOST_VERSIONS:
                raise TooManyChangesError(ride)
            before = {"previous_destination": ride.destination, "previous_price": ride.price}
            return changed, facts.CarRideDestinationChanged.of(changed, **before)
