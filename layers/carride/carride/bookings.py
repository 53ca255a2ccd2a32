"""The rides in BookingTable, and the effects that write them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from carride.overdue import opened, sortable_time
from carride.ride import OPEN, Ride
from carride_idempotency import Put, marshalling


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


def _item(booking: Booking, now: datetime) -> dict[str, object]:
    """Return the item.

    A ride that has not ended is open since it was booked, and has the time of its latest change.
    """
    fields: dict[str, object] = msgspec.to_builtins(booking)
    if booking.status not in OPEN:
        return fields
    # The same after each change, which the index then does not see.
    since = datetime.fromisoformat(booking.booked_at)
    return fields | opened(booking.order_id, since) | {"changedAt": sortable_time(now)}
