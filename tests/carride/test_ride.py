from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Final

import pytest

from carride import ride as rides
from carride.ride import (
    IllegalTransitionError,
    NoTripError,
    PriceError,
    Ride,
    SameDestinationError,
    StaleVersionError,
    Status,
)
from tests.carride.rides import booked

type Action = Callable[..., Ride]

redirect: Final = partial(rides.change_destination, destination="sector_09", price=900)

ACTIONS: Final[dict[str, Action]] = {
    "accept": rides.accept,
    "start": rides.start,
    "complete": rides.complete,
    "cancel": rides.cancel,
    "redirect": redirect,
}

LEGAL: Final = {
    ("accept", Status.REQUESTED): Status.ACCEPTED,
    ("start", Status.ACCEPTED): Status.STARTED,
    ("complete", Status.STARTED): Status.COMPLETED,
    ("cancel", Status.REQUESTED): Status.CANCELLED,
    ("cancel", Status.ACCEPTED): Status.CANCELLED,
    ("cancel", Status.STARTED): Status.CANCELLED,
    ("redirect", Status.REQUESTED): Status.REQUESTED,
    ("redirect", Status.ACCEPTED): Status.ACCEPTED,
    ("redirect", Status.STARTED): Status.STARTED,
}


def ride_at(status: Status) -> Ride:
    """Return a ride that got to a status."""
    accepted = rides.accept(booked())
    started = rides.start(accepted)
    return {
        Status.REQUESTED: booked(),
        Status.ACCEPTED: accepted,
        Status.STARTED: started,
        Status.COMPLETED: rides.complete(started),
        Status.CANCELLED: rides.cancel(accepted),
    }[status]


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("name", ACTIONS)
def test_a_ride_takes_the_legal_transitions_and_no_other(name: str, status: Status) -> None:
    """Every pair of action and status either leads where the diagram says, one version on, or is refused."""
    before = ride_at(status)
    expected = LEGAL.get((name, status))
    if expected is None:
        with pytest.raises(IllegalTransitionError) as refusal:
            ACTIONS[name](before)
        assert (refusal.value.action, refusal.value.status) == (name, status)
    else:
        after = ACTIONS[name](before)
        assert (after.status, after.version) == (expected, before.version + 1)


@pytest.mark.parametrize("name", ACTIONS)
def test_a_decision_on_an_old_version_is_refused(name: str) -> None:
    """Whoever names an old version is refused, whatever the action."""
    with pytest.raises(StaleVersionError) as refusal:
        ACTIONS[name](rides.accept(booked()), seen=1)
    assert (refusal.value.version, refusal.value.seen) == (2, 1)


def test_a_ride_goes_somewhere() -> None:
    """Nobody can request a ride that ends where it begins."""
    with pytest.raises(NoTripError):
        rides.request(
            order_id="order_01",
            customer_id="customer_a",
            pickup="sector_01",
            destination="sector_01",
            passengers=1,
            price=550,
        )


@pytest.mark.parametrize(("price", "allowed"), [(0, False), (1, True), (10_000_000, True), (10_000_001, False)])
def test_a_ride_costs_something_and_not_too_much(price: int, *, allowed: bool) -> None:
    """Neither when it is booked nor after a change can it cost anything else."""
    with nullcontext() if allowed else pytest.raises(PriceError):
        assert redirect(booked(), price=price).price == price
    with nullcontext() if allowed else pytest.raises(PriceError):
        assert booked(price=price).price == price


def test_the_same_destination_is_no_change() -> None:
    """A change to where the ride goes already makes no fact."""
    with pytest.raises(SameDestinationError):
        rides.change_destination(booked(), "sector_03", 550)


def test_a_ride_cannot_be_redirected_to_where_it_began() -> None:
    """A change of destination cannot make the ride go nowhere."""
    with pytest.raises(NoTripError):
        rides.change_destination(booked(), "sector_01", 300)
