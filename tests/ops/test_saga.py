"""How rides end, and what it looks like when cars, charges and events do not agree."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from idempotency import observation
from ops.audit.evidence import (
    CONSUMERS,
    DISPATCH,
    PAYMENT,
    BookedRide,
    DeadLettered,
    Delivered,
    Effect,
    Evidence,
    GatewayPayment,
    Named,
    Published,
    RideItem,
)
from ops.audit.saga import Ending, Saga, check

NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
RIDE: Final = "order_01"


def events(*types: str) -> list[Published]:
    """Return published events of one ride, each with its type as its id."""
    return [Published(name, name, name, Named(RIDE, name, 1)) for name in types]


def item(
    consumer: str,
    acted: list[Published],
    state: str,
    detail: str | int | None = None,
    open_since: datetime | None = None,
) -> RideItem:
    """Return a ride in a consumer's table, which has acted on these events."""
    effects = tuple(Effect(str(event.fact)) for event in acted)
    return RideItem(consumer, RIDE, effects, len(effects), state, detail, open_since)


def payment(status: str, amount: int = 1250, captures: int = 0, refunds: int = 0) -> GatewayPayment:
    """Return the ride's payment in the gateway's ledger."""
    return GatewayPayment(RIDE, status, amount, captures, refunds)


def ride(
    types: str, dispatch: str | None, paid: str | None, *payments: GatewayPayment, car: str | None = None
) -> Evidence:
    """Return the evidence of one ride.

    Args:
        types: the types of its events.
        dispatch: its state at dispatch, which has acted on everything.
        paid: its state at payment.
        *payments: what the gateway has.
        car: the car that has it.
    """
    published = events(*types.split())
    return Evidence(
        consumers=CONSUMERS,
        published=published,
        items=[
            *([item(DISPATCH, published, dispatch, "car_01")] if dispatch else []),
            *([item(PAYMENT, published, paid, 1250)] if paid else []),
        ],
        cars={"car_01": RIDE if car == "car_01" else None, "car_02": None},
        payments=payments,
        at=NOW,
    )


UNDER_WAY: Final = "CarRideAccepted CarAssigned PaymentAuthorized"
PAID: Final = ride(
    f"CarRideCreated {UNDER_WAY} CarRideCompleted CarReleased PaymentCaptured",
    "released",
    "captured",
    payment("captured", captures=1),
)
CANCELLED: Final = ride(
    f"{UNDER_WAY} CarRideCancelled CarReleased PaymentRefunded", "released", "refunded", payment("refunded", refunds=1)
)
DECLINED: Final = ride(
    "CarRideAccepted CarAssigned PaymentDeclined CarReleased CarRideCompleted",
    "released",
    "declined",
    payment("declined"),
)
ASSIGNED: Final = ride(UNDER_WAY, "assigned", "authorized", payment("authorized"), car="car_01")
STATES: Final[dict[str, tuple[Evidence, Ending]]] = {
    "paid": (PAID, Ending.PAID),
    "cancelled": (CANCELLED, Ending.CANCELLED),
    "declined": (DECLINED, Ending.DECLINED),
    "refused without a payment": (DECLINED._replace(payments=[]), Ending.DECLINED),
    "declined at the capture, and released": (
        ride(
            f"{UNDER_WAY} CarRideCompleted CarReleased PaymentDeclined",
            "released",
            "declined",
            payment("refunded", refunds=1),
        ),
        Ending.DECLINED,
    ),
    "without a car": (ride("CarRideAccepted NoCarAvailable", "unserved", "cancelled"), Ending.UNSERVED),
    "under way": (ASSIGNED, Ending.OPEN),
    "booked": (ride("CarRideCreated", None, None), Ending.OPEN),
    "the money has still to be given back": (
        ride(f"{UNDER_WAY} CarRideCancelled CarReleased", "released", "undo due", payment("authorized")),
        Ending.OPEN,
    ),
    "compensated without a cancellation": (
        ride(f"{UNDER_WAY} CarReleased PaymentRefunded", "released", "refunded", payment("refunded", refunds=1)),
        Ending.CANCELLED,
    ),
    "reconciled, though an event lies in a queue": (
        ride(
            f"{UNDER_WAY} CarRideOverdue CarReleased PaymentRefunded",
            "released",
            "refunded",
            payment("refunded", refunds=1),
        )._replace(dead_letters=[DeadLettered("PaymentDlq", "QUARANTINED", PAYMENT, None, "CarRideAccepted")]),
        Ending.CANCELLED,
    ),
    "called off before a car": (
        ride("CarRideCancelled", "cancelled", "cancelled", payment("declined")),
        Ending.CANCELLED,
    ),
}


