"""A ride and its life cycle. Pure: no I/O, no clock, no AWS.

```
requested ──▶ accepted ──▶ started ──▶ completed
    └─────────────┴───────────┴──────▶ cancelled
```

A ride that has started is cancelled by staff only: its passengers are in the car. Until it is
completed or cancelled, a ride's destination can change too. Each change makes a new `Ride` with the
next version, and `carride.facts` has a fact for it with the same version.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from carride.decoding import FieldError, json_name

# `$` alone also matches before a line break at the end.
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$(?!\n)"

type OrderID = Annotated[
    str, Meta(pattern=_NAME, description="Identifies the ride, e.g. order_01.")
]
type CustomerID = Annotated[
    str, Meta(pattern=_NAME, description="Identifies the customer, e.g. customer_a.")
]
type CarID = Annotated[str, Meta(pattern=_NAME, description="Identifies the car, e.g. car_17.")]
type Sector = Annotated[
    str, Meta(pattern=_NAME, description="A district of the city, e.g. sector_01.")
]
type Passengers = Annotated[int, Meta(ge=1, le=8, description="The number of passengers.")]

CHEAPEST: Final = 1
DEAREST: Final = 10_000_000
"""The limits of a price in cents. Zero is not allowed: a payment gateway cannot reserve it."""

type Price = Annotated[
    int, Meta(ge=CHEAPEST, le=DEAREST, description="The price of the ride in cents.")
]
type Cents = Annotated[int, Meta(ge=0, le=DEAREST, description="An amount of money in cents.")]
"""Facts may hold a price of zero: archives hold such rides."""
# The currency of an event that names none, and the only one that the API accepts.
CURRENCY: Final = "EUR"

type Currency = Annotated[
    str, Meta(pattern=r"^[A-Z]{3}$(?!\n)", description="The currency of the price, in ISO 4217.")
]
type Version = Annotated[
    int, Meta(ge=1, le=99_999_999, description="Counts the changes of the ride, from 1.")
]


class Status(StrEnum):
    """The status of a ride."""

    REQUESTED = "requested"
    ACCEPTED = "accepted"
    STARTED = "started"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


# A ride can still change.
OPEN: Final = frozenset({Status.REQUESTED, Status.ACCEPTED, Status.STARTED})


class Ride(Struct, frozen=True, kw_only=True, rename=json_name):
    """One version of a ride."""

    # Money is a whole number of cents: a store or a stream may change a fraction, and with it the
    # event's fingerprint.
    order_id: OrderID
    customer_id: CustomerID
    pickup: Sector
    destination: Sector
    passengers: Passengers
    price: Cents
    status: Status
    version: Version
    currency: Currency = CURRENCY

    @classmethod
    def of(cls, ride: "Ride", **added: Any) -> Self:
        """Return the ride as an instance of this class.

        ``added`` are the fields that this class adds to a ride.
        """
        return cls(**{field: getattr(ride, field) for field in Ride.__struct_fields__}, **added)


class RideError(Exception):
    """The base of errors about a change that a ride refuses."""


class IllegalTransitionError(RideError):
    """Raised when the status of the ride does not allow the action."""

    def __init__(self, ride: Ride, action: str) -> None:
        super().__init__(
            f"{ride.order_id} is {ride.status}: its status does not allow the action {action}"
        )


class StartedRideError(RideError):
    """Raised when somebody other than staff cancels a ride that has started."""

    def __init__(self, ride: Ride) -> None:
        super().__init__(f"{ride.order_id} is {ride.status}: ask staff to cancel it")


class StaleVersionError(RideError):
    """Raised when the ride has changed since the caller read it."""

    def __init__(self, ride: Ride, seen: int) -> None:
        super().__init__(f"{ride.order_id} is at version {ride.version}, not {seen}: read it again")


def request(
    *, order_id: str, customer_id: str, pickup: str, destination: str, passengers: int, price: int
) -> Ride:
    """Return a new ride. Its price is in cents.

    Raises:
        FieldError: the ride would end where it begins, or its price is out of range.
    """
    _check(pickup, destination, price)
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


def accept[R: Ride](ride: R, *, seen: int | None = None) -> R:
    """Return the ride as accepted by the company.

    Like the functions below, it raises StaleVersionError if the ride is not at the version ``seen``
    (None: any version) and IllegalTransitionError if the ride's status does not allow the change.
    """
    return _changed(ride, "accept", frozenset({Status.REQUESTED}), seen, status=Status.ACCEPTED)


def start[R: Ride](ride: R, *, seen: int | None = None) -> R:
    """Return the ride as started, with the passengers in the car."""
    return _changed(ride, "start", frozenset({Status.ACCEPTED}), seen, status=Status.STARTED)


def complete[R: Ride](ride: R, *, seen: int | None = None) -> R:
    """Return the ride as completed at its destination."""
    return _changed(ride, "complete", frozenset({Status.STARTED}), seen, status=Status.COMPLETED)


def cancel[R: Ride](ride: R, *, seen: int | None = None, by_staff: bool = True) -> R:
    """Return the ride as cancelled.

    Raises:
        StartedRideError: it has started, and is not cancelled ``by_staff``.
    """
    cancelled = _changed(ride, "cancel", OPEN, seen, status=Status.CANCELLED)
    if ride.status is Status.STARTED and not by_staff:
        raise StartedRideError(ride)
    return cancelled


def change_destination[R: Ride](
    ride: R, destination: str, price: int, *, seen: int | None = None
) -> R:
    """Return the ride with another destination and its new price in cents.

    Raises:
        FieldError: the destination is the present one or the pickup, or the price is out of range.
    """
    changed = _changed(ride, "redirect", OPEN, seen, destination=destination, price=price)
    if destination == ride.destination:
        raise FieldError("destination", f"{ride.order_id} already goes to {destination}")
    _check(ride.pickup, destination, price)
    return changed


def _check(pickup: str, destination: str, price: int) -> None:
    if pickup == destination:
        raise FieldError("destination", f"a ride cannot begin and end in {pickup}")
    if not CHEAPEST <= price <= DEAREST:
        raise FieldError("price", f"a ride costs from {CHEAPEST} to {DEAREST} cents, not {price}")


def _changed[R: Ride](
    ride: R, action: str, allowed: frozenset[Status], seen: int | None, **changes: Any
) -> R:
    # The version comes first: a decision on an old version is void, whatever the status.
    if seen is not None and seen != ride.version:
        raise StaleVersionError(ride, seen)
    if ride.status not in allowed:
        raise IllegalTransitionError(ride, action)
    return replace(ride, version=ride.version + 1, **changes)
