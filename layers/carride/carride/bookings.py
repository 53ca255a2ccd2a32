"""Booked rides, as BookingTable holds them: how they are read, and the writes that book and change them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from carride.overdue import opened
from carride.ride import OPEN, Ride
from idempotency import Put, marshalling


class Booking(Ride, frozen=True, kw_only=True):
    """A ride as the API keeps it."""

    booked_at: Annotated[str, Meta(description="When it was booked, in ISO 8601, UTC; sorts as text.")]
    owner: Annotated[str | None, Meta(description="Who booked it: the caller's subject.")] = None

    @classmethod
    def of(cls, ride: Ride, booked_at: str, owner: str | None) -> Self:
        """Return a ride that ``owner`` booked at a time which `carride.overdue.text` has written."""
        fields = {field: getattr(ride, field) for field in Ride.__struct_fields__}
        return cls(**fields, booked_at=booked_at, owner=owner)

    @classmethod
    def read(cls, item: Mapping[str, Any]) -> Self:
        """Return the ride that an item of the table holds."""
        return msgspec.convert(marshalling.values(item), cls)


def booked(table: str, booking: Booking, now: datetime) -> Put:
    """Return the effect that writes a new ride; its condition refuses a ride that is there."""
    return Put(table, _item(booking, now), "attribute_not_exists(orderID)")


def changed(table: str, seen: Ride, booking: Booking, now: datetime) -> Put:
    """Return the effect that writes a changed ride; its condition refuses any other version than the one seen."""
    return Put(
        table,
        _item(booking, now),
        "#version = :seen",
        names={"#version": "version"},
        values={":seen": seen.version},
    )


def _item(booking: Booking, now: datetime) -> dict[str, object]:
    """Return the item. A ride that has not ended is open since its latest change."""
    fields: dict[str, object] = msgspec.to_builtins(booking)
    return fields | (opened(booking.order_id, now) if booking.status in OPEN else {})
