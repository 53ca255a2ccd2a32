"""The specification in `once.feature`, over each store."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final

import pytest
from pytest_bdd import given, parsers, scenarios, then, when

from carride_idempotency import Consumer, Operation, Policy
from carride_idempotency.clock import epoch_ms
from carride_idempotency.testing import Crash, DeadLetterBox, eventbridge_event, lambda_context
from tests.stores.backends import Backend, Opener, openers

__all__ = ["openers"]

scenarios("once.feature")

LEASE_OF_A_CRASH_S: Final = 1.0
"""A lease ends with its invocation, so an invocation of this length is soon taken over. A loaded
machine begins the work within it."""


class CardDeclinedError(Exception):
    """What goes wrong when a charge fails."""


@pytest.fixture(
    params=[
        "memory",
        "fake_dynamodb",
        "moto_dynamodb",
        "fake_valkey",
        pytest.param("local_dynamodb", marks=pytest.mark.peer),
        pytest.param("real_valkey", marks=pytest.mark.peer),
    ],
    autouse=True,
)
def backend(request: pytest.FixtureRequest, openers: Callable[[str], Opener]) -> Iterator[Backend]:
    """Each store in turn, empty."""
    with openers(request.param)() as opened:
        yield opened


class Orders:
    """A consumer that charges orders, the deliveries it gets, and what they leave behind."""

    def __init__(self, backend: Backend) -> None:
        self.store = backend.store
        self.charges: list[str] = []
        self.found: str | None = None
        """The status of the record that a second delivery met."""
        self.runs = 0
        self.requests = count(1)
        self.outcomes: list[str] = []
        self.receipts: list[str] = []
        self.dead_letters = DeadLetterBox()
        self.before_charge: Callable[[], object] = nothing
        """What happens in a run before it charges: an error, a crash, another delivery."""
        self.consumer = Consumer(
            "billing",
            backend.store,
            key="detail.orderID",
            dead_letters=self.dead_letters,
            policy=Policy(margin=0, clock_skew=0, reserve=0, busy="wait", warm_cache=0),
            region="eu-west-1",
        )
        self.handler = self.consumer.event_handler(self.charge)

    def deliver(
        self,
        *,
        amount: int = 20,
        age: timedelta = timedelta(),
        timeout_s: float = 30.0,
        request_id: str | None = None,
    ) -> None:
        """Deliver the order, in an invocation that lasts this long.

        Lambda's retries have one request id.
        """
        event = eventbridge_event({"orderID": "order-1", "data": {"amount": amount}})
        event["time"] = (datetime.now(UTC) - age).isoformat()
        delivery = request_id or f"request-{next(self.requests)}"
        context = lambda_context(request_id=delivery, timeout_s=timeout_s, clock=epoch_ms)
        self.outcomes.append(self.handler(event, context)["outcome"])

    def charge(self, _: object, operation: Operation) -> None:
        self.runs += 1
        self.before_charge()
        self.charges.append(operation.downstream_key)

    def status(self) -> str | None:
        """Return the status of the order's record in the store; None if there is none."""
        record = self.store.read("billing#order-1")
        return None if record is None else str(record.status)

    def write_receipt(self, order_id: str) -> str:
        self.receipts.append(f"receipt {len(self.receipts) + 1} of {order_id}")
        return self.receipts[-1]


def nothing() -> None:
    pass


def decline() -> None:
    raise CardDeclinedError


def die() -> None:
    raise Crash


@pytest.fixture
def orders(backend: Backend) -> Orders:
    return Orders(backend)


@given("the order was delivered")
@when("the order is delivered")
def deliver(orders: Orders) -> None:
    orders.deliver()


@given("a delivery of the order failed before the charge")
def fail_once(orders: Orders) -> None:
    orders.before_charge = decline
    with pytest.raises(CardDeclinedError):
        orders.deliver()
    orders.before_charge = nothing


@given("a delivery of the order crashed before the charge")
def crash_once(orders: Orders) -> None:
    orders.before_charge = die
    with pytest.raises(Crash):
        orders.deliver(timeout_s=LEASE_OF_A_CRASH_S, request_id="crashed")
    orders.before_charge = nothing


@given("every delivery of the order fails")
def fail_always(orders: Orders) -> None:
    orders.before_charge = decline


@given(parsers.parse("the order was delivered {number:d} times"))
@when(parsers.parse("the order is delivered {number:d} times"))
def deliver_often(orders: Orders, number: int) -> None:
    for _ in range(number):
        with suppress(CardDeclinedError):
            orders.deliver()


@given("the order is being processed")
def second_arrives_during_the_first(orders: Orders) -> None:
    def arrive() -> None:
        orders.before_charge = nothing
        orders.found = orders.status()
        orders.deliver()

    orders.before_charge = arrive


@when("a second delivery of the order arrives")
def process(orders: Orders) -> None:
    orders.deliver()


@given("a caller asked for a receipt", target_fixture="answers")
def ask(orders: Orders) -> list[str]:
    receipt = orders.consumer.function(key="order_id", name="receipt")(orders.write_receipt)
    return [receipt("order-1")]


@when("the caller asks again")
def ask_again(orders: Orders, answers: list[str]) -> None:
    answers += ask(orders)


@when("the crashed delivery comes again, and waits for the lease to end")
def retry_the_crash(orders: Orders) -> None:
    orders.deliver(request_id="crashed")


@when("the order is delivered with another amount")
def deliver_another_amount(orders: Orders) -> None:
    orders.deliver(amount=99)


@when(parsers.parse("an order of {days:d} days ago is delivered"))
def deliver_an_old_order(orders: Orders, days: int) -> None:
    orders.deliver(age=timedelta(days=days))


@when("the cause is mended, and an operator releases its key")
def release(orders: Orders) -> None:
    orders.before_charge = nothing
    assert orders.consumer.release("order-1")


@then(parsers.parse('the outcome is "{outcome}"'))
def the_outcome_is(orders: Orders, outcome: str) -> None:
    assert orders.outcomes[-1] == outcome


@then(parsers.parse('the second delivery is acknowledged as "{outcome}"'))
def the_second_is(orders: Orders, outcome: str) -> None:
    assert orders.outcomes == [outcome, "New"]


@given(parsers.parse('its record is "{status}"'))
@then(parsers.parse('its record is "{status}"'))
def the_record_is(orders: Orders, status: str) -> None:
    assert orders.status() == status


@then(parsers.parse('the second delivery found the record "{status}"'))
def the_second_found(orders: Orders, status: str) -> None:
    assert orders.found == status


@then("it has no record")
def there_is_no_record(orders: Orders) -> None:
    assert orders.status() is None


@then("both answers are the same receipt")
def the_answers_are_the_same(answers: list[str]) -> None:
    assert answers == ["receipt 1 of order-1"] * 2


@then("one receipt was written")
def one_receipt_was_written(orders: Orders) -> None:
    assert len(orders.receipts) == 1


@then("the order was charged once")
def charged_once(orders: Orders) -> None:
    assert len(orders.charges) == 1


@then("the order was not charged")
def not_charged(orders: Orders) -> None:
    assert orders.charges == []


@then(parsers.parse("it ran {number:d} times"))
def it_ran(orders: Orders, number: int) -> None:
    assert orders.runs == number


@then(parsers.parse('it is in the dead-letter queue once, because of "{reason}"'))
def dead_lettered_once(orders: Orders, reason: str) -> None:
    assert [letter.reason for letter in orders.dead_letters.letters] == [reason]
