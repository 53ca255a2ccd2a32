"""Payment at Stripe, whose API answers as its documentation says.

Each ride is charged once, and what it costs.
"""

import json
import math
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

import payment
import persistent_gateway
from carride.facts import Fact
from carride.settings import from_environment
from carride_idempotency.testing import Crash
from carride_idempotency.testing.worlds import CRASH_BEFORE, Fault
from gateway import (
    Call,
    GatewayAnswerError,
    GatewayError,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
)
from gateway_connection import HttpRequest, HttpResponse
from local.simulated_gateway import Books, GatewayRequest, Reply, Troubles
from payments import UnexpectedPaymentError
from persistent_gateway import Reservation
from stripe_gateway import RIDE as IN_METADATA
from tests.functions.gateways import FakeStripe
from tests.functions.world import World
from tests.kit.rides import Life

RIDE: Final = Life(customer="cus_a")
DEARER: Final = replace(RIDE.completed, price=2000)
DAY: Final = 86_400.0
CALL: Final = Call(None, lambda: False)
INTENT: Final = Known(RIDE.order_id, "pay_000001", "EUR")
INTENTS: Final = "/v1/payment_intents"


class Town(World):
    """The functions, of which payment gets events, and Stripe."""

    def __init__(self, books: Books | None = None, **options: Any) -> None:
        self.stripe = FakeStripe(books, **options)
        super().__init__(self.stripe)

    def send(self, *facts: Fact) -> None:
        """Deliver facts to payment."""
        for fact in facts:
            outcome = self.deliver("payment", self.envelope(fact))
            assert outcome in {"New", "Retried", "Takeover"}

    def send_in_vain(self, fact: Fact) -> None:
        """Deliver a fact which the gateway lets fail, and forget the attempts, like a release."""
        with pytest.raises((GatewayError, UnexpectedPaymentError)):
            self.deliver("payment", self.envelope(fact))
        self.dynamodb.clear("idempotency")

    def paid(self) -> tuple[object, list[tuple[str, list[int], list[int]]]]:
        """Return the state of the ride's payment in the table, and all payments at Stripe."""
        found = [
            (each["status"], each["captures"], each["refunds"]) for each in self.stripe.ledger()
        ]
        return self.state("payments"), found

    def reasons(self) -> list[Any]:
        """Return why payments were declined."""
        declined = [event.data for event in self.outbox() if event.type == "PaymentDeclined"]
        return [cast("Any", each).reason for each in declined]

    def meddle(
        self, ending: str | tuple[str, ...], answer: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Have what Stripe answers to requests whose path ends so be changed."""

        def send(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
            response = self.stripe.answer(method, path, key, content)
            if not path.partition("?")[0].endswith(ending):
                return response
            return HttpResponse(200, json.dumps(answer(json.loads(response.content))).encode())

        self.stripe.sent = send


@pytest.fixture
def town() -> Town:
    """Payment with an account that raises no reservations."""
    return Town()


# ── A ride ────────────────────────────────────────────────────────────────────────────────────────


def test_a_ride_is_reserved_and_captured(town: Town) -> None:
    """Its keys name the ride and the step, and the PaymentIntent."""
    town.send(RIDE.assigned, RIDE.completed)
    assert town.paid() == ("captured", [("captured", [1250], [])])
    assert town.stripe.keys == ["order_01-authorize", "pay_000001-capture"]
    assert town.emitted() == ["PaymentAuthorized", "PaymentCaptured"]


@pytest.mark.parametrize(
    ("before", "key"),
    [((RIDE.assigned,), "refund"), ((RIDE.assigned, RIDE.completed), "refund-captured")],
    ids=["reserved", "captured"],
)
def test_a_cancelled_ride_is_released_or_paid_back(
    town: Town, before: tuple[Fact, ...], key: str
) -> None:
    """The two requests have other paths, for which Stripe wants other keys."""
    town.send(*before, RIDE.cancelled)
    state, (found,) = town.paid()
    assert (state, found[0], found[2]) == ("refunded", "refunded", [1250])
    assert town.stripe.keys[-1] == f"pay_000001-{key}"
    assert town.emitted()[-1] == "PaymentRefunded"


def test_less_is_captured_than_was_reserved(town: Town) -> None:
    """The intent keeps the amount that was reserved: what was received is what counts."""
    town.send(RIDE.assigned, replace(RIDE.completed, price=900))
    assert town.item("payments")["amount"] == 900
    town.send(RIDE.cancelled)
    assert town.paid() == ("refunded", [("refunded", [900], [900])])
    assert [cast("Any", event.data).amount for event in town.outbox()] == [1250, 900, 900]


@pytest.mark.parametrize(
    ("increments", "capped", "captured"), [(True, 0.0, 2000), (True, 1.0, 1250), (False, 0.0, 1250)]
)
def test_a_reservation_is_raised_where_account_and_card_allow_it(
    increments: bool, capped: float, captured: int
) -> None:
    """Otherwise what is reserved is captured, and the payment says so."""
    town = Town(Books(Troubles(capped=capped)), increments=increments)
    sent = []

    def note(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        sent.append((content or b"").decode())
        return town.stripe.answer(method, path, key, content)

    town.stripe.sent = note
    town.send(RIDE.assigned, DEARER)
    assert town.paid() == ("captured", [("captured", [captured], [])])
    assert ("raiseRefused" in town.item("payments")) == (captured < 2000)
    assert any("request_incremental_authorization" in each for each in sent) == increments
    assert ("adjust" in town.stripe.asked) == increments


# ── Who and what can be charged ───────────────────────────────────────────────────────────────────


def test_a_customer_who_is_not_stripes_is_declined_without_a_question(town: Town) -> None:
    """Nothing about somebody else is asked for."""
    stranger = Life(customer="customer_a")
    town.send(stranger.assigned, stranger.completed)
    assert town.paid() == ("declined", [])
    assert town.reasons() == ["the ride's customer is not a customer of Stripe"]
    assert town.stripe.asked == []


@pytest.mark.parametrize("settings", [{}, {"invoice_settings": {"default_payment_method": None}}])
def test_a_customer_without_a_card_is_declined(town: Town, settings: dict[str, Any]) -> None:
    """So is a deleted customer, of whom Stripe has only the id."""
    town.meddle("/customers/cus_a", lambda customer: {"id": customer["id"], **settings})
    town.send(RIDE.assigned)
    assert town.paid() == ("declined", [])
    assert town.reasons() == ["the customer has no default payment method"]


def test_the_card_of_another_customer_is_not_charged(town: Town) -> None:
    """Stripe answers about somebody else: the attempt fails, and nothing is asked for."""
    town.meddle("/customers/cus_a", lambda customer: customer | {"id": "cus_b"})
    town.send_in_vain(RIDE.assigned)
    assert town.stripe.ledger() == []
    assert town.emitted() == []


@pytest.mark.parametrize("currency", ["JPY", "KWD"])
def test_a_currency_without_cents_is_declined(town: Town, currency: str) -> None:
    """Stripe counts in the smallest unit: 1250 is not 12.50 of them."""
    town.send(replace(RIDE.assigned, currency=currency))
    assert town.paid() == ("declined", [])
    assert currency in town.reasons()[0]


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────

ERRORS: Final[list[tuple[int, str, str | None, bool]]] = [
    (402, "card_error", "card_declined", True),
    (402, "card_error", "authentication_required", True),
    (400, "invalid_request_error", "amount_too_small", True),
    (400, "invalid_request_error", "amount_too_large", True),
    (400, "invalid_request_error", "charge_expired_for_capture", True),
    (400, "idempotency_error", None, False),
    (400, "invalid_request_error", "payment_intent_unexpected_state", False),
    (400, "invalid_request_error", "payment_intent_invalid_parameter", False),
    (400, "invalid_request_error", None, False),
    (404, "invalid_request_error", "resource_missing", False),
    (401, "invalid_request_error", None, False),
    (403, "invalid_request_error", None, False),
    (409, "invalid_request_error", "idempotency_key_in_use", False),
    (424, "api_error", None, False),
    (429, "invalid_request_error", "lock_timeout", False),
    (429, "invalid_request_error", "rate_limit", False),
    (500, "api_error", None, False),
    (503, "api_error", None, False),
]


@pytest.mark.parametrize(("status", "kind", "code", "final"), ERRORS, ids=str)
def test_an_error_is_final_or_may_pass(
    town: Town, status: int, kind: str, code: str | None, final: bool
) -> None:
    """Only what is about this ride declines it.

    A wrong setting would decline every ride, so it fails the attempt.
    """
    error = {"type": kind, "code": code, "message": "Your card\n was declined."}
    refusal = HttpResponse(status, json.dumps({"error": error}).encode())

    def refuse(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        return refusal if method == "POST" else town.stripe.answer(method, path, key, content)

    town.stripe.sent = refuse
    if final:
        town.send(RIDE.assigned)
        assert town.paid() == ("declined", [])
        assert town.reasons() == ["Your card was declined."]
    else:
        town.send_in_vain(RIDE.assigned)
        assert town.emitted() == []
        town.stripe.sent = town.stripe.answer
        town.send(RIDE.assigned)
    town.stripe.sent = town.stripe.answer


@pytest.mark.parametrize("status", [400, 402, 404])
@pytest.mark.parametrize("path", ["/v1/customers/cus_a", "/v1/payment_intents"])
def test_a_refused_lookup_declines_nothing(town: Town, path: str, status: int) -> None:
    """It says nothing about the ride, whatever its code."""
    error = json.dumps({"error": {"type": "card_error", "code": "amount_too_small"}}).encode()

    def refuse(method: str, target: str, key: str | None, content: bytes | None) -> HttpResponse:
        if method == "GET" and target.partition("?")[0] == path:
            return HttpResponse(status, error)
        return town.stripe.answer(method, target, key, content)

    town.stripe.sent = cast("Any", refuse)
    town.send_in_vain(RIDE.assigned)
    assert town.emitted() == []


@pytest.mark.parametrize("status", [400, 404])
@pytest.mark.parametrize("kind", ["invalid_request_error", "idempotency_error"])
def test_a_raise_is_refused_for_good_by_any_error_about_the_request(status: int, kind: str) -> None:
    """The card, its issuer or the account allows none, and Stripe has no code for that.

    A key that has another request says nothing about the card.
    """
    stripe = FakeStripe(increments=True)
    stripe.authorize(CALL, Reservation("order_01", "cus_a", 1250, "EUR"))
    error = json.dumps({"error": {"type": kind}}).encode()

    def refuse(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if path.endswith("increment_authorization"):
            return HttpResponse(status, error)
        return stripe.answer(method, path, key, content)

    stripe.sent = refuse
    if kind == "idempotency_error":
        with pytest.raises(GatewayUnavailableError):
            stripe.adjust(CALL, INTENT, 2000)
    else:
        assert stripe.adjust(CALL, INTENT, 2000).amount == 1250


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b'{"error": 7}', b'{"error": {"code": []}}']
)
def test_an_error_that_is_not_stripes_may_pass(town: Town, content: bytes) -> None:
    """Something in between has answered."""
    town.stripe.sent = lambda *_: HttpResponse(400, content)
    town.send_in_vain(RIDE.assigned)
    assert town.paid() == (None, []) or town.state("payments") == "unknown"


# ── What Stripe answers ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "status", ["processing", "requires_confirmation", "requires_payment_method"]
)
def test_a_payment_that_is_not_finished_is_no_fact(town: Town, status: str) -> None:
    """Neither reserved nor declined: the attempt fails, and a later one looks again."""
    wrong = {"status": status, "last_payment_error": None}
    paths = ("/payment_intents", "/pay_000001")
    town.meddle(paths, lambda said: said if "data" in said else said | wrong)
    town.send_in_vain(RIDE.assigned)
    assert town.emitted() == []
    town.stripe.sent = town.stripe.answer
    town.send(RIDE.assigned)
    assert town.paid() == ("authorized", [("authorized", [], [])])


@pytest.fixture
def absent() -> Town:
    """Payment with a customer who would have to confirm each payment."""
    town = Town(Books(Troubles(pending=1.0), pending_s=math.inf))
    town.stripe.needs_customer = True
    return town


def test_a_payment_that_needs_the_customer_is_canceled_and_declined(absent: Town) -> None:
    """Nobody is there to confirm it, and it must not be charged when the ride is over."""
    absent.send(RIDE.assigned, RIDE.completed)
    assert absent.stripe.abandoned == ["pay_000001"]
    assert absent.stripe.keys == ["order_01-authorize", "pay_000001-abandon"]
    assert absent.state("payments") == "declined"
    assert absent.emitted() == ["PaymentDeclined"]
    assert absent.reasons() == ["the customer would have to confirm the payment"]


def test_a_payment_that_was_canceled_by_a_killed_run_is_declined(absent: Town) -> None:
    """It is found as canceled, and not as money that somebody has given back."""
    at_the_commit = Fault(CRASH_BEFORE, lambda _, what: what.startswith("TransactWriteItems"))
    with pytest.raises(Crash):
        absent.deliver("payment", absent.envelope(RIDE.assigned), fault=at_the_commit)
    absent.clock.advance(60)
    absent.send(RIDE.assigned)
    assert absent.stripe.abandoned == ["pay_000001"]
    assert (absent.state("payments"), absent.emitted()) == ("declined", ["PaymentDeclined"])


@pytest.mark.parametrize("end", [RIDE.cancelled, RIDE.overdue])
def test_a_payment_that_needs_the_customer_does_not_outlive_its_ride(
    absent: Town, end: Fact
) -> None:
    """The run that made it was killed before it heard that the customer is needed."""
    absent.stripe.then(_killed)
    with pytest.raises(Crash):
        absent.deliver("payment", absent.envelope(RIDE.assigned))
    absent.clock.advance(60)
    absent.send(end)
    assert absent.stripe.abandoned == ["pay_000001"]
    assert (absent.state("payments"), absent.emitted()) == ("cancelled", [])


def test_a_kept_error_of_the_cancellation_is_asked_past(absent: Town) -> None:
    """Its key has the numbers of the steps which may ask for it."""

    def refuse(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if (key or "").endswith("-abandon"):
            return HttpResponse(500, b"")
        return absent.stripe.answer(method, path, key, content)

    absent.stripe.sent = refuse
    absent.send_in_vain(RIDE.assigned)
    assert absent.stripe.abandoned == []
    absent.clock.advance(2 * 3600)
    absent.send(RIDE.assigned)
    assert absent.stripe.keys[-1] == "pay_000001-abandon-2"
    assert absent.emitted() == ["PaymentDeclined"]


@pytest.mark.parametrize("reason", [None, "requested_by_customer", "abandoned"])
def test_a_released_reservation_is_not_taken_for_an_abandoned_payment(
    town: Town, reason: str | None
) -> None:
    """Somebody has canceled it at Stripe, for whatever reason: the money was given back."""
    town.send(RIDE.assigned)
    town.stripe.refund(CALL, INTENT)
    town.meddle("/pay_000001", lambda said: said | {"cancellation_reason": reason})
    town.send(RIDE.completed)
    assert town.emitted() == ["PaymentAuthorized", "PaymentRefunded"]


def test_only_the_rides_own_payment_is_canceled(absent: Town) -> None:
    """The list says that it is, and the payment itself says something else."""
    wrong = {"metadata": {IN_METADATA: "order_02"}}
    absent.meddle("/pay_000001", lambda said: said | wrong)
    absent.send_in_vain(RIDE.assigned)
    assert absent.stripe.abandoned == []


def test_a_declined_payment_is_found_as_declined() -> None:
    """The answer of 402 was lost, and the key is forgotten. No second payment is asked for."""
    town = Town(Books(Troubles(declined=1.0), keys_s=0))
    town.stripe.then(_lost)
    town.send(RIDE.assigned)
    state, (found,) = town.paid()
    assert (state, found[0]) == ("declined", "declined")
    assert town.reasons()[0].startswith("insufficient funds")


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("payment_intents", {"metadata": {}}),
        ("payment_intents", {"metadata": {IN_METADATA: "order_02"}}),
        ("payment_intents", {"currency": "usd"}),
        ("payment_intents", {"amount": 125_000}),
        ("payment_intents", {"id": "pi 1"}),
        ("capture", {"id": "pay_000002"}),
        ("capture", {"metadata": {IN_METADATA: "order_02"}}),
        ("capture", {"currency": "usd"}),
        ("capture", {"amount_received": 1}),
        ("capture", {"amount_received": 125_000}),
        ("cancel", {"id": "pay_000002"}),
        ("cancel", {"amount": 1}),
    ],
    ids=str,
)
def test_an_answer_about_something_else_is_no_fact(
    town: Town, path: str, wrong: dict[str, Any]
) -> None:
    """Ride, payment, currency and amount are compared."""
    fact = {"capture": RIDE.completed, "cancel": RIDE.cancelled}.get(path, RIDE.assigned)
    if path != "payment_intents":
        town.send(RIDE.assigned)
    emitted = town.emitted()
    town.meddle(path, lambda said: said if "data" in said else said | wrong)
    with pytest.raises(GatewayAnswerError):
        town.send(fact)
    assert town.emitted() == emitted


@pytest.mark.parametrize("wrong", [{"status": "failed"}, {"payment_intent": "pi_2"}, {"amount": 1}])
def test_a_refund_that_did_not_happen_is_no_fact(town: Town, wrong: dict[str, Any]) -> None:
    """The duty stays, and a later attempt finds what was given back."""
    town.send(RIDE.assigned, RIDE.completed)
    town.meddle("/refunds", lambda said: said | wrong)
    if wrong.get("status") == "failed":
        town.stripe.books.finish = lambda request: Reply(200, {"amount": 1250})  # type: ignore[method-assign]
    town.send_in_vain(RIDE.cancelled)
    assert town.state("payments") == "undo due"
    assert "PaymentRefunded" not in town.emitted()


def test_money_that_somebody_gave_back_at_stripe_is_refunded(town: Town) -> None:
    """The intent still says succeeded: its charge tells."""
    town.send(RIDE.assigned, RIDE.completed)
    town.stripe.books.begin(GatewayRequest("/payments/pay_000001/refund", "by hand", {}))
    town.stripe.books.finish(GatewayRequest("/payments/pay_000001/refund", "by hand", {}))
    town.send(RIDE.cancelled)
    assert town.paid() == ("refunded", [("refunded", [1250], [1250])])


# ── Lost answers ──────────────────────────────────────────────────────────────────────────────────


def _lost() -> None:
    raise GatewayUnavailableError("the answer is lost")


def _killed() -> None:
    raise Crash


@pytest.mark.parametrize("hours", [1, 25])
def test_a_payment_whose_answer_was_lost_is_found_by_its_customer(hours: int) -> None:
    """Also when Stripe has forgotten the key, after a day. The search, which lags, is not asked."""
    town = Town()
    town.stripe.books = Books(keys_s=DAY, clock=lambda: town.clock() / 1000)
    paths: list[str] = []

    def killed(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        paths.append(path)
        if not town.stripe.ledger():
            response = town.stripe.answer(method, path, key, content)
            if method == "GET":
                return response
        raise GatewayUnavailableError("the answer is lost, and nothing more is answered")

    town.stripe.sent = killed
    town.send_in_vain(RIDE.assigned)
    assert len(town.stripe.ledger()) == 1
    assert not any("search" in path for path in paths)
    town.stripe.sent = town.stripe.answer
    town.clock.advance(hours * 3600)
    town.send(RIDE.assigned, RIDE.completed)
    assert town.paid() == ("captured", [("captured", [1250], [])])


def test_all_pages_of_a_customer_are_looked_through() -> None:
    """A hundred payments are in one, the newest first. The list is bounded to 35 days."""
    stripe = FakeStripe(clock=lambda: int(100 * DAY * 1000))
    found = stripe.authorize(CALL, Reservation("order_01", "cus_a", 1250, "EUR"))
    for number in range(250):
        body = {"reference": f"other_{number}", "customer": "cus_a", "amount": 1, "currency": "EUR"}
        request = GatewayRequest("/payments", f"{number}", body)
        stripe.books.begin(request)
        stripe.books.finish(request)
    lists: list[dict[str, list[str]]] = []

    def note(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if path.startswith(f"{INTENTS}?"):
            lists.append(parse_qs(path.partition("?")[2]))
        return stripe.answer(method, path, key, content)

    stripe.sent = note
    assert stripe.find(CALL, "order_01", "cus_a") == found
    assert len(lists) == 3
    assert {each["created[gte]"][0] for each in lists} == {str(int(65 * DAY))}
    assert stripe.find(CALL, "order_02", "cus_a") is None


def test_a_customer_with_more_payments_than_anybody_looks_through_is_an_error() -> None:
    """What was not looked through is not known to be missing."""
    stripe = FakeStripe()
    page = {"data": [{"id": "pi_1", "metadata": {}}], "has_more": True}
    stripe.sent = lambda *_: HttpResponse(200, json.dumps(page).encode())
    with pytest.raises(GatewayUnavailableError, match="more than 2000 payments"):
        stripe.find(CALL, "order_01", "cus_a")


def test_two_payments_of_one_ride_are_settled_by_hand(town: Town) -> None:
    """Nobody chooses one of them."""
    town.send(RIDE.assigned)
    body = {"reference": "order_01", "customer": "cus_a", "amount": 1250, "currency": "EUR"}
    request = GatewayRequest("/payments", "another", body)
    town.stripe.books.begin(request)
    town.stripe.books.finish(request)
    with pytest.raises(GatewayAnswerError, match="2 payments of order_01"):
        town.stripe.find(CALL, "order_01", "cus_a")


def test_the_list_that_has_no_time_left_is_not_read_on() -> None:
    """The deadline counts between pages too."""
    now = iter([0, *[0] * 3, *[60_000] * 20])
    stripe = FakeStripe(clock=lambda: next(now))
    page = {"data": [{"id": "pi_1", "metadata": {}}], "has_more": True}
    stripe.sent = lambda *_: HttpResponse(200, json.dumps(page).encode())
    with pytest.raises(GatewayUnavailableError, match="no time was left"):
        stripe.find(Call(60_000, lambda: False), "order_01", "cus_a")


# ── Which gateway a stack has ─────────────────────────────────────────────────────────────────────


def test_the_protocol_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL, Stripe is asked at its own address, in a fixed version of its API."""
    asked: list[tuple[str, HttpRequest]] = []

    class Connection:
        def __init__(self, url: str, *limits: object) -> None:
            self.url = url

        def exchange(self, request: HttpRequest) -> HttpResponse:
            asked.append((self.url, request))
            return HttpResponse(200, b'{"data": [], "has_more": false, "payments": []}')

    monkeypatch.setattr(persistent_gateway, "GatewayConnection", Connection)
    settings = replace(from_environment(payment.Settings), payment_gateway_url="")
    ours = payment.gateway_of(replace(settings, payment_gateway_url="https://gateway.example"))
    stripe = payment.gateway_of(replace(settings, payment_gateway_protocol="stripe"))
    for gateway in (ours, stripe):
        assert gateway.find(CALL, "order_01", "cus_a") is None
    assert [url for url, _ in asked] == ["https://gateway.example", "https://api.stripe.com"]
    assert asked[1][1].headers == {
        "Content-Type": "application/x-www-form-urlencoded",
        "Stripe-Version": "2025-03-31.basil",
    }


def test_a_refused_refund_is_said(town: Town) -> None:
    """No answer is mistaken for money that was given back."""
    town.send(RIDE.assigned, RIDE.completed)
    error = json.dumps({"error": {"type": "card_error", "code": "expired_or_canceled_card"}})

    def refuse(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if path == "/v1/refunds":
            return HttpResponse(402, error.encode())
        return town.stripe.answer(method, path, key, content)

    town.stripe.sent = refuse
    with pytest.raises(GatewayRefusedError, match="402 expired_or_canceled_card"):
        town.send(RIDE.cancelled)
    assert town.state("payments") == "undo due"
