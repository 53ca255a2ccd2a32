"""The rides in BookingTable, and the effects that write them."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from carride.overdue import opened, sortable_time
from carride.ride import OPEN, Ride
from carride_idempotency import Put, marshalling

OWNER_CUSTOMER: Final = "ownerCustomer"
"""The partition key of the index `byOwner`, which lists what one caller booked for a customer."""


class Booking(Ride, frozen=True, kw_only=True):
    """A ride that was booked through the API."""

    booked_at: Annotated[
        str, Meta(description="When it was booked, in ISO 8601 and UTC. Sorts as text.")
    ]
    owner: Annotated[str | None, Meta(description="The subject of the caller who booked it.")] = (
        None
    )

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """Return the ride in an item of the table."""
        return msgspec.convert(marshalling.values(item), cls)


def booked(table: str, booking: Booking, now: datetime) -> Put:
    """Return the effect that writes a new ride; it is refused if the ride exists."""
    return Put(table, _item(booking, now), "attribute_not_exists(orderID)")


def changed(table: str, seen: Ride, booking: Booking, now: datetime) -> Put:
    """Return the effect that writes a changed ride.

    It is refused if the ride is not at the version of ``seen``.
    """
    return Put(
        table,
        _item(booking, now),
        "#version = :seen",
        names={"#version": "version"},
        values={":seen": seen.version},
    )


def owner_customer(owner: str, customer_id: str) -> str:
    """Return the partition of the rides that an owner booked for a customer.

    It is a hash, because a caller's name may be longer than DynamoDB lets a key be.
    """
    # A customer's id has no "#".
    return hashlib.blake2b(f"{owner}#{customer_id}".encode(), digest_size=16).hexdigest()


def _item(booking: Booking, now: datetime) -> dict[str, object]:
    """Return the item.

    A ride that has not ended is open since it was booked, and has the time of its latest change.
    """
    fields: dict[str, object] = msgspec.to_builtins(booking)
    if booking.owner is not None:
        fields[OWNER_CUSTOMER] = owner_customer(booking.owner, booking.customer_id)
    if booking.status not in OPEN:
        return fields
    # The same after each change, which the index then does not see.
    since = datetime.fromisoformat(booking.booked_at)
    return fields | opened(booking.order_id, since) | {"changedAt": sortable_time(now)}
