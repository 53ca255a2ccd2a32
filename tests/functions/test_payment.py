"""Payment on the tables and the gateway of this process.

One charge a ride, whatever goes wrong between the two.
"""

import json
from itertools import permutations
from typing import Any, cast

import pytest
from msgspec.structs import replace

import payments
from carride.facts import Fact, PaymentDeclined
from gateway import GatewayUnavailableError, NoGatewayError
from gateway_connection import HttpResponse
from local import faults
from local.simulated_gateway import Books, Troubles
from stripe_gateway import StripeGateway
from tests.functions.gateways import FakeGateway, send
from tests.functions.world import World
from tests.kit.rides import Life

RIDE = Life()
ATTEMPTS = payments.payment_policy(3.0).max_attempts


class Payment(World):
    """The functions, of which payment gets events."""

    def send(self, fact: Fact, delivery: str = "", **attributes: Any) -> str:
        """Deliver a fact to payment, and return the outcome."""
        return self.deliver("payment", self.envelope(fact, **attributes), delivery=delivery)

    def charge(self) -> dict[str, Any]:
        """Return the one payment that the gateway has."""
        (found,) = self.gateway.ledger()
        return found

    def settled(self) -> tuple[object, str, list[str]]:
        """Return how the payment stands in the table and at the gateway, and what was emitted."""
        return self.state("payments"), self.charge()["status"], self.emitted()

    def quarantine(self, fact: Fact) -> None:
        """Deliver a fact as often as it is attempted, while the gateway gives no answer."""
        for _ in range(ATTEMPTS - 1):
            with pytest.raises(GatewayUnavailableError):
                self.send(fact)
        assert self.send(fact) == "DeadLettered"


