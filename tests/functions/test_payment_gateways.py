"""Payment at gateways that misbehave as real ones do.

Each ride is charged once, and what it costs.
"""

import json

import pytest
from msgspec.structs import replace

from carride.dynamodb import DynamoDB
from carride.events import parse_event
from carride.facts import Fact
from carride_idempotency.testing import Crash
from carride_idempotency.testing.worlds import CRASH_BEFORE, OVERTAKEN, Fault
from gateway import GatewayAnswerError, GatewayError, GatewayUnavailableError, Intent, Stands
from gateway_connection import HttpResponse
from gateway_rules import Account
from local.simulated_gateway import Books, GatewayRequest, Troubles
from payment_table import PaymentChangedError, read_payment, record_duty, record_payment
from payments import UnexpectedPaymentError
from tests.functions.gateways import FIRST, FakeGateway, send
from tests.functions.world import World
from tests.kit.rides import Life

RIDE = Life()
DAY = 86_400.0
CANCEL = f"/v1/payment_intents/{FIRST}/cancel"


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
@pytest.mark.parametrize("kind", ["", "card_error"])
def test_a_refused_lookup_declines_nothing(world: Town, status: int, kind: str) -> None:
    """It says nothing about the ride: the attempt fails, and a later one reserves the money."""

    def refuse(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if method == "GET":
            error = {"type": kind, "code": "amount_too_small", "param": "amount"}
            return HttpResponse(status, json.dumps({"error": error}).encode())
        return world.gateway.answer(method, path, key, content)

    world.gateway.sent = refuse
    world.send_in_vain(RIDE.assigned)
    assert world.emitted() == []
    world.gateway.sent = world.gateway.answer
    assert world.send(RIDE.assigned) == "New"
    assert world.payment() == ("authorized", ["authorized"])


@pytest.mark.parametrize("param", ["", "id", "intent", "payment_intent"])
def test_a_payment_that_a_lookup_does_not_find_declines_nothing(world: Town, param: str) -> None:
    """It was confirmed, and the answer was a refusal: the look that decides finds nothing now."""

    def forget(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = world.gateway.answer(method, path, key, content)
        if path.endswith("/confirm"):
            error = {"type": "card_error", "code": "card_declined"}
            return HttpResponse(402, json.dumps({"error": error}).encode())
        if method == "GET" and FIRST in path:
            error = {"type": "invalid_request_error", "code": "resource_missing", "param": param}
            return HttpResponse(404, json.dumps({"error": error}).encode())
        return response

    world.gateway.sent = forget
    world.send_in_vain(RIDE.assigned)
    assert world.emitted() == []
    world.gateway.sent = world.gateway.answer
    assert world.send(RIDE.assigned) == "New"
    assert world.payment() == ("authorized", ["authorized"])


def test_a_list_that_breaks_off_is_not_believed(world: Town) -> None:
    """The ride's payment may be on the next page, which the gateway refuses."""

    def break_off(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if method != "GET" or "limit=" not in path:
            return world.gateway.answer(method, path, key, content)
        if "starting_after" in path:
            error = {"type": "invalid_request_error", "code": "resource_missing"}
            return HttpResponse(400, json.dumps({"error": error}).encode())
        page = {"object": "list", "data": [{"id": "pi_0", "metadata": {}}], "has_more": True}
        return HttpResponse(200, json.dumps(page).encode())

    world.gateway.sent = break_off
    world.send_in_vain(RIDE.assigned)
    assert world.gateway.books.intents == {}


@pytest.mark.parametrize("answers", [None, 503, 404], ids=["silence", "busy", "refusal"])
@pytest.mark.parametrize("of", ["limit=", "/v1/customers/"], ids=["list", "customer"])
def test_no_error_names_the_customer(world: Town, of: str, answers: int | None) -> None:
    """Errors end up in logs, records and dead letters."""

    def fail(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if of not in path:
            return world.gateway.answer(method, path, key, content)
        if answers is None:
            raise GatewayUnavailableError("no answer: TimeoutError")
        return HttpResponse(answers, b"{}")

    world.gateway.sent = fail
    with pytest.raises(GatewayError) as caught:
        world.send(RIDE.assigned)
    errors = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert not [each for each in errors if RIDE.assigned.customer_id in str(each)]


def test_a_refused_lookup_is_repeated_in_the_same_run(world: Town) -> None:
    """A gateway may refuse it for a moment only, so it is asked like one without an answer."""
    refusals = [HttpResponse(404, b"{}")]

    def refuse_once(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        return refusals.pop() if refusals else world.gateway.answer(method, path, key, content)

    world.gateway.sent = refuse_once
    assert world.send(RIDE.assigned) == "New"
    assert world.payment() == ("authorized", ["authorized"])


def test_the_payment_of_another_ride_is_never_adopted(world: Town) -> None:
    """The gateway ignores the customer of a list, and answers a lookup about somebody else."""
    other = Life("order_02")
    world.send(RIDE.assigned)

    def ignoring(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = world.gateway.answer(method, path, key, content)
        if method == "GET" and "customers" not in path:
            first = world.gateway.answer("GET", f"/v1/payment_intents/{FIRST}", None, None)
            body = json.loads(first.content)
            listed = {"object": "list", "data": [body | {"latest_charge": None}], "has_more": False}
            return HttpResponse(200, json.dumps(listed if "?customer" in path else body).encode())
        return response

    world.gateway.sent = ignoring
    world.send(other.assigned)
    assert world.payment(other.order_id) == ("authorized", ["authorized"])
    assert world.item("payments", other.order_id)["paymentID"] != FIRST


# ── Answers that are not about what was asked ─────────────────────────────────────────────────────

WRONG: list[dict[str, object]] = [
    {"amount": 12_500, "amount_received": 12_500},
    {"amount": 1, "amount_received": 1},
    {"amount": 0, "amount_received": 0},
    {"id": "pi_999"},
    {"metadata": {"carride_ride": "order_02"}},
    {"currency": "usd"},
]
LAST: dict[str, Fact] = {
    "payment_intents": RIDE.assigned,
    "confirm": RIDE.assigned,
    "increment_authorization": replace(RIDE.completed, price=2000),
    "capture": RIDE.completed,
    "cancel": RIDE.cancelled,
}


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("step", LAST)
def test_an_answer_about_something_else_is_no_fact(
    world: Town, step: str, wrong: dict[str, object]
) -> None:
    """Ride, id, amount and currency are compared in every answer to a request."""
    if step not in {"payment_intents", "confirm"}:
        world.send(RIDE.assigned)
    emitted = world.emitted()

    def wrongly(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = world.gateway.answer(method, path, key, content)
        if method == "GET" or not path.endswith(step) or response.status != 200:
            return response
        return HttpResponse(200, json.dumps(json.loads(response.content) | wrong).encode())

    world.gateway.sent = wrongly
    if step == "payment_intents" and "id" in wrong:
        world.send_in_vain(LAST[step])  # it is called so from now on, and nobody knows it
        return
    with pytest.raises(GatewayAnswerError, match="another "):
        world.send(LAST[step])
    assert world.emitted() == emitted
    world.gateway.sent = world.gateway.answer
    assert world.send(LAST[step]) in {"New", "Retried"}


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
        if said.get("status") == "succeeded":
            said["amount_received"] = amount
        return HttpResponse(response.status, json.dumps(said).encode())

    world.gateway.sent = wrongly
    with pytest.raises(GatewayAnswerError):
        world.send(RIDE.completed)
    world.gateway.books.forget_keys()
    with pytest.raises(UnexpectedPaymentError):
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
        super().__init__(Troubles(kept=1.0), clock=lambda: 4e9)
        self.kind = kind

    def _meets(self, trouble: str, name: str) -> bool:
        return trouble == "kept" and name.endswith(f"-{self.kind}-0-1")


KINDS: dict[str, tuple[list[Fact], Fact]] = {
    "prepare": ([], RIDE.assigned),
    "confirm": ([], RIDE.assigned),
    "increment_authorization": ([RIDE.assigned], replace(RIDE.completed, price=2000)),
    "capture": ([RIDE.assigned], RIDE.completed),
    "cancel": ([RIDE.assigned], RIDE.cancelled),
    "refund": ([RIDE.assigned, RIDE.completed], RIDE.cancelled),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_error_is_asked_past_at_once(kind: str) -> None:
    """The next try has another key, and the step takes effect once."""
    world = Town(FakeGateway(Keeps(kind)))
    before, last = KINDS[kind]
    for fact in (*before, last):
        assert world.send(fact) == "New"
    (charge,) = world.gateway.ledger()
    assert f"-{kind}-0-2" in " ".join(world.gateway.keys)
    assert len(charge["captures"]) <= 1
    assert len(charge["refunds"]) == (kind in {"cancel", "refund"})


class Outage(Books):
    """A gateway that keeps an error under each key that it is given for one kind, while it is out.

    It forgets no key.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(Troubles(kept=1.0), clock=lambda: 4e9)
        self.kind = kind
        self.is_out = False
        self.kept = set[str]()

    def _meets(self, trouble: str, name: str) -> bool:
        if self.is_out and f"-{self.kind}-" in name:
            self.kept.add(name)
        return trouble == "kept" and name in self.kept


@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_whose_errors_are_kept_holds_up_a_ride_for_an_hour(kind: str) -> None:
    """It uses up the keys of a run. Later runs had the same, and met its errors for a day."""
    hours = [0]
    books = Outage(kind)
    world = Town(FakeGateway(books, clock=lambda: hours[0] * 3_600_000))
    before, last = KINDS[kind]
    for fact in before:
        assert world.send(fact) == "New"
    books.is_out = True
    world.send_in_vain(last, last)
    books.is_out = False
    hours[0] = 1
    assert world.send(last) == "New"
    (charge,) = world.gateway.ledger()
    assert len(charge["captures"]) <= 1
    assert len(charge["refunds"]) == (kind in {"cancel", "refund"})


def test_a_request_without_an_answer_keeps_its_key(world: Town) -> None:
    """It may have taken effect: under its key the gateway repeats the answer."""
    tries = iter([True, True])

    def lose(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = world.gateway.answer(method, path, key, content)
        if path.endswith("/confirm") and next(tries, False):
            raise GatewayUnavailableError("the answer is lost")
        return response

    world.gateway.sent = lose
    assert world.send(RIDE.assigned) == "New"
    assert world.gateway.keys == ["order_01-prepare-0-1"] + [f"{FIRST}-confirm-0-1"] * 3


def test_a_refusal_that_was_kept_and_does_not_fit_any_more_decides_nothing() -> None:
    """A capture met a payment that was still worked on; the hold must not be released for that."""
    time = [4e9]
    world = Town(FakeGateway(Books(clock=lambda: time[0])))
    world.send(RIDE.assigned)
    intent = world.gateway.books.intents[FIRST]
    intent.status = "processing"
    intent.settles_s = int(time[0]) + 60
    capture = f"/v1/payment_intents/{FIRST}/capture"
    early = send(world.gateway.books, "POST", capture, f"{FIRST}-capture-0-1", CAPTURED)
    assert early.status == 400
    intent.status = "requires_capture"
    assert world.send(RIDE.completed) == "New"
    assert world.payment() == ("captured", ["captured"])
    assert world.gateway.keys[-1] == f"{FIRST}-capture-0-2"


CAPTURED = "amount_to_capture=1250&expand%5B%5D=latest_charge"

# ── Requests that are finished late ───────────────────────────────────────────────────────────────


class Late:
    """A gateway that takes requests of one kind, answers none, and finishes them when told to."""

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.requests: list[GatewayRequest] = []
        world.gateway.sent = self.take

    def take(self, method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        """Answer all requests but those."""
        if method == "POST" and path.endswith(self.kind):
            form = (content or b"").decode()
            self.requests.append(GatewayRequest(method, path, key or "", form))
            raise GatewayUnavailableError("no answer")
        return self.world.gateway.answer(method, path, key, content)

    def finish(self, *, forgets_keys: bool) -> list[int]:
        """Finish what was taken in, and answer from now on; return the answers' statuses."""
        gateway = self.world.gateway
        gateway.sent = gateway.answer
        found = self.requests
        if forgets_keys:
            found = [each._replace(key=f"{number}") for number, each in enumerate(found)]
        return [gateway.books.answer(each).status for each in found]


@pytest.mark.parametrize("forgets_keys", [True, False])
@pytest.mark.parametrize("kind", ["/payment_intents", "/confirm"])
@pytest.mark.parametrize("ends", [[RIDE.cancelled], [RIDE.overdue], [RIDE.no_car, RIDE.cancelled]])
def test_a_reservation_that_arrives_days_after_its_end_reserves_nothing(
    world: Town, kind: str, ends: list[Fact], *, forgets_keys: bool
) -> None:
    """The ride ended at once, nobody waited, and its payment is final."""
    late = Late(world, kind)
    world.send_in_vain(RIDE.assigned)
    world.gateway.sent = world.gateway.answer
    for fact in ends:
        assert world.send(fact) == "New"
    assert world.open() == set()
    world.clock.advance(3 * DAY)
    late.finish(forgets_keys=forgets_keys)
    assert world.payment() == ("cancelled", [])
    world.dynamodb.clear("idempotency")
    world.send(RIDE.assigned)
    assert world.payment() == ("cancelled", [])


@pytest.mark.parametrize("forgets_keys", [True, False])
@pytest.mark.parametrize(
    ("kind", "fact"),
    [("/capture", RIDE.completed), ("/cancel", RIDE.cancelled), ("/refunds", RIDE.cancelled)],
)
def test_a_change_that_arrives_days_late_happens_once(
    world: Town, kind: str, fact: Fact, *, forgets_keys: bool
) -> None:
    """Another attempt has done the same meanwhile."""
    world.send(RIDE.assigned)
    if kind == "/refunds":
        world.send(RIDE.completed)
    late = Late(world, kind)
    world.send_in_vain(fact)
    world.gateway.sent = world.gateway.answer
    assert world.send(fact) == "New"
    before = world.gateway.ledger()
    world.clock.advance(3 * DAY)
    late.finish(forgets_keys=forgets_keys)
    assert world.gateway.ledger() == before


def test_a_payment_that_was_prepared_stays_open(world: Town) -> None:
    """An event that changes nothing does not hide it from the reconciler, nor forgets its id."""
    Late(world, "/confirm")
    world.send_in_vain(RIDE.assigned)
    world.send(RIDE.accepted)
    assert (world.state("payments"), world.item("payments")["paymentID"]) == ("unknown", FIRST)
    assert world.open() == {RIDE.order_id}
    world.gateway.sent = world.gateway.answer
    world.send(RIDE.completed)
    assert world.send(RIDE.assigned) == "New"
    assert world.payment() == ("captured", ["captured"])
    assert len(world.gateway.books.intents) == 1


def test_a_payment_that_is_recorded_meanwhile_is_not_overwritten(world: Town) -> None:
    """The completion is decided before another run records the payment, and committed after."""

    def ask() -> None:
        late = Late(world, "/confirm")
        with pytest.raises(GatewayUnavailableError):
            world.send(RIDE.assigned)
        world.gateway.sent = world.gateway.answer
        assert late.requests

    overtaken = Fault(OVERTAKEN, lambda _, what: what.startswith("TransactWriteItems"), ask)
    world.deliver("payment", world.envelope(RIDE.completed), fault=overtaken)
    assert (world.state("payments"), world.item("payments")["paymentID"]) == ("completed", FIRST)
    unseen = read_payment(DynamoDB(world.dynamodb), "payments", RIDE.order_id)
    assert unseen.payment.due == RIDE.completed.price


def test_of_two_payments_that_are_prepared_at_once_one_is_recorded(world: Town) -> None:
    """Both runs have read the row before either has recorded its payment."""
    world.send(RIDE.completed)
    assigned = parse_event(world.envelope(RIDE.assigned))
    client = DynamoDB(world.dynamodb)
    seen = read_payment(client, "payments", RIDE.order_id)
    first = Intent(FIRST, Stands.PREPARED, 1250, "EUR")
    second = first._replace(payment_id="pi_000002")
    record_payment(client, "payments", assigned, seen, first, now=world.now())
    with pytest.raises(PaymentChangedError):
        record_payment(client, "payments", assigned, seen, second, now=world.now())
    assert world.item("payments")["paymentID"] == FIRST


def test_an_event_that_took_effect_records_nothing_more(world: Town) -> None:
    """An attempt that lost its claim may read the payment after the other one has committed."""
    world.send(RIDE.cancelled)
    cancelled = parse_event(world.envelope(RIDE.cancelled))
    before = world.item("payments")
    client = DynamoDB(world.dynamodb)
    seen = read_payment(client, "payments", RIDE.order_id)
    assert record_duty(client, "payments", cancelled, seen, now=world.now()) == seen
    unaware = seen._replace(heard=frozenset())
    prepared = Intent(FIRST, Stands.PREPARED, 1250, "EUR")
    with pytest.raises(PaymentChangedError):
        record_duty(client, "payments", cancelled, unaware, now=world.now())
    with pytest.raises(PaymentChangedError):
        record_payment(client, "payments", cancelled, seen, prepared, now=world.now())
    assert world.item("payments") == before


# ── Payments that end without payment ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["canceled by hand", "the hold ended"])
def test_a_driven_ride_whose_hold_is_gone_is_declined(how: str) -> None:
    """It is not paid, nobody calls that refunded, and the refused capture is the last change."""
    time = [4e9]
    world = Town(FakeGateway(Books(clock=lambda: time[0])))
    world.send(RIDE.assigned)
    if how == "the hold ended":
        time[0] += 8 * DAY
    else:
        assert send(world.gateway.books, "POST", CANCEL).status == 200
    world.send(RIDE.completed)
    assert world.payment() == ("declined", ["refunded"])
    assert world.emitted() == ["PaymentAuthorized", "PaymentDeclined"]
    assert world.gateway.asked[-1] == "capture"


def test_a_prepared_payment_that_somebody_canceled_was_never_held(world: Town) -> None:
    """So its ride is cancelled, and not refunded, when it is called off."""
    Late(world, "/confirm")
    world.send_in_vain(RIDE.assigned)
    world.gateway.sent = world.gateway.answer
    assert send(world.gateway.books, "POST", CANCEL).status == 200
    world.send(RIDE.cancelled)
    assert (world.payment(), world.emitted()) == (("cancelled", []), [])


def test_a_payment_is_found_after_its_table_was_restored(world: Town) -> None:
    """The row is gone, the ride is paid once, and of several payments the one with money counts."""
    world.send(RIDE.assigned)
    form = "amount=1250&currency=eur&customer=customer_a&payment_method=pm_card_of_customer_a"
    prepare = f"{form}&payment_method_types[]=card&capture_method=manual"
    send(
        world.gateway.books,
        "POST",
        "/v1/payment_intents",
        form=f"{prepare}&metadata[carride_ride]=order_01",
    )
    world.dynamodb.clear("payments")
    world.dynamodb.clear("idempotency")
    world.send(RIDE.overdue_driven)
    assert world.payment() == ("captured", ["captured"])
    assert world.item("payments")["paymentID"] == FIRST


# ── The account ───────────────────────────────────────────────────────────────────────────────────


def test_an_account_that_takes_no_payments_declines_no_ride_before_it_is_overdue() -> None:
    """Each attempt fails, so somebody hears of it; then the ride ends, and is not paid."""
    gateway = FakeGateway(account=Account(broken="payment_method_unactivated"))
    world = Town(gateway)
    world.send_in_vain(RIDE.assigned)
    world.send(RIDE.completed)
    assert world.emitted() == []
    world.send(RIDE.overdue_driven)
    assert (world.state("payments"), world.emitted()) == ("declined", ["PaymentDeclined"])
    assert world.open() == set()


@pytest.mark.parametrize("status", [401, 403])
def test_while_our_key_is_refused_nothing_is_decided(world: Town, status: int) -> None:
    """That is about every ride: not even an overdue one ends."""
    error = {"error": {"type": "invalid_request_error"}}
    refusal = HttpResponse(status, json.dumps(error).encode())
    world.gateway.sent = lambda *_: refusal
    world.send_in_vain(RIDE.assigned)
    world.send(RIDE.completed)
    world.send_in_vain(RIDE.overdue_driven)
    assert world.emitted() == []
    world.gateway.sent = world.gateway.answer
    world.send(RIDE.overdue_driven)
    assert world.payment() == ("captured", ["captured"])


def test_what_was_taken_is_not_given_up(world: Town) -> None:
    """Another account does not know the payment: the duty to give the money back stays."""
    world.send(RIDE.assigned)
    world.send(RIDE.completed)
    intents = world.gateway.books.intents.copy()
    world.gateway.books.intents.clear()
    world.send_in_vain(RIDE.cancelled)
    with pytest.raises(GatewayError):
        world.send(RIDE.overdue)
    world.dynamodb.clear("idempotency")
    assert world.state("payments") == "undo due"
    world.gateway.books.intents.update(intents)
    world.send(RIDE.cancelled)
    assert world.payment() == ("refunded", ["refunded"])
