"""The types of facts about rides.

Each is the data of one type of event, and is named like it. Pure: no I/O, no AWS.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from carride.ride import CarID, Cents, Ride, Sector, Status

type Reason = Annotated[str, Meta(min_length=1, max_length=200, description="Why, for people.")]
type PaymentID = Annotated[
    str, Meta(min_length=1, max_length=64, description="The payment gateway's reference.")
]


class Fact(Ride, frozen=True, kw_only=True):
    """The ride as it was after something happened to it, and what the fact adds.

    Only a `RideChange` changes the ride. A fact that dispatch, payment or the reconciler adds has
    the version of the event that it follows from.
    """

    # Raise it when readers of the present version could not read the changed data.
    schema_version: ClassVar[int] = 1

    @classmethod
    def dataschema(cls) -> str:
        """Return the URI that names the schema of this data."""
        return f"urn:acr:car-ride:{cls.__name__}:{cls.schema_version}"


class RideChange(Fact, frozen=True, kw_only=True):
    """A fact that makes a new version of the ride. Every version has exactly one."""


class CarRideCreated(RideChange, frozen=True, kw_only=True):
    """A customer asked for a ride."""


class CarRideAccepted(RideChange, frozen=True, kw_only=True):
    """The company will drive the ride."""


class CarRideStarted(RideChange, frozen=True, kw_only=True):
    """The passengers are in the car."""


class CarRideCompleted(RideChange, frozen=True, kw_only=True):
    """The passengers have arrived."""


class CarRideCancelled(RideChange, frozen=True, kw_only=True):
    """The ride was cancelled."""

    reason: Reason


class CarRideDestinationChanged(RideChange, frozen=True, kw_only=True):
    """The passengers want to go elsewhere."""

    previous_destination: Sector
    previous_price: Cents


class CarAssigned(Fact, frozen=True, kw_only=True):
    """Dispatch found a car for the ride."""

    car_id: CarID


class NoCarAvailable(Fact, frozen=True, kw_only=True):
    """Dispatch found no car for the ride."""

    reason: Reason | None = None


class CarReleased(Fact, frozen=True, kw_only=True):
    """The ride's car is free for another ride."""

    car_id: CarID


class PaymentAuthorized(Fact, frozen=True, kw_only=True):
    """The customer's money is reserved."""

    payment_id: PaymentID
    amount: Cents


class PaymentDeclined(Fact, frozen=True, kw_only=True):
    """The customer's money could not be reserved."""

    amount: Cents
    reason: Reason


class PaymentCaptured(Fact, frozen=True, kw_only=True):
    """The customer has paid."""

    payment_id: PaymentID
    amount: Cents


class PaymentRefunded(Fact, frozen=True, kw_only=True):
    """The customer got the money back, or it is no longer reserved."""

    payment_id: PaymentID
    amount: Cents


class CarRideOverdue(Fact, frozen=True, kw_only=True):
    """The ride has needed something for too long.

    Every consumer settles what it holds for the ride.
    """

    outcome: Annotated[
        Literal["completed", "cancelled"],
        Meta(
            description="completed: a car drove the ride, so it is paid. "
            "cancelled: car and money are released."
        ),
    ]


FACTS: Final[Mapping[str, type[Fact]]] = {
    fact.__name__: fact
    for fact in (*RideChange.__subclasses__(), *Fact.__subclasses__())
    if fact is not RideChange
}

ALIASES: Final[Mapping[str, str]] = {
    f"acme.acr.CarRider{change}Event": f"CarRide{change}"
    for change in ("Created", "Accepted", "Started", "Completed", "Cancelled")
}
"""The types of other producers, and what they are called here. The patterns of the consumers' rules
list them too."""

STATUS_AFTER: Final[Mapping[str, Status]] = {
    "CarRideCreated": Status.REQUESTED,
    "CarRideAccepted": Status.ACCEPTED,
    "CarRideStarted": Status.STARTED,
    "CarRideCompleted": Status.COMPLETED,
    "CarRideCancelled": Status.CANCELLED,
}
"""The status that a fact about the ride itself gives it, by the fact's type."""