@pytest.fixture(params=[0.0, 1.0], ids=["keys are kept", "keys are forgotten"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Payment:
    """Payment with injected faults, and a gateway that may forget its keys, not its payments."""
    faults.install(monkeypatch.setattr)
    return Payment(FakeGateway(forgotten=request.param))


def test_a_ride_is_paid(world: Payment) -> None:
    """Money is reserved when there is a car and taken when the ride is over.

    Table, gateway and events agree.
    """
    assert world.send(replace(RIDE.assigned, currency="CHF")) == "New"
    assert world.settled() == ("authorized", "authorized", ["PaymentAuthorized"])
    assert world.charge()["currency"] == "CHF"
    assert world.send(RIDE.completed) == "New"
    assert world.settled() == ("captured", "captured", ["PaymentAuthorized", "PaymentCaptured"])
    assert {getattr(event.data, "payment_id", None) for event in world.outbox()} == {
        world.charge()["id"]
    }


@pytest.mark.parametrize("price", [500, 2000])
@pytest.mark.parametrize("fact", [RIDE.completed, RIDE.assigned], ids=["capture", "reserve"])
def test_two_events_that_ask_the_gateway_at_once_charge_once(fact: Fact, price: int) -> None:
    """The gateway knows a ride and its payment by the key, whatever the event and amount."""
    world = Payment()
    world.send(*([RIDE.assigned] if fact is RIDE.completed else [RIDE.accepted]))
    overdue = replace(RIDE.overdue_driven, price=price)

    def overtaken(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if method == "POST":
            world.gateway.sent = world.gateway.answer
            world.send(overdue)
        return world.gateway.answer(method, path, key, content)

    world.gateway.sent = overtaken
    world.send(fact)
    assert (world.charge()["status"], len(world.charge()["captures"])) == ("captured", 1)
    assert world.state("payments") == "captured"


def test_a_killed_run_is_over_before_lambda_tries_again() -> None:
    """The lease is as set; as deployed, it ends within the minute until Lambda's first retry."""
    assert payments.payment_policy(3.0).lease == 3.0
    deployed = payments.payment_policy(30.0)
    assert deployed.lease + deployed.clock_skew < 60


def test_without_a_gateway_only_what_needs_one_fails() -> None:
    """The event is attempted again and dead-lettered with what to set.

    No event of the ride is lost for the others.
    """
    world = Payment(cast("FakeGateway", StripeGateway("", clock=lambda: 0)))
    assert world.send(RIDE.accepted) == "New"
    for _ in range(ATTEMPTS - 1):
        with pytest.raises(NoGatewayError):
            world.send(RIDE.assigned)
    assert world.send(RIDE.assigned) == "DeadLettered"
    (letter,) = world.given_up()
    assert "PaymentGatewayUrl" in letter.message


def test_facts_of_others_cost_no_request(world: Payment) -> None:
    """An event that the rule should not have passed on asks the gateway for nothing."""
    world.send(RIDE.created)
    world.send(RIDE.accepted)
    assert (world.gateway.asked, world.emitted(), world.state("payments")) == ([], [], "unknown")


@pytest.mark.parametrize("trouble", ["declined", "refused", "unknown", "asked"])
def test_a_refusal_becomes_an_event_at_the_first_attempt(
    world: Payment, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The event has the reason, and the ride is over for payment.

    What could not even be prepared is counted: a wrong setting may decline every ride.
    """
    world.gateway.books = Books(Troubles(**{trouble: 1.0}))
    assert world.send(RIDE.assigned) == "New"
    (event,) = world.outbox()
    assert isinstance(event.data, PaymentDeclined)
    assert event.data.reason != "declined"
    is_counted = '"DeclinedByRequest":1' in capsys.readouterr().out
    assert is_counted == (trouble in {"refused", "unknown"})
    assert (world.send(RIDE.completed), world.state("payments")) == ("New", "declined")


@pytest.mark.parametrize("reserved", [True, False], ids=["authorized", "not heard of a car"])
def test_what_the_gateway_has_captured_stays_though_nobody_else_knows_of_the_end(
    world: Payment, *, reserved: bool
) -> None:
    """The last event was given up after the money was taken: the ride counts as never ended.

    A ride that payment knows as completed waits until the reconciler has heard of its end too.
    """
    poison = {"simulatedfault": "poison"}
    first, last = (RIDE.assigned, RIDE.completed) if reserved else (RIDE.completed, RIDE.assigned)
    world.send(first)
    for _ in range(ATTEMPTS - 1):
        with pytest.raises(faults.SimulatedFaultError):
            world.send(last, extensions=poison)
    assert world.send(last, extensions=poison) == "DeadLettered"
    assert world.send(RIDE.overdue) == "New"
    if not reserved:
        assert world.state("payments") == "completed"
        assert world.send(RIDE.overdue_driven) == "New"
    assert world.settled() == ("captured", "captured", ["PaymentAuthorized", "PaymentCaptured"])
    assert world.open() == set()


@pytest.mark.parametrize("price", [1, 1250, 2000, 10_000_000])
@pytest.mark.parametrize("capped", [0.0, 1.0], ids=["raised", "not raised"])
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "completed first"])
def test_a_price_that_has_changed_is_captured_from_one_reservation(
    world: Payment, price: int, *, capped: float, in_order: bool
) -> None:
    """What is reserved is raised first; where the gateway refuses, what is reserved is taken.

    Nothing is above it.
    """
    world.gateway.books = Books(Troubles(capped=capped))
    world.send(RIDE.assigned if in_order else Life(price=price).completed)
    world.send(Life(price=price).completed if in_order else RIDE.assigned)
    taken = min(price, 1250) if capped and in_order else price
    assert world.charge()["captures"] == [taken]
    assert (world.item("payments")["amount"], world.emitted()) == (
        taken,
        ["PaymentAuthorized", "PaymentCaptured"],
    )


def test_a_refused_capture_is_declined_and_leaves_nothing_reserved(world: Payment) -> None:
    """Another producer's event may hold a price that the gateway refuses, such as none."""
    world.send(RIDE.assigned)
    assert world.send(replace(RIDE.completed, price=0)) == "New"
    assert world.settled() == ("declined", "refunded", ["PaymentAuthorized", "PaymentDeclined"])


def test_a_refused_capture_is_declined_by_whichever_attempt_says_so(world: Payment) -> None:
    """The first attempt hears no answer to the release. The next one finds nothing reserved."""
    world.send(RIDE.assigned)
    unpaid = replace(RIDE.completed, price=0)

    def lose() -> None:
        world.gateway.away = True
        raise GatewayUnavailableError("the answer is lost")

    world.gateway.then(lambda: None)  # the capture
    world.gateway.then(lose)  # the release
    with pytest.raises(GatewayUnavailableError):
        world.send(unpaid)
    assert world.settled() == ("authorized", "refunded", ["PaymentAuthorized"])
    world.gateway.away = False
    assert world.send(unpaid) == "Retried"
    assert world.settled() == ("declined", "refunded", ["PaymentAuthorized", "PaymentDeclined"])


@pytest.mark.parametrize(
    "last", [RIDE.assigned, RIDE.cancelled], ids=["the car", "the cancellation"]
)
def test_a_reservation_that_comes_after_every_attempt_is_given_back(
    world: Payment, last: Fact
) -> None:
    """The duty to undo stands in the payment, and whichever event is redriven fulfils it."""
    time = [4e9]
    pending = Troubles(pending=1.0)
    world.gateway.books = Books(pending, pending_s=60, clock=lambda: time[0])
    world.quarantine(RIDE.assigned)
    world.quarantine(RIDE.cancelled)
    assert world.settled() == ("undo due", "pending", [])
    time[0] += 60.0
    # So that the next delivery begins at attempt 1, as that of a released key does.
    world.dynamodb.clear("idempotency")
    assert world.send(last) == "New"
    assert world.settled() == ("refunded", "refunded", ["PaymentRefunded"])


def test_a_payment_that_is_prepared_while_its_ride_is_cancelled_is_never_confirmed(
    world: Payment,
) -> None:
    """The cancellation finds nothing, and the run that prepared it cannot record its id."""
    world.gateway.then(lambda: world.send(RIDE.cancelled))
    assert world.send(RIDE.assigned) == "New"
    assert (world.state("payments"), world.emitted()) == ("cancelled", [])
    assert world.gateway.ledger() == []
    assert [each.status for each in world.gateway.books.intents.values()] == ["canceled"]


def test_a_cancellation_that_the_gateway_does_not_hear_is_a_duty(world: Payment) -> None:
    """The money stays reserved for no longer than until any further event of the ride comes."""
    world.send(RIDE.assigned)
    world.gateway.away = True
    world.quarantine(RIDE.cancelled)
    world.gateway.away = False
    world.send(RIDE.no_car)
    assert world.settled()[:2] == ("refunded", "refunded")


@pytest.mark.parametrize(
    "facts",
    list(permutations([RIDE.assigned, RIDE.completed, RIDE.cancelled, RIDE.overdue], 3)),
    ids=lambda facts: ", ".join(type(fact).__name__ for fact in facts),
)
def test_events_whose_records_were_forgotten_take_no_effect_at_the_gateway(
    world: Payment, facts: tuple[Fact, ...]
) -> None:
    """Each ends as new, in whatever order they came; no money moves, and the state stays."""
    for fact in facts:
        world.send(fact)
    known = world.state("payments")
    charged = world.gateway.ledger()
    for record in world.items("idempotency"):
        key = {"idempotencyKey": {"S": record["idempotencyKey"]}}
        world.dynamodb.delete_item(TableName="idempotency", Key=key)
    assert {world.send(fact, "replayed") for fact in facts} == {"New"}
    assert world.state("payments") == known
    assert world.gateway.ledger() == charged


@pytest.mark.parametrize("found", [True, False], ids=["in the list", "by its id"])
def test_what_is_captured_before_its_release_is_not_given_back(*, found: bool) -> None:
    """Another event of the ride may capture the payment at any time before the release."""
    world = Payment()
    world.send(RIDE.assigned)
    if found:
        world.dynamodb.clear("payments")

    def captured(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if method == "POST":
            capture = f"/v1/payment_intents/{world.charge()['id']}/capture"
            send(world.gateway.books, "POST", capture, "other run", "amount_to_capture=1250")
        return world.gateway.answer(method, path, key, content)

    world.gateway.sent = captured
    world.send(RIDE.overdue)
    assert world.charge()["status"] == world.state("payments") == "captured"


def test_a_failure_keeps_its_event(world: Payment) -> None:
    """A quarantined key's record holds its event, for when the dead letter is gone."""
    world.gateway.away = True
    world.quarantine(RIDE.assigned)
    (record,) = world.items("idempotency")
    assert json.loads(record["event"])["detail"]["subject"] == RIDE.order_id


def test_a_duty_that_came_meanwhile_is_not_overwritten(world: Payment) -> None:
    """The cancellation was given up while the money was taken.

    The run that took it gives it back.
    """

    def call_off() -> None:
        world.gateway.away = True
        world.quarantine(RIDE.cancelled)
        world.gateway.away = False

    world.send(RIDE.completed)
    for happen in (int, int, call_off):  # the payment is prepared, confirmed and captured
        world.gateway.then(happen)
    assert world.send(RIDE.assigned) == "New"
    assert (world.charge()["refunds"], world.state("payments")) == ([1250], "refunded")
