"""A ride: what it is, and what may become of it. Pure: no I/O, no clock, no AWS.

```
requested ──▶ accepted ──▶ started ──▶ completed
    └─────────────┴───────────┴──────▶ cancelled
```

Until it is completed or cancelled, a ride's destination can change too. Each change makes a new `Ride` whose version is
one higher, and `carride.events` has a fact for it with the same number.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from carride.decoding import json_name

# The lookahead, because `$` alone also matches before a line break at the end.
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$(?!\n)"

type OrderID = Annotated[str, Meta(pattern=_NAME, description="Names the ride, e.g. order_01.")]
type CustomerID = Annotated[str, Meta(pattern=_NAME, description="Names the customer, e.g. customer_a.")]
type CarID = Annotated[str, Meta(pattern=_NAME, description="Names the car, e.g. car_17.")]
type Sector = Annotated[str, Meta(pattern=_NAME, description="A part of the city, e.g. sector_01.")]
type Passengers = Annotated[int, Meta(ge=1, le=8, description="How many travel.")]

CHEAPEST: Final = 1
DEAREST: Final = 10_000_000
"""What a ride can cost, in cents, when it is booked and after each change: a gateway reserves no amount of nothing."""

type Price = Annotated[int, Meta(ge=CHEAPEST, le=DEAREST, description="What a ride is to cost, in cents.")]
type Cents = Annotated[int, Meta(ge=0, le=DEAREST, description="An amount of money, in cents.")]
"""Of facts: archives hold rides that cost nothing, and readers accept them."""
CURRENCY: Final = "EUR"
"""The currency of prices, unless an event says another one. The API accepts no other."""

type Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$(?!\n)", description="The price's currency, as in ISO 4217.")]
type Version = Annotated[
    int, Meta(ge=1, le=99_999_999, description="How many changes the ride has seen, its request included.")
]


class Status(StrEnum):
    """Where a ride stands."""

    REQUESTED = "requested"
    ACCEPTED = "accepted"
    STARTED = "started"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


OPEN: Final = frozenset({Status.REQUESTED, Status.ACCEPTED, Status.STARTED})
"""Where something can still become of a ride."""


class Ride(Struct, frozen=True, kw_only=True, rename=json_name):
    """A ride at one version of it."""

    # Money is a whole number of cents: a JSON number with a fraction may come back from a store or a stream as another
    # one, and the event would no longer be recognised as the same.
    order_id: OrderID
    customer_id: CustomerID
    pickup: Sector
    destination: Sector
    passengers: Passengers
    price: Cents
    status: Status
    version: Version
    currency: Currency = CURRENCY


class RideError(Exception):
    """The base of what a ride refuses."""


class IllegalTransitionError(RideError):
    """Raised when a ride is asked for something that its status does not allow."""

    def __init__(self, ride: Ride, action: str) -> None:
        super().__init__(f"{ride.order_id} is {ride.status}: nobody can {action} it any more, or yet")
        self.status = ride.status
        self.action = action


class StaleVersionError(RideError):
    """Raised when the ride has changed since the caller saw it."""

    def __init__(self, ride: Ride, seen: int) -> None:
        super().__init__(f"{ride.order_id} is at version {ride.version}, not {seen}: read it again")
        self.version = ride.version
        self.seen = seen


class SameDestinationError(RideError):
    """Raised when the destination is to change to what it is."""

    def __init__(self, ride: Ride) -> None:
        super().__init__(f"{ride.order_id} goes to {ride.destination} already")


class PriceError(RideError):
    """Raised when a ride would cost what no ride can."""

    def __init__(self, price: int) -> None:
        super().__init__(f"a ride costs from {CHEAPEST} to {DEAREST} cents, not {price}")


class NoTripError(RideError):
    """Raised when a ride would end where it begins."""

    def __init__(self, sector: str) -> None:
        super().__init__(f"a ride cannot begin and end in {sector}")


def request(*, order_id: str, customer_id: str, pickup: str, destination: str, passengers: int, price: int) -> Ride:
    """Return a new ride.

    Args:
        order_id: the new ride's name.
        customer_id: who asks for it.
        pickup: the sector where it begins.
        destination: the sector where it ends.
        passengers: how many travel.
        price: in cents.

    Raises:
        NoTripError: it would end where it begins.
        PriceError: it would cost nothing, or too much.
    """
    if pickup == destination:
        raise NoTripError(pickup)
    _check_price(price)
    return Ride(
        order_id=order_id,
        customer_id=customer_id,
        pickup=pickup,
        destination=destination,
        passengers=passengers,
        price=price,
        status=Status.REQUESTED,
        version=1,
    )


def accept(ride: Ride, *, seen: int | None = None) -> Ride:
    """Return the ride as accepted: the company will drive it.

    Here as below, ``seen`` is the version that the caller decided upon; None is whatever it is now.

    Raises:
        IllegalTransitionError: it is not just requested.
        StaleVersionError: it has changed since.
    """
    return _changed(ride, "accept", frozenset({Status.REQUESTED}), seen, status=Status.ACCEPTED)


def start(ride: Ride, *, seen: int | None = None) -> Ride:
    """Return the ride as started: the passengers are in the car.

    Raises: as `accept`.
    """
    return _changed(ride, "start", frozenset({Status.ACCEPTED}), seen, status=Status.STARTED)


def complete(ride: Ride, *, seen: int | None = None) -> Ride:
    """Return the ride as completed: the passengers have arrived.

    Raises: as `accept`.
    """
    return _changed(ride, "complete", frozenset({Status.STARTED}), seen, status=Status.COMPLETED)


def cancel(ride: Ride, *, seen: int | None = None) -> Ride:
    """Return the ride as cancelled; until it is completed, it can be.

    Raises: as `accept`.
    """
    return _changed(ride, "cancel", OPEN, seen, status=Status.CANCELLED)


def change_destination(ride: Ride, destination: str, price: int, *, seen: int | None = None) -> Ride:
    """Return the ride with another destination, and what it costs now in cents.

    Raises:
        IllegalTransitionError: it is over.
        StaleVersionError: it has changed since.
        SameDestinationError: it goes there already.
        NoTripError: it began there.
        PriceError: it would cost nothing, or too much.
    """
    changed = _changed(ride, "redirect", OPEN, seen, destination=destination, price=price)
    if destination == ride.destination:
        raise SameDestinationError(ride)
    if destination == ride.pickup:
        raise NoTripError(destination)
    _check_price(price)
    return changed


def _check_price(price: int) -> None:
    if not CHEAPEST <= price <= DEAREST:
        raise PriceError(price)


def _changed(ride: Ride, action: str, allowed: frozenset[Status], seen: int | None, **changes: Any) -> Ride:
    # What the caller decided on an old version means nothing, legal or not: that comes first.
    if seen is not None and seen != ride.version:
        raise StaleVersionError(ride, seen)
    if ride.status not in allowed:
        raise IllegalTransitionError(ride, action)
    return replace(ride, version=ride.version + 1, **changes)
