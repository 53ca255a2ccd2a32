"""What a ride's page says: what holds it, where it is, its car, its money, and what comes next.

No I/O. The state of a ride follows from its facts and from the items that consumers have of it.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ops.desk.story_holds import holds_of
from ops.desk.story_known import (
    Known,
    Told,
    Who,
    begun_ms,
    emitters_of,
    latest_of,
    told_in,
    who_caused,
)
from ops.desk.story_nexts import Expected, expected_of, nexts_of
from ops.desk.story_tiles import Tile, booking_tile, car_tile, money_tile, next_tile
from ops.desk.words import clip
from ops.holds import Hold
from ops.text import counted


class Story(NamedTuple):
    """What the page says."""

    about: tuple[str, ...]
    begun_ms: float | None
    status: str
    holds: tuple[Hold, ...]
    tiles: tuple[Tile, ...]
    goes_on: bool
    """Whether more is to happen."""
    expected: tuple[Expected, ...]
    who: Mapping[str, Who]
    """Who caused each event, by its id."""
    emitters: Mapping[str, tuple[str, str]]
    """The event and the consumer that each emitted event follows from, by its id."""


def story_of(known: Known) -> Story:
    """Return what the page of a ride says."""
    told = told_in(fact for fact, _ in known.found)
    latest = latest_of(told)
    status = _status(known, latest)
    expected = tuple(expected_of(known, told, status))
    nexts = tuple(nexts_of(known, status))
    return Story(
        about=tuple(_about(known, latest)),
        begun_ms=begun_ms(known),
        status=status,
        holds=holds_of(known),
        tiles=(
            booking_tile(known, told, latest, status),
            car_tile(known, told),
            money_tile(known, latest),
            next_tile(nexts),
        ),
        goes_on=bool(nexts),
        expected=expected,
        who={each.fact.id: who_caused(each) for each in told},
        emitters=emitters_of(told),
    )


def _status(known: Known, latest: Told | None) -> str:
    """Return the status of the ride: as it was booked, or as its newest event says."""
    booked = known.tables["BookingTable"].get("status")
    if booked is not None:
        return str(booked)
    return str(latest.data.status) if latest else "unknown"


def _about(known: Known, latest: Told | None) -> Iterator[str]:
    if latest is None:
        return
    ride = latest.data
    yield f"{ride.pickup} → {ride.destination}"
    yield counted(ride.passengers, "passenger")
    yield ride.customer_id
    owner = known.tables["BookingTable"].get("owner")
    if owner and owner != ride.customer_id:
        yield f"booked by {clip(str(owner), 60)}"
