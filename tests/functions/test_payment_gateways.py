"""Payment at gateways that misbehave as real ones do.

Each ride is charged once, and what it costs.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

import payments
from carride.dynamodb import DynamoDB
from carride.events import parse_event
from carride.facts import Fact
from carride.overdue import sortable_time
from carride_idempotency.testing import Crash
from carride_idempotency.testing.worlds import CRASH_BEFORE, OVERTAKEN, Fault
from gateway import GatewayAnswerError, GatewayError, GatewayUnavailableError, Step
from gateway_connection import HttpResponse
from local.simulated_gateway import Books, GatewayRequest, Reply, Troubles
from payment_table import PaymentChangedError, read_payment, record_request
from payments import Action, Asked, UnexpectedPaymentError
from tests.functions.gateways import FakeGateway, FakeStripe
from tests.functions.world import World
from tests.kit.rides import NOW, Life

RIDE = Life()
HOUR = 3600.0
type Send = Callable[[str, str, str | None, bytes | None], HttpResponse]


class Town(World):
    """The functions, of which payment gets events."""

    def send(self, fact: Fact) -> str:
        """Deliver a fact to payment, and return the outcome."""
        return self.deliver("payment", self.envelope(fact))

    def send_in_vain(self, *facts: Fact) -> None:
        """Deliver facts which the gateway lets fail, and forget their attempts, like a release."""
        for fact in facts:
            with pytest.raises(GatewayError):
                self.send(fact)
        self.dynamodb.clear("idempotency")

    def send_and_die(self, fact: Fact) -> None:
        """Deliver a fact to payment, whose run is killed when the gateway has answered."""
        with pytest.raises(Crash):
            self.deliver("payment", self.envelope(fact), fault=Fault(CRASH_BEFORE, _at_the_commit))
        self.clock.advance(60)

    def payment(self, order_id: str = RIDE.order_id) -> tuple[object, list[object]]:
        """Return the state of a ride's payment in the table, and at the gateway."""
        ledger = self.gateway.ledger()
        found = [each["status"] for each in ledger if each["reference"] == order_id]
        return self.state("payments", order_id), found


def _at_the_commit(_number: int, what: str) -> bool:
    return what.startswith("TransactWriteItems")


@pytest.fixture
def world() -> Town:
    """Payment with a gateway that does as it is told."""
    return Town()