@pytest.mark.parametrize(("given", "ending"), STATES.values(), ids=STATES)
def test_each_way_in_which_a_ride_can_end_is_recognised(given: Evidence, ending: Ending) -> None:
    """Cars, payments and events agree, with the gateway's ledger and without it."""
    for evidence in (given, given._replace(payments=None)):
        saga = check(evidence)
        assert saga.problems == {}
        assert saga.endings == {ending.value: 1}
        assert saga.sound


def said(given: Evidence) -> str:
    """Return everything that is wrong with a ride, which has to be broken."""
    saga = check(given)
    assert saga.endings == {"broken": 1}
    assert not saga.sound
    return "; ".join(saga.problems[RIDE])


def silent(given: Evidence, fact_type: str) -> Evidence:
    """Return the evidence without an event."""
    return given._replace(published=[event for event in given.published if event.type != fact_type])


def undo(status: str) -> Evidence:
    """Return a ride that was refunded, by the table; the gateway has it otherwise."""
    return CANCELLED._replace(payments=[payment(status)])


BROKEN: Final[dict[str, tuple[Evidence, str]]] = {
    "a second charge": (PAID._replace(payments=[*(PAID.payments or ()), payment("authorized")]), "charged 2 times"),
    "a second capture": (PAID._replace(payments=[payment("captured", captures=2)]), "captured 2"),
    "a second refund": (CANCELLED._replace(payments=[payment("refunded", refunds=2)]), "refunded 2"),
    "a second car": (ASSIGNED._replace(cars={"car_01": RIDE, "car_02": RIDE}), "has 2 cars"),
    "a car that another ride has": (ASSIGNED._replace(cars={"car_01": None}), "the cars that have it are []"),
    "a car that was not given back": (PAID._replace(cars={"car_01": RIDE}), "it still has car_01"),
    "an unpublished refund": (silent(CANCELLED, "PaymentRefunded"), "PaymentRefunded was published 0 times"),
    "an unpublished capture": (silent(PAID, "PaymentCaptured"), "PaymentCaptured was published 0 times"),
    "an unpublished car": (silent(ASSIGNED, "CarAssigned"), "CarAssigned was published 0 times"),
    "a refund that the gateway has not made": (undo("authorized"), "but the gateway as [('authorized', 1250)]"),
    "money that the gateway alone knows of": (
        ride("CarRideCreated", None, None, payment("authorized")),
        "but the gateway as [('authorized', 1250)]",
    ),
    "a decline that the gateway has captured": (
        DECLINED._replace(payments=[payment("captured", captures=1)]),
        "the gateway as [('captured', 1250)]",
    ),
    "another amount": (PAID._replace(payments=[payment("captured", 1300, 1)]), "1300"),
    "one fact under two ids": (
        ASSIGNED._replace(
            published=[*ASSIGNED.published, Published("x", "CarAssigned", "other", Named(RIDE, "CarAssigned", 2))]
        ),
        "CarAssigned was published 2 times",
    ),
    "money that stays reserved": (
        ride(f"{UNDER_WAY} CarRideCancelled CarReleased", "released", "authorized", payment("authorized")),
        "its money is still reserved",
    ),
    "a ride that was driven and never paid": (
        ride("CarRideAccepted CarAssigned CarRideCompleted CarReleased", "released", "completed"),
        "its payment is completed",
    ),
}


