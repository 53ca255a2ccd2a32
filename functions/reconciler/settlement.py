"""What becomes of a ride that has needed something for too long. Pure: no I/O, no clock, no AWS.

    its booking                what history says    what becomes of it
    open, changed lately       whatever             nothing yet
    open, overdue              whatever             its booking is cancelled: CarRideCancelled
    ended                      whatever             CarRideOverdue, as the booking ended
    none                       happened lately      nothing yet
    none                       ended, or not        CarRideOverdue, as far as it is known
    none                       nothing              nothing; it stays visible as overdue

A ride that is completed and had a car was driven, and is to be paid. Any other is to be undone.
"""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from carride import ride as rides
from carride.bookings import Booking
from carride.facts import CarRideCancelled, CarRideOverdue
from carride.history import TimelineEntry
from carride.overdue import is_overdue
from carride.ride import OPEN, Ride, Status
from carride_idempotency import Policy

POLICY: Final = Policy()
"""Protects the runs, and in each run the rides: one event settles a ride."""

REASON: Final = "overdue: nothing has happened to the ride for too long"


class Seen(NamedTuple):
    """A ride, by everything that is known of it."""

    booking: Booking | None  # as it was booked; None where it was not booked here
    booked_since: str  # when the booking changed last, in ISO 8601; empty without one
    past: tuple[TimelineEntry, ...]  # what the ride history knows
    had_car: bool  # whether dispatch gave it a car


class Cancellation(NamedTuple):
    """The booking is cancelled."""

    fact: CarRideCancelled
    before: Booking
    after: Booking


class Settlement(NamedTuple):
    """Dispatch and payment settle what they hold for the ride."""

    fact: CarRideOverdue | None  # None where nobody knows the ride


def decide(seen: Seen, now: datetime, limit: timedelta) -> Cancellation | Settlement | None:
    """Decide what becomes of a ride to which nothing may happen for longer than ``limit``; None: nothing yet."""
    booking = seen.booking
    if booking is not None:
        if booking.status not in OPEN:
            return Settlement(_settled(booking, had_car=seen.had_car))
        if not is_overdue(seen.booked_since, now, limit):
            return None
        cancelled = rides.cancel(booking)
        return Cancellation(CarRideCancelled.of(cancelled, reason=REASON), booking, cancelled)
    if not seen.past:
        return Settlement(None)
    # A time that is still to come is its producer's error, and must not keep the ride from being
    # settled.
    if any(
        not is_overdue(each.time, now, limit) and datetime.fromisoformat(each.time) <= now
        for each in seen.past
    ):
        return None
    return Settlement(_settled(msgspec.convert(seen.past[-1].data, Ride), had_car=seen.had_car))


def _settled(ride: Ride, *, had_car: bool) -> CarRideOverdue:
    driven = had_car and ride.status is Status.COMPLETED
    return CarRideOverdue.of(ride, outcome="completed" if driven else "cancelled")
