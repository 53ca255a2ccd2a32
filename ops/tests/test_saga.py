"""How rides end, and what happens if cars, payments and events do not agree."""

import json
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from carride_idempotency import observation
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
from ops.audit.saga import Ending, saga_of
from ops.sentences import says
from ops.tests.world import NOW

RIDE: Final = "order_01"


def events(*types: str) -> list[Published]:
    """Return published events of one ride, each with its type as its id."""
    return [Published(name, name, name, Named(RIDE, name, 1)) for name in types]


def item(
    consumer: str, acted: list[Published], state: str, open_since: datetime | None = None
) -> RideItem:
    """Return a ride in the table of a consumer that has acted on these events."""
    effects = tuple(Effect(str(event.fact)) for event in acted)
    detail = "car_01" if consumer == DISPATCH else 1250
    return RideItem(consumer, RIDE, effects, len(effects), state, detail, open_since)


def payment(status: str, amount: int = 1250, captures: int = 0, refunds: int = 0) -> GatewayPayment:
    """Return the ride's payment in the gateway's ledger."""
    return GatewayPayment(RIDE, status, amount, captures, refunds)


def ride(
    types: str,
    dispatch: str | None,
    paid: str | None,
    *payments: GatewayPayment,
    car: str | None = None,
) -> Evidence:
    """Return a ride's evidence, with the states of dispatch and payment after all its events."""
    published = events(*types.split())
    states = {DISPATCH: dispatch, PAYMENT: paid}
    return Evidence(
        consumers=CONSUMERS,
        published=published,
        items=[item(consumer, published, state) for consumer, state in states.items() if state],
        cars={"car_01": RIDE if car == "car_01" else None, "car_02": None},
        payments=payments,
        at=NOW,
    )


UNDER_WAY: Final = "CarRideAccepted CarAssigned PaymentAuthorized"
CAPTURED: Final = payment("captured", captures=1)
REFUNDED: Final = payment("refunded", refunds=1)
RESERVED: Final = payment("authorized")
DECLINE: Final = payment("declined")
PAID: Final = ride(
    f"{UNDER_WAY} CarRideCompleted CarReleased PaymentCaptured", "released", "captured", CAPTURED
)
UNDONE: Final = f"{UNDER_WAY} CarRideCancelled CarReleased"
CANCELLED: Final = ride(f"{UNDONE} PaymentRefunded", "released", "refunded", REFUNDED)
REFUSED: Final = "CarRideAccepted CarAssigned PaymentDeclined CarReleased CarRideCancelled"
DECLINED: Final = ride(REFUSED, "released", "declined", DECLINE)
TOO_LATE: Final = ride(f"{REFUSED} PaymentAuthorized", "released", "declined", REFUNDED)
ASSIGNED: Final = ride(UNDER_WAY, "assigned", "authorized", RESERVED, car="car_01")
COMPENSATED: Final = ride(
    f"{UNDER_WAY} CarReleased PaymentRefunded", "released", "refunded", REFUNDED
)
OVERDUE: Final = ride(
    f"{UNDER_WAY} CarRideOverdue CarReleased PaymentRefunded", "released", "refunded", REFUNDED
)
UNREAD: Final = item(PAYMENT, list(OVERDUE.published[1:]), "refunded")
IN_QUEUE: Final = DeadLettered("PaymentDlq", "QUARANTINED", PAYMENT, None, "CarRideAccepted")
STATES: Final[dict[str, tuple[Ending, Evidence]]] = {
    "paid": (Ending.PAID, PAID),
    "cancelled": (Ending.CANCELLED, CANCELLED),
    "declined": (Ending.DECLINED, DECLINED),
    "refused without a payment": (Ending.DECLINED, DECLINED._replace(payments=[])),
    "declined at the capture, and released": (Ending.DECLINED, TOO_LATE),
    "without a car": (
        Ending.UNSERVED,
        ride("CarRideAccepted NoCarAvailable", "unserved", "cancelled"),
    ),
    "under way": (Ending.OPEN, ASSIGNED),
    "booked": (Ending.OPEN, ride("CarRideCreated", None, None)),
    "the money has still to be returned": (
        Ending.OPEN,
        ride(UNDONE, "released", "undo due", RESERVED),
    ),
    "compensated without a cancellation": (Ending.CANCELLED, COMPENSATED),
    "reconciled, though an event lies in a queue": (
        Ending.CANCELLED,
        OVERDUE._replace(items=[OVERDUE.items[0], UNREAD], dead_letters=[IN_QUEUE]),
    ),
    "cancelled before a car": (
        Ending.CANCELLED,
        ride("CarRideCancelled", "cancelled", "cancelled", DECLINE),
    ),
}


