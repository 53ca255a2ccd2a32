"""What becomes of a ride that has needed something for too long. Pure: no I/O, no clock, no AWS.

    its booking           what else is known                    what becomes of it
    open, changed lately  whatever                              nothing yet
    open, overdue         whatever                              booking cancelled: CarRideCancelled
    completed             dispatch has not heard of the ride    nothing; it stays visible as overdue
    completed             dispatch has heard of its end lately  nothing yet
    ended                 anything else                         CarRideOverdue, as the booking ended
    none                  it happened lately                    nothing yet
    none                  it ended, or not                      as with a booking, as far as known
    none                  nothing                               nothing; it stays visible as overdue

A ride that is completed and had a car was driven, and is to be paid. Any other is to be undone.
Dispatch may stand still for longer than a ride may be overdue, while rides are driven. So its
silence does not say that a completed ride had no car.

A ride that was not booked here may be settled before its history hears that it was completed.
Payment, which has heard of that, then leaves the ride as it is, and the ride is settled once more.
"""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec.structs import replace

from carride import ride as rides
from carride.bookings import Booking
from carride.facts import CarRideCancelled, CarRideOverdue
from carride.overdue import is_overdue
from carride.ride import OPEN, Ride, Status
from carride_idempotency import Policy

POLICY: Final = Policy(max_attempts=1_000_000_000)
"""Protects the runs, and in each run the rides: one event settles a ride. Only outages and bugs
fail an attempt, and the schedule tries again every five minutes, so attempts are not limited."""

_LEAST_VERSION: Final = 4
"""Of a completed ride: it was requested, accepted, started and completed."""

REASON: Final = "overdue: nothing has happened to the ride for too long"


class Dispatched(NamedTuple):
    """What dispatch knows of a ride."""

    had_car: bool
    open_since: str | None = None  # since when it waits for an event of the ride, in ISO 8601
    heard: str = ""  # when it has heard of the ride last, in ISO 8601


class Seen(NamedTuple):
    """A ride, by everything that is known of it."""

    booking: Booking | None = None  # as it was booked; None if it was not booked here
    booked_since: str = ""  # when the booking changed last, in ISO 8601; empty without one
    latest: Ride | None = None  # as the ride history has it; None if that does not know the ride
    latest_since: datetime | None = None  # when the ride history heard of it last
    dispatched: Dispatched | None = None  # None if dispatch has not heard of the ride


class Cancellation(NamedTuple):
    """The booking is cancelled."""

    fact: CarRideCancelled
    before: Booking
    after: Booking


class Settlement(NamedTuple):
    """Dispatch and payment settle what they hold for the ride."""

    fact: CarRideOverdue


class Unsettled(NamedTuple):
    """Nobody can say how the ride ended. It stays visible as overdue."""

    reason: str


UNKNOWN: Final = Unsettled("no table has data about the ride")
NOT_DISPATCHED: Final = Unsettled("the ride is completed, and dispatch has not heard of it")

type Decision = Cancellation | Settlement | Unsettled


def decide(seen: Seen, now: datetime, limit: timedelta) -> Decision | None:
    """Decide what becomes of a ride to which nothing may happen for longer than ``limit``.

    The result is None if nothing is due yet.
    """
    booking = seen.booking
    if booking is not None:
        if booking.status not in OPEN:
            return _ended(booking, seen.dispatched, now, limit)
        if not is_overdue(seen.booked_since, now, limit):
            return None
        cancelled = rides.cancel(booking)
        return Cancellation(CarRideCancelled.of(cancelled, reason=REASON), booking, cancelled)
    if seen.latest is None:
        return UNKNOWN
    if seen.latest_since is not None and now - limit < seen.latest_since:
        return None
    return _ended(seen.latest, seen.dispatched, now, limit)


def decide_again(seen: Seen, now: datetime, limit: timedelta) -> Settlement | None:
    """Decide what becomes of a ride that was set aside, because dispatch had not heard of it.

    It is settled if dispatch has decided since, and payment has not heard of that for ``limit``.
    """
    dispatched = seen.dispatched
    if dispatched is None or not dispatched.heard or not is_overdue(dispatched.heard, now, limit):
        return None
    decision = decide(seen, now, limit)
    return decision if isinstance(decision, Settlement) else None


def _ended(
    ride: Ride, dispatched: Dispatched | None, now: datetime, limit: timedelta
) -> Settlement | Unsettled | None:
    """Decide what becomes of a ride that has ended, or that nobody will end."""
    if ride.status is not Status.COMPLETED:
        return Settlement(CarRideOverdue.of(ride, outcome="cancelled"))
    if dispatched is None:
        return NOT_DISPATCHED
    ride = _counted(ride)
    if dispatched.had_car:
        return Settlement(CarRideOverdue.of(ride, outcome="completed"))
    if dispatched.open_since is not None and not is_overdue(dispatched.open_since, now, limit):
        return None  # it has heard of the end, and the acceptance may be on its way
    return Settlement(CarRideOverdue.of(ride, outcome="cancelled"))


def _counted(ride: Ride) -> Ride:
    """Return a completed ride with a version that it can have only now.

    Its producer may give each event the first version. The event that settled the ride before its
    completion was heard of would then have the same id, and this one would pass for its copy.
    """
    return replace(ride, version=max(ride.version, _LEAST_VERSION))
