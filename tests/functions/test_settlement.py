"""What becomes of a ride that waits for too long: each row of the table in settlement.py."""

from datetime import datetime, timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from carride.bookings import Booking
from carride.overdue import LIMIT, sortable_time
from carride.ride import Ride, Status
from settlement import (
    NOT_DISPATCHED,
    UNKNOWN,
    Cancellation,
    Decision,
    Dispatched,
    Seen,
    Settlement,
    decide,
)
from tests.kit.rides import NOW, booked

A_MOMENT: Final = timedelta(microseconds=1)
JUST_OVERDUE: Final = NOW - LIMIT
LATELY: Final = JUST_OVERDUE + A_MOMENT
DROVE: Final = Dispatched(had_car=True)


def booking(status: Status, changed: datetime = JUST_OVERDUE) -> Seen:
    """Return a ride of which its booking is known, and nothing else."""
    ride = Booking.of(replace(booked(), status=status), booked_at=sortable_time(JUST_OVERDUE))
    return Seen(booking=ride, booked_since=sortable_time(changed))


def history(status: Status, heard: datetime | None = None) -> Seen:
    """Return a ride of which its history is known, and nothing else."""
    return Seen(latest=replace(booked(), status=status), latest_since=heard)


def waiting(since: datetime) -> Dispatched:
    """Return what dispatch knows of a ride without a car, whose end it has heard of."""
    return Dispatched(had_car=False, open_since=sortable_time(since))


def outcome(decision: Decision | None) -> object:
    """Return what becomes of a ride, in a word."""
    match decision:
        case None:
            return "nothing yet"
        case Cancellation():
            return "cancelled booking"
        case Settlement(fact):
            return fact.outcome
        case unsettled:
            return unsettled


DRIVEN: Final = booking(Status.COMPLETED)
ROWS: Final[dict[str, tuple[Seen, object]]] = {
    "booked and changed lately": (booking(Status.STARTED, LATELY), "nothing yet"),
    "booked and overdue": (booking(Status.STARTED), "cancelled booking"),
    "driven, and dispatch knows nothing": (DRIVEN, NOT_DISPATCHED),
    "driven, with a car": (DRIVEN._replace(dispatched=DROVE), "completed"),
    "driven, and dispatch has heard of it lately": (
        DRIVEN._replace(dispatched=waiting(LATELY)),
        "nothing yet",
    ),
    "driven, and dispatch has waited for too long": (
        DRIVEN._replace(dispatched=waiting(JUST_OVERDUE)),
        "cancelled",
    ),
    "driven, without a car": (
        DRIVEN._replace(dispatched=Dispatched(had_car=False)),
        "cancelled",
    ),
    "cancelled": (booking(Status.CANCELLED)._replace(dispatched=DROVE), "cancelled"),
    "not booked, and heard of lately": (history(Status.STARTED, LATELY), "nothing yet"),
    "not booked, and heard of long ago": (history(Status.STARTED, JUST_OVERDUE), "cancelled"),
    "not booked, and nobody ended it": (history(Status.STARTED), "cancelled"),
    "not booked, and driven": (history(Status.COMPLETED)._replace(dispatched=DROVE), "completed"),
    "not booked, and unknown to dispatch": (history(Status.COMPLETED), NOT_DISPATCHED),
    "unknown": (Seen(), UNKNOWN),
}


@pytest.mark.parametrize(("seen", "expected"), ROWS.values(), ids=ROWS)
def test_a_ride_ends_as_the_table_says(seen: Seen, expected: object) -> None:
    """A wait ends at its limit, not a moment before."""
    assert outcome(decide(seen, NOW, LIMIT)) == expected


def test_a_cancelled_booking_is_the_one_that_was_seen() -> None:
    """So the write is refused if the booking has changed meanwhile."""
    seen = booking(Status.ACCEPTED)
    decision = decide(seen, NOW, LIMIT)
    assert isinstance(decision, Cancellation)
    assert decision.before == seen.booking
    after: Ride = decision.after
    assert (after.status, after.version) == (Status.CANCELLED, decision.before.version + 1)
    assert decision.fact.version == after.version
