"""The sentences for what the audit finds. No I/O."""

from collections.abc import Mapping
from typing import Final

from ops.audit.problems import Broken, Need, Overdue, Problem
from ops.sentences import says

__all__ = ["says"]

_BROKEN: Final[Mapping[Broken, str]] = {
    Broken.MANY_CARS: "has {number} cars: {cars}",
    Broken.PUBLISHED_AGAIN: "{types} was published {times} times",
    Broken.CHARGED_AGAIN: "was charged {times} times",
    Broken.CAPTURED_AGAIN: "its payment was captured {captures} and refunded {refunds} times",
    Broken.BOOKING_VERSION: "its booking has version {has}, and version {stated} was published",
    Broken.BOOKING_STATUS: "its booking has the status {has}, and {stated} was published",
    Broken.BOOKING_PRICE: "its booking has the price {has}, and {stated} was published",
    Broken.OTHER_CARS: "{consumer} has it as {state}, but {holders} it",
    Broken.OTHER_PAYMENTS: "{consumer} has it as {known}, but the gateway as {payments}",
    Broken.MONEY_RETURNED: "{consumer} has it as {state}, but the gateway has returned the money",
    Broken.CANCELLED_AND_CAPTURED: "{types} was published, and its money was captured",
    Broken.CAPTURED_TOO_MUCH: "{has} was captured, and its last price is {stated}",
    Broken.CAPTURED_TOO_LITTLE: "only {has} was captured, and its last price is {stated}",
    Broken.OTHER_EVENTS: "{consumer} has it as {state}, but {types} was {often}",
    Broken.CAR_KEPT: "{types} was published, and it still has {cars}",
    Broken.MONEY_RESERVED: "{types} was published, and its money is still reserved",
    Broken.DRIVEN_UNPAID: "it was driven, and its payment is {state}",
}


@says.register
def _problem(problem: Problem) -> str:
    cars = ", ".join(problem.cars)
    verb = "have" if len(problem.cars) > 1 else "has"
    there = [f"{each.status} {each.amount}" for each in problem.payments]
    state = problem.state or "unknown"
    words = {
        "captures": sum(each.captures for each in problem.payments),
        "cars": cars,
        "consumer": problem.consumer,
        "has": problem.has,
        "holders": f"{cars or 'no car'} {verb}",
        "known": state if problem.has is None else f"{state} {problem.has}",
        "number": len(problem.cars),
        "often": _often(problem.times),
        "payments": ", ".join(there) or "nothing",
        "refunds": sum(each.refunds for each in problem.payments),
        "state": state,
        "stated": problem.stated,
        "times": problem.times,
        "types": ", ".join(problem.types),
    }
    return _BROKEN[problem.kind].format(**words)


def _often(times: int | None) -> str:
    """Return how often an event was published, in words."""
    if not times:
        return "never published"
    return "published once" if times == 1 else f"published {times} times"


@says.register
def _need(need: Need) -> str:
    if need.consumer is None:
        return "it is booked"
    return f"{need.consumer} has it as {need.state}"


@says.register
def _overdue(overdue: Overdue) -> str:
    return f"since {overdue.since:%Y-%m-%d %H:%M:%S %Z}: {'; '.join(map(says, overdue.needs))}"