# ── Lookups ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [400, 402, 404, 405, 410, 422, 451])
def test_a_refused_lookup_declines_nothing(world: Town, status: int) -> None:
    """It says nothing about the ride: the attempt fails, and a later one reserves the money."""

    def refuse(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        assert method == "GET", "nothing is asked for before the lookup is answered"
        return HttpResponse(status, b'{"code": "gone"}')

    world.gateway.sent = refuse
    world.send_in_vain(RIDE.assigned)
    assert world.emitted() == []
    world.gateway.sent = world.gateway.answer
    assert world.send(RIDE.assigned) == "New"
    world.gateway.sent = refuse
    world.send_in_vain(RIDE.completed)
    world.gateway.sent = world.gateway.answer
    assert world.send(RIDE.completed) == "New"
    assert world.payment() == ("captured", ["captured"])


def test_a_refused_lookup_is_repeated_in_the_same_run(world: Town) -> None:
    """A gateway may refuse it for a moment only, so it is asked like one without an answer."""
    refusals = [HttpResponse(404, b"{}")]

    def refuse_once(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        return refusals.pop() if refusals else world.gateway.answer(method, path, key, content)

    world.gateway.sent = refuse_once
    assert world.send(RIDE.assigned) == "New"
    assert world.payment() == ("authorized", ["authorized"])


def test_the_payment_of_another_ride_is_never_adopted(
    world: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway ignores the reference of a lookup, and answers with the payments of all rides."""
    other = Life("order_02")
    world.send(RIDE.assigned)
    look_up = world.gateway.books.look_up
    monkeypatch.setattr(
        world.gateway.books,
        "look_up",
        lambda path, query: look_up("/ledger" if path == "/payments" else path, query),
    )
    for fact in (other.assigned, other.completed, other.cancelled, other.overdue_driven):
        if fact is not other.completed:
            world.send_in_vain(fact)
        else:
            world.send(fact)
    assert world.payment() == ("authorized", ["authorized"])
    assert [event.subject for event in world.outbox()] == [RIDE.order_id]


# ── Answers that are not about what was asked ─────────────────────────────────────────────────────

WRONG: list[dict[str, object]] = [
    {"amount": 12_500},
    {"amount": 1},
    {"amount": 0},
    {"id": "pay_999"},
    {"reference": "order_02"},
    {"currency": "USD"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("step", ["authorize", "adjust", "capture", "refund"])
def test_an_answer_about_something_else_is_no_fact(
    world: Town, step: str, wrong: dict[str, object]
) -> None:
    """Reference, id, amount and currency are compared in every answer to a request."""
    asked = {"authorize": "payments"}.get(step, step)

    def wrongly(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = world.gateway.answer(method, path, key, content)
        if method == "GET" or not path.endswith(asked):
            return response
        return HttpResponse(
            response.status, json.dumps(json.loads(response.content) | wrong).encode()
        )

    if step != "authorize":
        world.send(RIDE.assigned)
    last: dict[str, Fact] = {
        "authorize": RIDE.assigned,
        "adjust": replace(RIDE.completed, price=2000),
        "capture": RIDE.completed,
        "refund": RIDE.cancelled,
    }
    emitted = world.emitted()
    world.gateway.sent = wrongly
    if step == "authorize" and "id" in wrong:
        world.send(last[step])  # its id is what it is called from now on
        with pytest.raises(GatewayError):
            world.send(RIDE.completed)
        return
    with pytest.raises(GatewayAnswerError, match=f"another {next(iter(wrong))} "):
        world.send(last[step])
    assert world.emitted() == emitted


@pytest.mark.parametrize("amount", [12_500, 1251, 1249, 0])
def test_a_gateway_that_takes_another_amount_and_says_so_is_not_believed(
    world: Town, amount: int
) -> None:
    """The payment that is looked at afterwards has the wrong amount too.

    No event says that it was paid.
    """
    world.send(RIDE.assigned)

    def wrongly(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = world.gateway.answer(method, path, key, content)
        said = json.loads(response.content)
        if said.get("status") == "captured":
            said["amount"] = amount
        return HttpResponse(response.status, json.dumps(said).encode())

    world.gateway.sent = wrongly
    for _ in range(2):
        with pytest.raises((GatewayAnswerError, UnexpectedPaymentError)):
            world.send(RIDE.completed)
    assert world.emitted() == ["PaymentAuthorized"]
    assert world.payment() == ("authorized", ["captured"])


def test_a_refused_raise_is_recorded(world: Town) -> None:
    """Less than the price is taken only then, and the payment says so."""
    world.gateway.books = Books(Troubles(capped=1.0))
    world.send(RIDE.assigned)
    world.send(replace(RIDE.completed, price=2000))
    assert (world.item("payments")["amount"], world.item("payments")["raiseRefused"]) == (
        1250,
        True,
    )


DEAR = replace(RIDE.completed, price=2000)
DEAR_AND_OVERDUE = replace(RIDE.overdue_driven, price=2000)
UNSERVED = replace(RIDE.overdue_unserved, price=2000)


@pytest.mark.parametrize(
    ("heard", "killed", "then"),
    [
        ([RIDE.assigned], [DEAR], [UNSERVED]),
        ([RIDE.assigned], [DEAR], [RIDE.overdue, DEAR]),
        ([RIDE.assigned], [DEAR], [DEAR]),
        ([], [RIDE.assigned, DEAR_AND_OVERDUE], [RIDE.assigned, DEAR_AND_OVERDUE]),
    ],
)
def test_a_refused_raise_is_recorded_although_the_run_that_met_it_was_killed(
    heard: list[Fact], killed: list[Fact], then: list[Fact]
) -> None:
    """The event that finds the capture may not know the last price: then the one that does."""
    world = Town(FakeGateway(Books(Troubles(capped=1.0))))
    for fact in heard:
        world.send(fact)
    for fact in killed:
        world.send_and_die(fact)
    for fact in then:
        world.send(fact)
    assert world.payment() == ("captured", ["captured"])
    payment = world.item("payments")
    assert (payment["amount"], payment.get("raiseRefused")) == (1250, True)


def test_a_refused_raise_is_recorded_if_the_reservation_was_made_before(world: Town) -> None:
    """Payment knew the price before it heard of a car, and the overdue ride finds the capture."""
    world.gateway.books = Books(Troubles(capped=1.0))
    world.send_and_die(RIDE.assigned)
    world.send(DEAR)
    world.send_and_die(RIDE.assigned)
    world.send(RIDE.overdue_unserved)
    assert world.payment() == ("captured", ["captured"])
    assert world.item("payments")["raiseRefused"]


def test_a_price_that_has_fallen_is_not_called_a_refused_raise(world: Town) -> None:
    """The run that captured it was killed, and what finds the capture knows the earlier price."""
    world.send(RIDE.assigned)
    world.send_and_die(replace(RIDE.completed, price=500))
    for fact in (RIDE.overdue, replace(RIDE.completed, price=500)):
        world.send(fact)
        assert world.payment() == ("captured", ["captured"])
        assert "raiseRefused" not in world.item("payments")


def test_a_captured_price_is_not_called_a_refused_raise(world: Town) -> None:
    """The price was taken, and nothing else is recorded."""
    world.send(RIDE.assigned)
    world.send(RIDE.completed)
    assert "raiseRefused" not in world.item("payments")


def test_an_event_about_money_has_its_currency(world: Town) -> None:
    """A later event of another producer leaves the ride's currency out.

    The money is in the reservation's.
    """
    world.send(replace(RIDE.assigned, currency="CHF"))
    world.send(RIDE.completed)
    assert {event.data.currency for event in world.outbox()} == {"CHF"}


# ── Errors that are kept under their keys ─────────────────────────────────────────────────────────


class Keeps(Books):
    """A gateway that keeps an error under the first key of one kind, as Stripe's API v1 does."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.keys: list[str] = []

    def begin(self, request: GatewayRequest) -> Reply | None:
        """Accept a request, and note its key."""
        self.keys.append(request.key)
        return super().begin(request)

    def _meets(self, trouble: str, name: str) -> bool:
        return trouble == "kept" and name.endswith(self.kind)


@pytest.mark.parametrize("gateway", [FakeGateway, FakeStripe])
@pytest.mark.parametrize("kind", ["authorize", "capture", "refund"])
def test_a_kept_error_is_asked_past_once_the_gateway_cannot_finish_the_first_request(
    kind: str, gateway: type[FakeGateway | FakeStripe]
) -> None:
    """Every attempt has the first key for at least an hour.

    Then a new one, and the step takes effect once.
    """
    ride = Life(customer="cus_a")
    facts = {"authorize": ride.overdue_driven, "capture": ride.completed, "refund": ride.cancelled}
    fact = facts[kind]
    books = Keeps(kind)
    world = Town(gateway(books))
    if kind == "authorize":
        world.send_in_vain(ride.assigned)
    else:
        world.send(ride.assigned)
    world.send_in_vain(fact)
    world.clock.advance(0.9 * HOUR)
    world.send_in_vain(fact)
    assert {key for key in books.keys if kind in key} == {
        key for key in books.keys if key.endswith(kind)
    }
    world.clock.advance(1.1 * HOUR)
    world.send_in_vain(fact)  # the last attempt was less than the bound and a run ago
    assert not any(key.endswith("-2") for key in books.keys)
    world.clock.advance(2 * HOUR)
    assert world.send(fact) == "New"
    status = "refunded" if kind == "refund" else "captured"
    assert world.payment() == (status, [status])
    assert any(key.endswith(f"{kind}-2") for key in books.keys)
    (charge,) = world.gateway.ledger()
    assert len(charge["captures"]) + len(charge["refunds"]) == 1


# ── Requests that are finished late ───────────────────────────────────────────────────────────────


class Late:
    """A gateway that takes requests, answers none, and finishes them when it is told to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.requests: list[Any] = []
        world.gateway.sent = self.take

    def take(self, method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        """Answer lookups only."""
        if method == "GET":
            return self.world.gateway.answer(method, path, key, content)
        self.requests.append((method, path, key, content))
        raise GatewayUnavailableError("no answer")

    def finish(self) -> None:
        """Finish what was taken in, and answer from now on."""
        self.world.gateway.sent = self.world.gateway.answer
        for request in self.requests:
            self.world.gateway.answer(*request)


@pytest.mark.parametrize("finished_after_h", [0.1, 0.9])
def test_a_reservation_that_is_made_after_its_cancellation_is_given_back(
    finished_after_h: float,
) -> None:
    """The run was killed inside its request, and nothing was found then.

    The reconciler has it looked for again.
    """
    world = Town()
    world.park("car_01")
    late = Late(world)
    order_id = world.booked("accept")
    with pytest.raises(GatewayUnavailableError):
        world.flow()
    world.change(order_id, "cancel", 2)
    world.flow()
    assert world.payment(order_id) == ("undo due", [])
    world.clock.advance(finished_after_h * HOUR)
    late.finish()
    assert world.payment(order_id) == ("undo due", ["authorized"])
    assert world.reconcile() == {"reconciled": 1, "overdue": 0}
    assert world.payment(order_id) == ("refunded", ["refunded"])
    assert world.open() == set()


def test_a_reservation_that_is_never_made_ends_as_cancelled() -> None:
    """Once the gateway cannot finish the request any more, the duty ends."""
    world = Town()
    world.park("car_01")
    Late(world)
    order_id = world.booked("accept")
    with pytest.raises(GatewayUnavailableError):
        world.flow()
    world.change(order_id, "cancel", 2)
    world.flow()
    assert world.open() == {order_id}
    world.reconcile()
    assert world.payment(order_id) == ("cancelled", [])
    assert world.open() == set()


def test_the_reconciler_waits_until_the_gateway_has_finished() -> None:
    """The last attempt was half an hour ago, though the ride is overdue.

    It is settled two hours later.
    """
    world = Town()
    world.park("car_01")
    late = Late(world)
    order_id = world.booked("accept")
    with pytest.raises(GatewayUnavailableError):
        world.flow()
    (assigned,) = (event for event in world.outbox() if event.type == "CarAssigned")
    world.clock.advance(timedelta(hours=4).total_seconds())
    late.requests.clear()  # the gateway drops what it has not finished in an hour
    world.dynamodb.clear("idempotency")
    world.send_in_vain(assigned.data)
    world.clock.advance(0.5 * HOUR)
    assert world.tick() == {"reconciled": 0, "overdue": 0}
    late.finish()
    world.clock.advance(2 * HOUR)
    assert world.tick()["reconciled"] == 1
    assert world.payment(order_id) == ("refunded", ["refunded"])


def test_an_event_that_nobody_repeats_fails_while_the_gateway_may_still_finish(
    world: Town,
) -> None:
    """An overdue ride's event comes once.

    It is dead-lettered, and not completed without an effect.
    """
    late = Late(world)
    world.send_in_vain(RIDE.assigned)
    with pytest.raises(Exception, match="may still make one"):
        world.send(RIDE.overdue)
    late.finish()
    assert world.send(RIDE.overdue) == "Retried"
    assert world.payment() == ("refunded", ["refunded"])


def test_a_request_is_remembered_until_it_is_answered(world: Town) -> None:
    """Each event of the cancelled ride finds nothing while the gateway may still finish it."""
    Late(world)
    world.send_in_vain(RIDE.assigned)
    for fact in (RIDE.cancelled, RIDE.no_car):
        world.send(fact)
        assert world.payment() == ("undo due", [])
        assert world.open() == {RIDE.order_id}


def test_a_request_that_was_answered_is_forgotten(world: Town) -> None:
    """Nothing waits for it, and the next one of its step has the first key."""
    world.send(RIDE.assigned)
    assert world.item("payments")["asked"] == {}


@pytest.mark.parametrize("gateway", [FakeGateway, FakeStripe])
def test_a_capture_that_is_finished_late_is_made_once(
    gateway: type[FakeGateway | FakeStripe],
) -> None:
    """Another event's run was killed inside the capture, which had its second key by then.

    The answer about the reservation must not let the next attempt fall back to the first key.
    """
    ride = Life(customer="cus_a")
    world = Town(gateway(Keeps("capture")))
    world.send_in_vain(ride.overdue_driven)
    world.clock.advance(3 * HOUR)
    late = Late(world)
    world.send_in_vain(ride.overdue_driven)
    world.gateway.sent = world.gateway.answer
    assert world.send(ride.assigned) == "New"
    assert world.item("payments")["asked"].keys() == {"capture", "give back"}
    late.finish()
    assert world.send(ride.overdue_driven) == "New"
    assert world.payment() == ("captured", ["captured"])
    (charge,) = world.gateway.ledger()
    assert len(charge["captures"]) == 1


@pytest.mark.parametrize("action", Action)
def test_an_answer_about_some_steps_leaves_the_others(action: Action) -> None:
    """Whatever the gateway was asked for before, and may still finish."""
    asked = {step: Asked(2, sortable_time(NOW + timedelta(minutes=1))) for step in Step}
    others = {step: asked[step] for step in Step if step not in payments.STEPS[action]}
    assert payments.still_asked(asked, action, NOW) == others
    assert payments.still_asked(asked, action, NOW + timedelta(minutes=2)) == {}


def test_a_ride_that_the_gateway_was_asked_about_stays_open(world: Town) -> None:
    """An event that changes nothing does not hide it from the reconciler."""
    Late(world)
    world.send_in_vain(RIDE.assigned)
    world.send(RIDE.accepted)
    assert world.state("payments") == "unknown"
    assert world.open() == {RIDE.order_id}


def test_a_request_that_is_recorded_meanwhile_is_not_overwritten(world: Town) -> None:
    """The completion is decided before another run uses the second key, and committed after."""
    Late(world)
    world.send_in_vain(RIDE.assigned)
    world.clock.advance(3 * HOUR)

    def ask_again() -> None:
        with pytest.raises(GatewayUnavailableError):
            world.send(RIDE.assigned)

    overtaken = Fault(OVERTAKEN, lambda _, what: what.startswith("TransactWriteItems"), ask_again)
    world.deliver("payment", world.envelope(RIDE.completed), fault=overtaken)
    assert world.item("payments")["asked"]["reserve"]["key_number"] == 2


def test_an_event_that_took_effect_asks_for_nothing_more(world: Town) -> None:
    """An attempt that lost its claim may read the payment after the other one has committed."""
    Late(world)
    world.send_in_vain(RIDE.assigned)
    world.send(RIDE.cancelled)
    cancelled = parse_event(world.envelope(RIDE.cancelled))
    world.clock.advance(3 * HOUR)
    before = world.item("payments")
    client = DynamoDB(world.dynamodb)
    seen = read_payment(client, "payments", RIDE.order_id)
    asks: dict[str, Any] = {"action": Action.UNDO, "now": world.now()}
    assert record_request(client, "payments", cancelled, seen, **asks) == seen
    unaware = seen._replace(heard=frozenset())
    with pytest.raises(PaymentChangedError):
        record_request(client, "payments", cancelled, unaware, **asks)
    assert world.item("payments") == before
