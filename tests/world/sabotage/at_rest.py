"""What a saboteur changes when a story is over: each function plants one wrong thing, if it can."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from carride.history import EVENT_PREFIX
from carride.overdue import opened
from carride_idempotency.record import COMPLETED
from gateway_rules import Intent
from tests.world.sabotage.hand import (
    BOOKINGS,
    CARS,
    HISTORY,
    RECORDS,
    Hand,
    Item,
    entries,
    fact_of,
    held,
    lines,
)

_LONG_AGO: Final = timedelta(days=2)

# ── Money, at rest ────────────────────────────────────────────────────────────────────────────────


def second_charge(hand: Hand) -> None:
    item = hand.one(hand.paid())
    if item is not None:
        first = hand.charge(item["orderID"])
        hand.books["pi_planted"] = msgspec.structs.replace(first, id="pi_planted")
        hand.planted(item["orderID"], "was charged 2 times")


def second_capture(hand: Hand) -> None:
    item = hand.one(hand.paid())
    if item is not None:
        charge = hand.charge(item["orderID"])
        charge.captures = [*charge.captures, 0]
        hand.planted(item["orderID"], "its payment was captured 2 and refunded 0 times")


def captured_decline(hand: Hand) -> None:
    declined = [
        item
        for item in hand.items("PaymentTable", state="declined")
        if len(hand.charges(item["orderID"])) == 1
    ]
    item = hand.one(declined)
    if item is not None:
        charge = hand.charge(item["orderID"])
        _take(charge)
        hand.planted(item["orderID"], "but the gateway as captured")


def lost_payment(hand: Hand) -> None:
    item = hand.one(hand.paid())
    if item is not None:
        del hand.books[hand.charge(item["orderID"]).id]
        hand.planted(item["orderID"], "but the gateway as nothing")


def _take(charge: Intent) -> None:
    """Have a payment be captured, and not given back."""
    charge.status = "succeeded"
    charge.charge = "succeeded"
    charge.captures = [charge.amount]
    charge.refunds = []


def _captured(hand: Hand, item: Item, amount: int) -> None:
    """Have payment and gateway agree that an amount was captured."""
    charge = hand.charge(item["orderID"])
    charge.amount = amount
    charge.captures = [amount]
    hand.put("PaymentTable", item | {"amount": amount})


def too_much(hand: Hand) -> None:
    item = hand.one(hand.paid())
    if item is not None:
        amount = item["amount"] + 1
        _captured(hand, item, amount)
        hand.planted(item["orderID"], f"{amount} was captured, and its last price is")


def too_little(hand: Hand) -> None:
    item = hand.one([each for each in hand.paid() if each["amount"] > 1])
    if item is not None:
        amount = item["amount"] - 1
        _captured(hand, item, amount)
        hand.planted(item["orderID"], f"only {amount} was captured, and its last price is")


def captured_cancellation(hand: Hand) -> None:
    cancelled = {detail["subject"] for detail in hand.published("CarRideCancelled")}
    refunded = hand.items("PaymentTable", state="refunded")
    item = hand.one([each for each in refunded if each["orderID"] in cancelled])
    if item is not None:
        charge = hand.charge(item["orderID"])
        _take(charge)
        hand.put("PaymentTable", item | {"state": "captured"})
        hand.planted(item["orderID"], "CarRideCancelled was published, and its money was captured")


# ── States, at rest ───────────────────────────────────────────────────────────────────────────────


def assignment_went_backwards(hand: Hand) -> None:
    item = hand.one(hand.items("AssignmentTable", state="released"))
    if item is not None:
        hand.put("AssignmentTable", item | {"state": "assigned"})
        hand.planted(item["orderID"], "dispatch has it as assigned, but no car has it")


def booking_that_is_behind(hand: Hand) -> None:
    item = hand.one([each for each in hand.items(BOOKINGS) if each["version"] > 1])
    if item is not None:
        hand.put(BOOKINGS, item | {"version": item["version"] - 1})
        hand.planted(item["orderID"], "its booking has version")


def booking_of_another_status(hand: Hand) -> None:
    item = hand.one(hand.items(BOOKINGS, status="completed"))
    if item is not None:
        hand.put(BOOKINGS, item | {"status": "cancelled"})
        hand.planted(item["orderID"], "its booking has the status")


def payment_that_is_open_again(hand: Hand) -> None:
    """Have a payment wait for what will never come."""
    ended = [each for each in hand.items("PaymentTable") if "openSince" not in each]
    item = hand.one(ended)
    if item is not None:
        since = datetime.now(UTC) - _LONG_AGO
        hand.put("PaymentTable", item | opened(item["orderID"], since))
        hand.planted(item["orderID"], "overdue")


# ── Cars, at rest ─────────────────────────────────────────────────────────────────────────────────


def car_of_an_ended_ride(hand: Hand) -> None:
    item = hand.one(hand.items("AssignmentTable", state="released"))
    car = hand.one(hand.items(CARS))
    if item is not None and car is not None:
        hand.put(CARS, held(car, item["orderID"]))
        hand.planted(item["orderID"], f"it still has {car['carID']}")


def two_cars(hand: Hand) -> None:
    item = hand.one(hand.items("AssignmentTable", state="released"))
    cars = hand.items(CARS)
    if item is not None and len(cars) > 1:
        for car in cars[:2]:
            hand.put(CARS, held(car, item["orderID"]))
        hand.planted(item["orderID"], "has 2 cars")


def car_outside_of_the_index(hand: Hand) -> None:
    car = hand.one(hand.items(CARS))
    if car is not None:
        hand.put(CARS, {name: value for name, value in car.items() if name != "freeShard"})
        hand.planted(car["carID"], "outside of the index")


# ── Effects, at rest ──────────────────────────────────────────────────────────────────────────────


def counted_twice(hand: Hand) -> None:
    item = hand.one(hand.items("PaymentTable"))
    if item is not None:
        hand.put("PaymentTable", item | {"effects": item["effects"] + 1})
        hand.planted(item["orderID"], "payment: doubled")


def entry_of_another_ride(hand: Hand) -> None:
    """Move an entry, with its count, from one ride's item to another's."""
    items = [each for each in hand.items("AssignmentTable") if entries(each)]
    item = hand.one(items)
    other = hand.one([each for each in items if each is not item])
    if item is not None and other is not None:
        name = hand.one(entries(item)) or ""
        left = {key: value for key, value in item.items() if key != name}
        hand.put("AssignmentTable", left | {"effects": item["effects"] - 1})
        hand.put("AssignmentTable", other | {name: item[name], "effects": other["effects"] + 1})
        hand.planted(name.removeprefix(EVENT_PREFIX), "dispatch: lost")


def another_payload(hand: Hand) -> None:
    """Have a record say that another payload took effect under its key."""
    completed = [
        each
        for each in hand.items(RECORDS, status=COMPLETED)
        if each["idempotencyKey"].startswith(("payment#", "dispatch#")) and "fingerprint" in each
    ]
    item = hand.one(completed)
    if item is not None:
        version, _, hashed = str(item["fingerprint"]).partition(":")
        hand.put(RECORDS, item | {"fingerprint": f"{version}:{hashed[::-1]}"})
        consumer, _, fact = item["idempotencyKey"].partition("#")
        hand.planted(fact, f"{consumer}: lost")


# ── The ride history, at rest ─────────────────────────────────────────────────────────────────────


def line_about_nothing(hand: Hand) -> None:
    record = hand.one(lines(hand))
    if record is not None:
        fact = f"{fact_of(record)[:-1]}x"
        entry = record["entry"] | {"sequence": record["entry"]["sequence"] + 50}
        hand.put(HISTORY, record | {"idempotencyKey": f"ride-history#{fact}", "entry": entry})
        hand.planted(fact, "ride-history: effect of unpublished")
