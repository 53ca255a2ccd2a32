"""How rides end, and what it looks like when cars, charges and events do not agree."""

import json
from typing import Any

import pytest

from ops.saga import DISPATCH, PAYMENT, Charge, Ending, Evidence, Fact, Item, Saga, check


def facts(*types: str) -> list[Fact]:
    """Return facts of one ride, each with its type as its id."""
    return [Fact("order_01", name, name) for name in types]


def item(told: list[Fact], state: str, detail: str | int | None = None) -> Item:
    """Return a ride in a consumer's table, which has acted on everything."""
    return Item(state, frozenset(fact.id for fact in told), detail)


def evidence(told: list[Fact], dispatch: Item | None, payment: Item | None, **changes: Any) -> Evidence:
    """Return the evidence of one ride."""
    known = Evidence(
        facts=told,
        items={
            DISPATCH: {} if dispatch is None else {"order_01": dispatch},
            PAYMENT: {} if payment is None else {"order_01": payment},
        },
        excused={DISPATCH: frozenset(), PAYMENT: frozenset()},
        cars={"car_01": None, "car_02": None},
        charges=[],
    )
    return known._replace(**changes)


def paid() -> Evidence:
    """Return the evidence of a ride that was driven and paid."""
    told = facts(
        "CarRideCreated",
        "CarRideAccepted",
        "CarAssigned",
        "PaymentAuthorized",
        "CarRideCompleted",
        "CarReleased",
        "PaymentCaptured",
    )
    return evidence(
        told,
        item(told, "released", "car_01"),
        item(told, "captured", 1250),
        charges=[Charge("order_01", "captured", 1250, 1, 0)],
    )


def cancelled() -> Evidence:
    """Return the evidence of a ride that had a car and money reserved before it was called off."""
    told = facts(
        "CarRideAccepted", "CarAssigned", "PaymentAuthorized", "CarRideCancelled", "CarReleased", "PaymentRefunded"
    )
    return evidence(
        told,
        item(told, "released", "car_01"),
        item(told, "refunded", 1250),
        charges=[Charge("order_01", "refunded", 1250, 0, 1)],
    )


def declined() -> Evidence:
    """Return the evidence of a ride that could not be paid for."""
    told = facts("CarRideAccepted", "CarAssigned", "PaymentDeclined", "CarReleased", "CarRideCompleted")
    return evidence(
        told,
        item(told, "released", "car_01"),
        item(told, "declined", 1250),
        charges=[Charge("order_01", "declined", 1250, 0, 0)],
    )


def unserved() -> Evidence:
    """Return the evidence of a ride for which there was no car."""
    told = facts("CarRideAccepted", "NoCarAvailable")
    return evidence(told, item(told, "unserved"), item(told, "cancelled"))


def assigned() -> Evidence:
    """Return the evidence of a ride that is under way."""
    told = facts("CarRideAccepted", "CarAssigned", "PaymentAuthorized")
    return evidence(
        told,
        item(told, "assigned", "car_01"),
        item(told, "authorized", 1250),
        cars={"car_01": "order_01"},
        charges=[Charge("order_01", "authorized", 1250, 0, 0)],
    )


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        (paid(), Ending.PAID),
        (cancelled(), Ending.CANCELLED),
        (declined(), Ending.DECLINED),
        (unserved(), Ending.UNSERVED),
        (assigned(), Ending.OPEN),
        (evidence(facts("CarRideCreated"), None, None), Ending.OPEN),
    ],
    ids=lambda value: value.value if isinstance(value, Ending) else "",
)
def test_each_way_in_which_a_ride_can_end_is_recognised(given: Evidence, ending: Ending) -> None:
    """Cars, charges and events agree, and the ride is where they say."""
    saga = check(given)
    assert saga.problems == {}
    assert saga.endings == {ending.value: 1}
    assert saga.sound


def broken(given: Evidence) -> Saga:
    """Return the saga of a ride that has to be broken."""
    saga = check(given)
    assert saga.endings == {"broken": 1}
    assert not saga.sound
    return saga


def said(given: Evidence) -> str:
    """Return everything that is wrong with the ride."""
    return "; ".join(broken(given).problems["order_01"])


def test_a_second_charge_shows() -> None:
    """The gateway has two payments for one ride."""
    second = [*paid().charges, Charge("order_01", "authorized", 1250, 0, 0)]
    assert "charged 2 times" in said(paid()._replace(charges=second))


