"""Payment on an in-process DynamoDB and gateway: one charge a ride, whatever goes wrong between the two."""

import functools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from moto import mock_aws
from msgspec.structs import replace

import carride.consumer
import payment
from carride.facts import Fact
from gateway import GatewayAnswerError, GatewayUnavailableError
from idempotency import BusyError, Consumer
from idempotency.testing import Invocation, ManualClock
from local import faults
from local.simulated_gateway import Books, Reply, Strict, Troubles
from payment import Settings, make_handler
from tests.functions.gateways import FakeGateway, KilledError
from tests.functions.saga import Life, client, create_table, event, items, outbox

RIDE = Life()


class World(NamedTuple):
    """A handler, the gateway that it asks, and the tables that it writes."""

    handler: Any
    gateway: FakeGateway
    dynamodb: Any
    sqs: Any
    settings: Settings
    clock: ManualClock

    def deliver(self, fact: Fact, delivery: str = "", **attributes: Any) -> str:
        """Deliver a fact and return the outcome. A delivery is its event's own unless it is given an id."""
        message = event(fact, **attributes) | {"time": "2027-01-15T08:00:00Z"}
        invocation = Invocation(self.clock, request_id=delivery or message["id"], timeout_s=180)
        outcome: str = self.handler(message, invocation)["outcome"]
        return outcome

    def payment(self) -> dict[str, Any]:
        """Return the payment as it is in the table."""
        (found,) = items(self.dynamodb, "payments")
        return found

    def emitted(self) -> list[str]:
        """Return the types of the events in the outbox."""
        return [item["type"] for item in outbox(self.dynamodb)]

    def charge(self) -> dict[str, Any]:
        """Return the one payment that the gateway has."""
        (found,) = self.gateway.ledger()
        return found

    def quarantine(self, fact: Fact) -> None:
        """Deliver a fact as often as it is attempted, while the gateway gives no answer."""
        for _ in range(2):
            with pytest.raises(GatewayUnavailableError):
                self.deliver(fact)
        assert self.deliver(fact) == "DeadLettered"

    def forget(self) -> None:
        """Forget every delivery, so that the next ones begin at attempt 1, as those of a released key do."""
        for item in items(self.dynamodb, "idempotency"):
            key = {"idempotencyKey": {"S": item["idempotencyKey"]}}
            self.dynamodb.delete_item(TableName="idempotency", Key=key)

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return what lies in the dead-letter queue."""
        answer = self.sqs.receive_message(QueueUrl=self.settings.dead_letter_queue_url, MaxNumberOfMessages=10)
        return [json.loads(message["Body"]) for message in answer.get("Messages", [])]


@pytest.fixture(params=[0.0, 1.0], ids=["keys are kept", "keys are forgotten"])
def gateway(request: pytest.FixtureRequest) -> FakeGateway:
    """A gateway that declines nobody; what it was asked it remembers by its keys, or only by its payments."""
    return FakeGateway(forgotten=request.param)


@pytest.fixture
def world(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Payment over empty tables, at a time that the tests move."""
    clock = ManualClock()
    timed = functools.partial(Consumer, clock=clock, sleep=clock.sleep, jitter=lambda: 0.5, region="us-east-1")
    monkeypatch.setattr(carride.consumer, "Consumer", timed)
    faults.install(monkeypatch.setattr)
    with mock_aws():
        dynamodb, sqs = client(), boto3.client("sqs")
        create_table(dynamodb, "idempotency", "idempotencyKey")
        create_table(dynamodb, "payments", "orderID")
        create_table(dynamodb, "outbox", "id")
        settings = Settings(
            idempotency_store="dynamodb:idempotency",
            payment_table="payments",
            outbox_table="outbox",
            payment_gateway_url="http://127.0.0.1:9",
            dead_letter_queue_url=sqs.create_queue(QueueName="PaymentDlq")["QueueUrl"],
            aws_region="us-east-1",
        )
        yield World(make_handler(settings, gateway), gateway, dynamodb, sqs, settings, clock)


def test_a_ride_is_paid(world: World) -> None:
    """Money is reserved when there is a car and taken when the ride is over; table, gateway and events agree."""
    assert world.deliver(RIDE.assigned) == "New"
    assert (world.payment()["state"], world.charge()["status"], world.emitted()) == (
        "authorized",
        "authorized",
        ["PaymentAuthorized"],
    )
    assert world.deliver(RIDE.completed) == "New"
    assert (world.payment()["state"], world.charge()["captures"]) == ("captured", [1250])
    assert world.emitted() == ["PaymentAuthorized", "PaymentCaptured"]
    assert {item["data"]["paymentID"] for item in outbox(world.dynamodb)} == {world.charge()["id"]}