@pytest.mark.parametrize(("ending", "given"), STATES.values(), ids=STATES)
def test_each_way_in_which_a_ride_can_end_is_recognised(ending: Ending, given: Evidence) -> None:
    """Cars, payments and events agree, with the gateway's ledger and without it."""
    for evidence in (given, given._replace(payments=None)):
        saga = saga_of(evidence)
        assert (saga.problems, saga.endings, saga.sound) == ({}, {ending.value: 1}, True)


SETTLED_LAST: Final = ride(
    "CarRideAccepted CarAssigned CarRideCompleted CarReleased CarRideOverdue",
    "released",
    "cancelled",
)
DRIVEN_DECLINED: Final = ride(
    "CarRideAccepted CarAssigned PaymentDeclined CarReleased CarRideCompleted",
    "released",
    "declined",
    DECLINE,
)
DRIVEN_RELEASED: Final = ride(
    f"{UNDER_WAY} CarRideCompleted CarReleased PaymentDeclined", "released", "declined", REFUNDED
)
DRIVEN_REFUNDED: Final = ride(
    f"{UNDER_WAY} CarRideCompleted CarReleased PaymentRefunded", "released", "refunded", REFUNDED
)
UNPAID: Final = {
    "declined": (Ending.DECLINED, DRIVEN_DECLINED),
    "declined at the capture": (Ending.DECLINED, DRIVEN_RELEASED),
    "returned by hand": (Ending.CANCELLED, DRIVEN_REFUNDED),
    "called off as overdue": (Ending.CANCELLED, SETTLED_LAST),
}


@pytest.mark.parametrize(("ending", "given"), UNPAID.values(), ids=UNPAID)
def test_a_driven_ride_that_nobody_pays_is_unsound(ending: Ending, given: Evidence) -> None:
    """It is named with the gateway's ledger and without it, though nothing contradicts it."""
    for evidence in (given, given._replace(payments=None)):
        saga = saga_of(evidence)
        assert (saga.problems, saga.endings) == ({}, {ending.value: 1})
        assert (saga.sound, saga.unpaid) == (False, [RIDE])
        assert saga.wrong == ["1 ride driven, not paid"]
        assert any(RIDE in line and "driven, not paid" in line for line in saga.named())


NOT_UNPAID: Final = {
    "payment has not heard of its end": DRIVEN_DECLINED._replace(
        items=[
            DRIVEN_DECLINED.items[0],
            item(PAYMENT, list(DRIVEN_DECLINED.published[:-1]), "declined"),
        ],
        dead_letters=[IN_QUEUE._replace(fact="CarRideCompleted")],
    ),
    "its events are young": DRIVEN_DECLINED._replace(
        published=[event._replace(time=NOW) for event in DRIVEN_DECLINED.published],
        grace=timedelta(minutes=15),
    ),
    "it was cancelled": DECLINED,
    "it was completed and cancelled": DRIVEN_DECLINED._replace(
        published=[*DRIVEN_DECLINED.published, *events("CarRideCancelled")]
    ),
    "it had no car": ride(
        "CarRideAccepted NoCarAvailable CarRideCompleted", "unserved", "cancelled"
    ),
    "it was paid": PAID,
}


@pytest.mark.parametrize("given", NOT_UNPAID.values(), ids=NOT_UNPAID)
def test_only_a_ride_that_was_driven_to_its_end_is_unpaid(given: Evidence) -> None:
    """Where an event may still change the payment, and where nobody was driven, nobody owes."""
    assert (saga_of(given).unpaid, saga_of(given).sound) == ([], True)


