from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Final

import pytest
from msgspec.structs import replace

from carride import ride as rides
from carride.decoding import FieldError
from carride.ride import IllegalTransitionError, Ride, StaleVersionError, StartedRideError, Status
from tests.kit.rides import booked

type Action = Callable[..., Ride]

redirect: Final = partial(rides.change_destination, destination="sector_09", price=900)

ACTIONS: Final[dict[str, Action]] = {
    **{
        action.__name__: action
        for action in (rides.accept, rides.start, rides.complete, rides.cancel)
    },
    "redirect": redirect,
}

NOT_ENDED: Final = (Status.REQUESTED, Status.ACCEPTED, Status.STARTED)
LEGAL: Final = {
    ("accept", Status.REQUESTED): Status.ACCEPTED,
    ("start", Status.ACCEPTED): Status.STARTED,
    ("complete", Status.STARTED): Status.COMPLETED,
    **{("cancel", status): Status.CANCELLED for status in NOT_ENDED},
    **{("redirect", status): status for status in NOT_ENDED},
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("name", ACTIONS)
def test_a_ride_takes_the_legal_transitions_and_no_other(name: str, status: Status) -> None:
    """Each pair of action and status leads to the diagram's status and a new version, or fails."""
    before = replace(booked(), status=status)
    expected = LEGAL.get((name, status))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=f"{status}.*{name}"):
            ACTIONS[name](before)
    else:
        after = ACTIONS[name](before)
        assert (after.status, after.version) == (expected, before.version + 1)


@pytest.mark.parametrize("name", ACTIONS)
def test_a_decision_on_an_old_version_is_refused(name: str) -> None:
    """Every action refuses an old version."""
    with pytest.raises(StaleVersionError):
        ACTIONS[name](rides.accept(booked()), seen=1)


@pytest.mark.parametrize("status", NOT_ENDED)
def test_a_started_ride_is_cancelled_by_staff_only(status: Status) -> None:
    """Its passengers are in the car, which is not free before staff say so."""
    ride = replace(booked(), status=status)
    assert rides.cancel(ride).status is Status.CANCELLED
    if status is Status.STARTED:
        with pytest.raises(StartedRideError, match="is started: ask staff to cancel it"):
            rides.cancel(ride, by_staff=False)
    else:
        assert rides.cancel(ride, by_staff=False).status is Status.CANCELLED


def test_a_ride_goes_somewhere_else() -> None:
    """No ride ends where it begins, neither when it is booked nor after a change.

    And a change has to change it.
    """
    with pytest.raises(FieldError, match=r"destination: .* begin and end in sector_01"):
        booked(destination="sector_01")
    for destination in ("sector_01", "sector_03"):
        with pytest.raises(FieldError, match=f"destination: .*{destination}"):
            rides.change_destination(booked(), destination, 300)


@pytest.mark.parametrize(
    ("price", "allowed"), [(0, False), (1, True), (10_000_000, True), (10_000_001, False)]
)
def test_a_ride_costs_something_and_not_too_much(price: int, *, allowed: bool) -> None:
    """The price has the same limits when a ride is booked and after a change."""
    with nullcontext() if allowed else pytest.raises(FieldError, match="price: "):
        assert redirect(booked(), price=price).price == price
    with nullcontext() if allowed else pytest.raises(FieldError, match="price: "):
        assert booked(price=price).price == price