def test_a_killed_run_is_over_before_lambda_tries_again() -> None:
    """The lease is the one that is set, and as deployed it ends within the minute until Lambda's first retry."""
    assert payment.policy(3.0).lease == 3.0
    deployed = payment.policy(30.0)
    assert deployed.lease + deployed.clock_skew < 60


def test_a_run_that_was_taken_over_changes_nothing(world: World) -> None:
    """It comes back after its lease was over and another run has completed: one charge, one event told."""

    def sleep_through_the_lease() -> None:
        world.clock.advance(60)
        world.deliver(RIDE.assigned, "retry")

    world.gateway.then(sleep_through_the_lease)
    assert world.deliver(RIDE.assigned, "first") == "LostLease"
    assert (len(world.gateway.ledger()), world.emitted(), world.payment()["effects"]) == (1, ["PaymentAuthorized"], 1)


def test_the_retry_of_a_killed_run_waits_for_its_lease(world: World) -> None:
    """A retry that comes too early waits a little, and is not acknowledged: it is all that stands for the event."""
    world.gateway.then_die()
    with pytest.raises(KilledError):
        world.deliver(RIDE.assigned)
    with pytest.raises(BusyError):
        world.deliver(RIDE.assigned)
    world.clock.advance(15)
    assert world.deliver(RIDE.assigned) == "Takeover"


def test_poison_is_quarantined_and_its_charge_can_be_found(world: World) -> None:
    """After three attempts the event is in the dead-letter queue, and the gateway has one payment, not three."""
    for _ in range(2):
        with pytest.raises(faults.SimulatedFaultError):
            world.deliver(RIDE.assigned, extensions={"simulatedfault": "poison"})
    assert world.deliver(RIDE.assigned, extensions={"simulatedfault": "poison"}) == "DeadLettered"
    (letter,) = world.dead_letters()
    assert (letter["reason"], letter["attempt"], letter["consumer"]) == ("QUARANTINED", 3, "payment")
    assert world.charge()["status"] == "authorized"
    assert world.deliver(RIDE.assigned, "again", extensions={"simulatedfault": "poison"}) == "Quarantined"
    assert world.gateway.asked.count("payments") == 1


def test_facts_of_others_cost_no_request(world: World) -> None:
    """An event that the rule should not have handed over asks the gateway for nothing."""
    world.deliver(RIDE.created)
    world.deliver(RIDE.accepted)
    assert (world.gateway.asked, world.emitted(), world.payment()["state"]) == ([], [], "unknown")


@pytest.mark.parametrize("trouble", ["declined", "refused"])
def test_a_refusal_becomes_an_event_whatever_the_gateway_says_with_it(world: World, trouble: str) -> None:
    """A final refusal declines the ride at the first attempt, and a long text breaks no event."""
    world.gateway.books = Books(Troubles(**{trouble: 1.0}), strict=Strict())
    assert world.deliver(RIDE.assigned) == "New"
    (item,) = outbox(world.dynamodb)
    reason = item["data"]["reason"]
    assert (item["type"], reason.isprintable()) == ("PaymentDeclined", True)
    assert trouble == "declined" or reason == "the gateway refused with 422 expired_card"
    assert (world.deliver(RIDE.completed), world.payment()["state"]) == ("New", "declined")


@pytest.mark.parametrize("reserved", [True, False], ids=["authorized", "not heard of a car"])
def test_what_the_gateway_has_captured_stays_though_nobody_else_knows_of_the_end(
    world: World, *, reserved: bool
) -> None:
    """The completion was given up after the money was taken, and the overdue ride is known as never ended."""
    poison = {"simulatedfault": "poison"}
    first, last = (RIDE.assigned, RIDE.completed) if reserved else (RIDE.completed, RIDE.assigned)
    world.deliver(first)
    for _ in range(2):
        with pytest.raises(faults.SimulatedFaultError):
            world.deliver(last, extensions=poison)
    assert world.deliver(last, extensions=poison) == "DeadLettered"
    assert world.deliver(RIDE.overdue) == "New"
    assert (world.payment()["state"], world.charge()["captures"], world.charge()["refunds"]) == ("captured", [1250], [])
    assert world.emitted() == ["PaymentAuthorized", "PaymentCaptured"]
    assert "openSince" not in world.payment()


@pytest.mark.parametrize("price", [1, 1250, 2000, 10_000_000])
@pytest.mark.parametrize("capped", [0.0, 1.0], ids=["raised", "not raised"])
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "completed first"])
def test_a_price_that_has_changed_is_captured_from_one_reservation(
    world: World, price: int, *, capped: float, in_order: bool
) -> None:
    """What is reserved is raised first; where the gateway refuses, what is reserved is taken. Nothing is above it."""
    world.gateway.books = Books(Troubles(capped=capped), strict=Strict())
    world.deliver(RIDE.assigned if in_order else Life(price=price).completed)
    world.deliver(Life(price=price).completed if in_order else RIDE.assigned)
    taken = min(price, 1250) if capped and in_order else price
    assert world.charge()["captures"] == [taken]
    assert (world.payment()["amount"], world.emitted()) == (taken, ["PaymentAuthorized", "PaymentCaptured"])