def problems(given: Evidence) -> str:
    """Return everything that is wrong with a ride, which has to be broken."""
    saga = saga_of(given)
    document = json.loads(json.dumps(saga.to_json()))
    assert (document["endings"], document["sound"], saga.sound) == ({"broken": 1}, False, False)
    found = "; ".join(map(says, saga.problems[RIDE]))
    assert f"  ./carride ride {RIDE}  broken: {found}" in saga.named()
    return found


def silent(given: Evidence, fact_type: str) -> Evidence:
    """Return the evidence without an event."""
    return given._replace(published=[event for event in given.published if event.type != fact_type])


def at(amount: int, *, raise_refused: bool = False) -> Evidence:
    """Return a ride for which this amount was captured; table and gateway agree.

    Its price is 1250.
    """
    published = [event._replace(price=1250) for event in PAID.published]
    at_dispatch, at_payment = PAID.items
    paid = at_payment._replace(detail=amount, raise_refused=raise_refused)
    charged = payment("captured", amount, 1)
    return PAID._replace(published=published, items=[at_dispatch, paid], payments=[charged])


VERSIONS: Final = {"CarRideAccepted": 2, "CarRideCompleted": 3}


def booked(version: int, status: str | None, price: int | None) -> Evidence:
    """Return a paid ride with its booking; it was completed as version 3, for 1250."""
    published = []
    for event in PAID.published:
        named = Named(RIDE, str(event.type), VERSIONS.get(str(event.type), 1))
        published.append(event._replace(price=1250, named=named))
    booking = BookedRide(RIDE, version, status=status, price=price)
    return PAID._replace(published=published, bookings=[booking])


TWO_CAPTURES: Final = payment("captured", captures=2)
TWO_IDS: Final = [
    *ASSIGNED.published,
    Published("x", "CarAssigned", "other", Named(RIDE, "CarAssigned", 2)),
]
DRIVEN: Final = ride(
    "CarRideAccepted CarAssigned CarRideCompleted CarReleased", "released", "completed"
)
AT_GATEWAY: Final = "but the gateway as authorized 1250"
BROKEN: Final[dict[str, tuple[str, Evidence]]] = {
    "a second charge": ("charged 2 times", PAID._replace(payments=[CAPTURED, RESERVED])),
    "a second capture": ("captured 2", PAID._replace(payments=[TWO_CAPTURES])),
    "a second refund": (
        "refunded 2",
        CANCELLED._replace(payments=[payment("refunded", refunds=2)]),
    ),
    "a second car": ("has 2 cars", ASSIGNED._replace(cars={"car_01": RIDE, "car_02": RIDE})),
    "a car that another ride has": (
        "but no car has it",
        ASSIGNED._replace(cars={"car_01": None}),
    ),
    "a car that was not released": ("it still has car_01", PAID._replace(cars={"car_01": RIDE})),
    "an unpublished refund": (
        "PaymentRefunded was never published",
        silent(CANCELLED, "PaymentRefunded"),
    ),
    "an unpublished capture": (
        "PaymentCaptured was never published",
        silent(PAID, "PaymentCaptured"),
    ),
    "an unpublished car": ("CarAssigned was never published", silent(ASSIGNED, "CarAssigned")),
    "a refund that the gateway has not made": (AT_GATEWAY, CANCELLED._replace(payments=[RESERVED])),
    "money that the gateway alone knows of": (
        AT_GATEWAY,
        ride("CarRideCreated", None, None, RESERVED),
    ),
    "a captured decline": (
        "the gateway as captured 1250",
        DECLINED._replace(payments=[CAPTURED]),
    ),
    "another amount": ("1300", PAID._replace(payments=[payment("captured", 1300, 1)])),
    "one fact under two ids": (
        "CarAssigned was published 2 times",
        ASSIGNED._replace(published=TWO_IDS),
    ),
    "money that stays reserved": (
        "its money is still reserved",
        ride(UNDONE, "released", "authorized", RESERVED),
    ),
    "a ride that was driven and never paid": ("its payment is completed", DRIVEN),
    "a capture above the price": ("125000 was captured, and its last price is 1250", at(125_000)),
    "a capture of one cent": ("only 1 was captured, and its last price is 1250", at(1)),
    "a capture of what was reserved, without a refused raise": (
        "only 800 was captured, and its last price is 1250",
        at(800),
    ),
    "a capture of a cancelled ride": (
        "CarRideCancelled was published, and its money was captured",
        ride(f"{UNDONE} PaymentCaptured", "released", "captured", CAPTURED),
    ),
    "a paid ride that the gateway has refunded": (
        "the gateway as refunded 1250",
        PAID._replace(payments=[payment("refunded", captures=1, refunds=1)]),
    ),
    "a booking behind its events": (
        "its booking has version 2, and version 3 was published",
        booked(2, "accepted", 1250),
    ),
    "a booking with another status": (
        "its booking has the status cancelled, and CarRideCompleted was published",
        booked(3, "cancelled", 1250),
    ),
    "a booking with another price": (
        "its booking has the price 800, and 1250 was published",
        booked(3, "completed", 800),
    ),
    "a refund beside a capture": (
        "the gateway has returned the money",
        PAID._replace(payments=[payment("captured", captures=1, refunds=1)]),
    ),
}