@pytest.mark.parametrize(("given", "problem"), BROKEN.values(), ids=BROKEN)
def test_what_must_never_happen_to_a_ride_is_named(given: Evidence, problem: str) -> None:
    """Whichever two of table, fleet, gateway and events disagree."""
    assert problem in said(given)


STUCK: Final = ASSIGNED._replace(
    published=[*ASSIGNED.published, *events("CarRideCompleted", "CarReleased")],
    items=[
        item(DISPATCH, events("CarRideAccepted", "CarRideCompleted"), "released", "car_01"),
        item(PAYMENT, events("CarAssigned"), "authorized", 1250),
    ],
    cars={},
)


@pytest.mark.parametrize(
    "excuse",
    [
        {"dead_letters": [DeadLettered("PaymentDlq", "QUARANTINED", PAYMENT, None, "CarRideCompleted")]},
        {"deliveries": [Delivered(PAYMENT, observation.EXPIRED, "CarRideCompleted")]},
    ],
    ids=["dead-lettered", "expired"],
)
@pytest.mark.parametrize("captures", [0, 1])
def test_a_ride_whose_event_was_not_processed_waits_and_is_not_broken(excuse: Any, captures: int) -> None:
    """The money is reserved or captured until somebody redrives the event; a second capture is broken all the same."""
    status = "captured" if captures else "authorized"
    given = STUCK._replace(payments=[payment(status, captures=captures)], **excuse)
    assert check(given).endings == {"waiting for redrive": 1}
    assert check(given).sound
    assert "captured 2" in said(given._replace(payments=[payment("captured", captures=2)]))


@pytest.mark.parametrize(("hours", "overdue"), [(3, False), (5, True)])
def test_a_ride_that_has_needed_something_for_too_long_is_overdue(hours: int, overdue: bool) -> None:
    """Whichever table says so: a booking that nobody accepts, too."""
    since = NOW - timedelta(hours=hours)
    at_payment = ASSIGNED._replace(items=[replace_item(each, since) for each in ASSIGNED.items])
    booked = ASSIGNED._replace(bookings=[BookedRide(RIDE, 2, since, since)])
    for given in (at_payment, booked):
        saga = check(given)
        assert (RIDE in saga.overdue, saga.sound) == (overdue, not overdue)
        assert check(given, overdue_after=timedelta(hours=6)).sound


def replace_item(given: RideItem, since: datetime) -> RideItem:
    """Return an item that has needed something for a while."""
    return given._replace(open_since=since if given.consumer == PAYMENT else None)


@pytest.mark.parametrize(
    "unjudged",
    [
        {"published": [], "archived": 7},
        {"since": NOW - timedelta(hours=1)},
        {"grace": timedelta(hours=3)},
    ],
    ids=["the log is gone", "older than the log", "too young"],
)
def test_a_ride_whose_events_the_log_need_not_have_is_not_called_broken(unjudged: Any) -> None:
    """Tables are kept for ever and the log is not; what may never be is broken all the same."""
    acted = [each._replace(effects=(Effect("x", None, NOW - timedelta(hours=2)),)) for each in CANCELLED.items]
    given = CANCELLED._replace(items=acted, published=events("CarRideAccepted"))
    assert said(given)
    assert check(given._replace(**unjudged)).sound
    assert "2 times" in said(given._replace(**unjudged, payments=[payment("refunded", refunds=2)]))


def test_people_and_machines_read_the_same() -> None:
    """Counts, and which ride is broken or overdue."""
    twice = PAID._replace(payments=[payment("captured", captures=2)])
    saga: Saga = replace(check(twice), overdue={"order_02": "since then"})
    document = json.loads(json.dumps(saga.to_json()))
    assert (document["sound"], document["captured"], document["endings"]) == (False, 1, {"broken": 1})
    for text in (RIDE, "order_02", "CarReleased"):
        assert text in saga.to_text()