def test_a_refused_capture_is_declined_and_leaves_nothing_reserved(world: World) -> None:
    """An event of another producer may hold a price that the gateway does not take, such as none."""
    world.gateway.books = Books(strict=Strict())
    world.deliver(RIDE.assigned)
    assert world.deliver(replace(RIDE.completed, price=0)) == "New"
    assert (world.charge()["status"], world.payment()["state"]) == ("refunded", "declined")
    assert world.emitted() == ["PaymentAuthorized", "PaymentDeclined"]


@pytest.mark.parametrize("last", [RIDE.assigned, RIDE.cancelled], ids=["the car", "the cancellation"])
@pytest.mark.parametrize("early", [True, False], ids=["cancelled before it is reserved", "cancelled while it pends"])
def test_a_reservation_that_comes_after_every_attempt_is_given_back(world: World, last: Fact, *, early: bool) -> None:
    """The duty to undo stands in the payment, and whichever event is redriven fulfils it."""
    time = [0.0]
    world.gateway.books = Books(Troubles(pending=1.0), strict=Strict(pending_s=60), clock=lambda: time[0])
    if early:
        world.gateway.then(lambda: world.quarantine(RIDE.cancelled))
        world.quarantine(RIDE.assigned)
    else:
        world.quarantine(RIDE.assigned)
        world.quarantine(RIDE.cancelled)
    assert (world.payment()["state"], world.charge()["status"], world.emitted()) == ("undo due", "pending", [])
    time[0] = 60.0
    world.forget()
    assert world.deliver(last) == "New"
    assert (world.payment()["state"], world.charge()["status"], world.emitted()) == (
        "refunded",
        "refunded",
        ["PaymentRefunded"],
    )


def test_a_reservation_is_given_back_though_its_cancellation_found_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation was over before the gateway took the request in, and the request's last attempt fails."""
    world.gateway.books = Books(Troubles(pending=1.0), strict=Strict(pending_s=60), clock=lambda: 0.0)
    asked = iter([True])
    find = world.gateway.books.look_up

    def overtake(path: str, query: Any) -> Any:
        answer = find(path, query)
        if next(asked, False):
            world.deliver(RIDE.cancelled)
            assert world.payment()["state"] == "cancelled"
        return answer

    monkeypatch.setattr(world.gateway.books, "look_up", overtake)
    with pytest.raises(GatewayUnavailableError):
        world.deliver(RIDE.assigned)
    assert (world.payment()["state"], world.charge()["status"]) == ("undo due", "pending")


def test_a_cancellation_that_the_gateway_does_not_hear_is_a_duty(world: World) -> None:
    """The money stays reserved for no longer than until any further event of the ride comes."""
    world.deliver(RIDE.assigned)
    world.gateway.away = True
    world.quarantine(RIDE.cancelled)
    world.gateway.away = False
    world.deliver(RIDE.no_car)
    assert (world.charge()["status"], world.payment()["state"]) == ("refunded", "refunded")


def test_a_duty_that_came_meanwhile_is_not_overwritten(world: World) -> None:
    """The cancellation was given up while the money was taken: the run that took it gives it back."""

    def call_off() -> None:
        world.gateway.away = True
        world.quarantine(RIDE.cancelled)
        world.gateway.away = False

    world.deliver(RIDE.completed)
    world.gateway.then(call_off)
    assert world.deliver(RIDE.assigned) == "New"
    assert (world.charge()["refunds"], world.payment()["state"]) == ([1250], "refunded")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [({"id": "p" * 65}, "has no id"), ({"currency": "USD"}, "another currency"), ({"currency": "$"}, "no currency")],
)
def test_a_payment_that_no_event_can_hold_is_never_committed(
    world: World, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], problem: str
) -> None:
    """The attempt fails, and says which field it is without its value."""
    payment = {"id": "pay_1", "status": "authorized", "amount": 1250, "currency": "EUR"} | wrong
    monkeypatch.setattr(world.gateway.books, "finish", lambda _: Reply(201, payment))
    with pytest.raises(GatewayAnswerError, match=problem) as caught:
        world.deliver(RIDE.assigned)
    assert next(iter(wrong.values())) not in str(caught.value)
    assert world.emitted() == []


def test_the_gateway_hears_the_currency(world: World) -> None:
    """The reservation is in the currency of the event."""
    world.deliver(replace(RIDE.assigned, currency="CHF"))
    assert world.charge()["currency"] == "CHF"