@pytest.mark.parametrize(("problem", "given"), BROKEN.values(), ids=BROKEN)
def test_what_must_never_happen_to_a_ride_is_named(problem: str, given: Evidence) -> None:
    """Whichever two of table, fleet, gateway and events disagree."""
    assert problem in problems(given)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(booked(3, "completed", 1250), id="a booking as its last event says"),
        pytest.param(booked(3, None, None), id="a booking of which only the version is known"),
        pytest.param(
            booked(2, "accepted", 800)._replace(
                published=[event._replace(time=NOW) for event in booked(2, None, None).published]
            ),
            id="a ride whose last event is young",
        ),
        pytest.param(
            booked(1, "requested", 800)._replace(
                published=[
                    event._replace(adopted=True) for event in booked(1, None, None).published
                ]
            ),
            id="another producer's events",
        ),
    ],
)
def test_a_booking_that_its_events_do_not_contradict_is_not_broken(given: Evidence) -> None:
    """Only the newest change of the ride itself counts."""
    assert saga_of(given).problems == {}


STUCK: Final = ASSIGNED._replace(
    published=[*ASSIGNED.published, *events("CarRideCompleted", "CarReleased")],
    items=[
        item(DISPATCH, events("CarRideAccepted", "CarRideCompleted"), "released"),
        item(PAYMENT, events("CarAssigned"), "authorized"),
    ],
    cars={},
)


@pytest.mark.parametrize(
    "excuse",
    [
        {"dead_letters": [IN_QUEUE._replace(fact="CarRideCompleted")]},
        {"deliveries": [Delivered(PAYMENT, observation.EXPIRED, "CarRideCompleted")]},
    ],
    ids=["dead-lettered", "expired"],
)
@pytest.mark.parametrize("money", [RESERVED, CAPTURED], ids=["reserved", "captured"])
def test_a_ride_whose_event_was_not_processed_waits_and_is_not_broken(
    excuse: Any, money: GatewayPayment
) -> None:
    """The money stays as it is until somebody redrives the event.

    A second capture is broken all the same.
    """
    saga = saga_of(STUCK._replace(payments=[money], **excuse))
    assert (saga.endings, saga.sound) == ({"waiting for redrive": 1}, True)
    assert "captured 2" in problems(STUCK._replace(payments=[TWO_CAPTURES], **excuse))


def test_a_ride_with_a_redriven_event_is_judged_after_its_outcome() -> None:
    """Its letter has left the queue, and its effect is on its way."""
    under_way = STUCK._replace(payments=[RESERVED], redriven={f"{PAYMENT}#CarRideCompleted": NOW})
    saga = saga_of(under_way._replace(grace=timedelta(minutes=15)))
    assert (saga.endings, saga.sound) == ({"open": 1}, True)
    assert problems(under_way._replace(at=NOW + timedelta(hours=1)))