def test_a_second_capture_or_refund_shows() -> None:
    """The gateway took or returned the money of one payment twice."""
    assert "captured 2" in said(paid()._replace(charges=[Charge("order_01", "captured", 1250, 2, 0)]))
    assert "refunded 2" in said(cancelled()._replace(charges=[Charge("order_01", "refunded", 1250, 0, 2)]))


def test_a_second_car_shows() -> None:
    """Two cars say that they have the ride."""
    assert "has 2 cars" in said(assigned()._replace(cars={"car_01": "order_01", "car_02": "order_01"}))


def test_a_car_that_another_ride_has_shows() -> None:
    """Dispatch says that the ride has a car, and the car does not."""
    assert "the cars that have it are []" in said(assigned()._replace(cars={"car_01": None}))


def test_a_car_that_was_not_given_back_shows() -> None:
    """The ride is over and still has it."""
    assert "car_01" in said(paid()._replace(cars={"car_01": "order_01"}))


def test_a_refund_that_is_in_one_book_only_shows() -> None:
    """Every refund that was told is one of the gateway's, and the other way round."""
    untold = cancelled()._replace(facts=[fact for fact in cancelled().facts if fact.type != "PaymentRefunded"])
    assert "PaymentRefunded was told 0 times" in said(untold)
    unmade = cancelled()._replace(charges=[Charge("order_01", "authorized", 1250, 0, 0)])
    assert "but the gateway as [('authorized', 1250)]" in said(unmade)


def test_another_amount_shows() -> None:
    """The gateway took more than the table says."""
    assert "1300" in said(paid()._replace(charges=[Charge("order_01", "captured", 1300, 1, 0)]))


def test_an_event_that_never_left_the_outbox_shows() -> None:
    """The table says that the car was assigned, and nobody was told."""
    silent = assigned()._replace(facts=[fact for fact in assigned().facts if fact.type != "CarAssigned"])
    assert "CarAssigned was told 0 times" in said(silent)


def test_a_fact_that_was_told_twice_shows() -> None:
    """Two different events of one type about one ride are one too many."""
    twice = [*assigned().facts, Fact("order_01", "CarAssigned", "another")]
    assert "CarAssigned was told 2 times" in said(assigned()._replace(facts=twice))


def test_money_that_stays_reserved_shows() -> None:
    """The ride was called off, payment has heard of it, and the money is not released."""
    told = [*assigned().facts, *facts("CarRideCancelled", "CarReleased")]
    given = evidence(
        told,
        item(told, "released", "car_01"),
        item(told, "authorized", 1250),
        charges=assigned().charges,
    )
    assert "its money is still reserved" in said(given)


def test_a_ride_that_was_driven_and_never_paid_shows() -> None:
    """It had a car until the end, and nothing was captured or declined."""
    told = facts("CarRideAccepted", "CarAssigned", "CarRideCompleted", "CarReleased")
    given = evidence(told, item(told, "released", "car_01"), item(told, "completed", 1250))
    assert "its payment is completed" in said(given)


def test_poison_holds_a_ride_back_and_breaks_nothing() -> None:
    """The completion lies in payment's dead-letter queue: the money is reserved or captured until somebody looks."""
    told = [*assigned().facts, *facts("CarRideCompleted", "CarReleased")]
    stuck = Item("authorized", frozenset({"CarAssigned"}), 1250)
    for status, captures in (("authorized", 0), ("captured", 1)):
        given = evidence(
            told,
            item(told, "released", "car_01"),
            stuck,
            excused={DISPATCH: frozenset(), PAYMENT: frozenset({"CarRideCompleted"})},
            charges=[Charge("order_01", status, 1250, captures, 0)],
        )
        saga = check(given)
        assert saga.endings == {"held back": 1}
        assert saga.sound


def test_poison_is_no_excuse_for_a_second_charge() -> None:
    """What may never be is broken whatever else has happened to the ride."""
    given = paid()._replace(
        excused={DISPATCH: frozenset(), PAYMENT: frozenset({"CarRideCompleted"})},
        items={**paid().items, PAYMENT: {"order_01": Item("authorized", frozenset({"CarAssigned"}), 1250)}},
        charges=[Charge("order_01", "captured", 1250, 2, 0)],
    )
    assert "captured 2" in said(given)


def test_the_json_and_the_table_tell_the_same() -> None:
    """Machines and people read the same counts, and which ride is broken."""
    saga = broken(paid()._replace(charges=[Charge("order_01", "captured", 1250, 2, 0)]))
    document = json.loads(json.dumps(saga.to_json()))
    assert (document["sound"], document["captured"], document["endings"]) == (False, 1, {"broken": 1})
    assert "order_01" in saga.to_text()
    assert "CarReleased" in saga.to_text()