@pytest.mark.parametrize(("hours", "overdue"), [(3, False), (5, True)])
def test_a_ride_that_has_needed_something_for_too_long_is_overdue(
    hours: int, overdue: bool
) -> None:
    """Any table may show it, also a booking that nobody accepts."""
    since = NOW - timedelta(hours=hours)
    at_payment = ASSIGNED._replace(
        items=[
            each._replace(open_since=since if each.consumer == PAYMENT else None)
            for each in ASSIGNED.items
        ]
    )
    for given in (at_payment, ASSIGNED._replace(bookings=[BookedRide(RIDE, 2, since, since)])):
        saga = saga_of(given)
        assert (RIDE in saga.overdue, saga.sound, RIDE in saga.to_text()) == (
            overdue,
            not overdue,
            overdue,
        )
        assert saga_of(given, overdue_after=timedelta(hours=6)).sound


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
    """Tables are kept for ever and the log is not.

    What must never happen is broken all the same.
    """
    acted = [
        each._replace(effects=(Effect("x", None, NOW - timedelta(hours=2)),))
        for each in CANCELLED.items
    ]
    given = CANCELLED._replace(items=acted, published=events("CarRideAccepted"))
    assert problems(given)
    assert saga_of(given._replace(**unjudged)).sound
    assert "2 times" in problems(
        given._replace(**unjudged, payments=[payment("refunded", refunds=2)])
    )


def test_the_copy_of_one_event_is_not_judged() -> None:
    """The rest of its ride never happened; what must never happen is broken all the same."""
    since = NOW - timedelta(hours=5)
    only_paid = ASSIGNED._replace(
        published=events("CarAssigned", "PaymentAuthorized"),
        items=[item(PAYMENT, events("CarAssigned"), "authorized", since)],
        cars={},
    )
    assert problems(only_paid)
    assert saga_of(only_paid._replace(copies={RIDE})).sound
    assert "charged 2 times" in problems(
        only_paid._replace(copies={RIDE}, payments=[CAPTURED, RESERVED])
    )


@pytest.mark.parametrize(
    "given",
    [
        at(1250),
        at(800, raise_refused=True),
    ],
    ids=["the price", "the raise was refused"],
)
def test_less_than_the_price_is_captured_only_if_the_gateway_refused_to_raise(
    given: Evidence,
) -> None:
    """Payment records that a raise was refused."""
    assert saga_of(given).sound


def test_a_ride_of_which_a_letter_is_hidden_waits_and_is_not_broken() -> None:
    """The hidden message may be its event; the ledger says that it cannot tell."""
    unheard = STUCK._replace(payments=[RESERVED], unread={"PaymentDlq": 1})
    assert saga_of(unheard).endings == {"waiting for redrive": 1}
    assert saga_of(unheard).sound
    assert "still reserved" in problems(unheard._replace(unread={"DispatchDlq": 1}))


def test_the_time_that_a_producer_states_does_not_take_a_ride_out_of_the_audit() -> None:
    """What the log has is judged, however old its producer says that it is."""
    broken = CANCELLED._replace(payments=[RESERVED], since=NOW - timedelta(days=14))
    long_ago = tuple(
        effect._replace(time=NOW - timedelta(days=400)) for effect in broken.items[1].effects
    )
    dated = broken._replace(items=[broken.items[0], broken.items[1]._replace(effects=long_ago)])
    assert AT_GATEWAY in problems(dated)


def test_cars_that_dispatch_cannot_find_are_named() -> None:
    """A fleet outside of the index of free cars serves nobody, though every ride ends well."""
    saga = saga_of(PAID._replace(unlisted_cars=["car_02"]))
    assert not saga.sound
    assert saga.wrong == ["1 free car outside of the index of free cars: run ./carride drive fleet"]
    assert "car_02" in saga.to_text()
