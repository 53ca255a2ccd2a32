"""The adapter of Stripe: what it asks for, and what it makes of answers and errors.

test_payment_gateways.py has what becomes of rides.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, cast
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

import payment
import stripe_gateway
from carride.facts import Fact
from carride.settings import from_environment
from gateway import (
    Call,
    GatewayAccountError,
    GatewayAnswerError,
    GatewayError,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
    Reservation,
    Stands,
)
from gateway_connection import HttpRequest, HttpResponse
from gateway_rules import Account, Intent
from local.simulated_gateway import Books, Troubles
from tests.functions.gateways import FIRST, FakeGateway, send
from tests.functions.world import World
from tests.kit.rides import Life

RIDE: Final = Life(customer="cus_a")
DEARER: Final = replace(RIDE.completed, price=2000)
CALL: Final = Call(None, lambda: False)
KNOWN: Final = Known(RIDE.order_id, FIRST, 1250, "EUR")
RESERVATION: Final = Reservation(RIDE.order_id, "cus_a", 1250, "EUR")
INTENTS: Final = "/v1/payment_intents"
LONG_AGO: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Town(World):
    """The functions, of which payment gets events, and Stripe."""

    def send(self, *facts: Fact) -> None:
        """Deliver facts to payment."""
        for fact in facts:
            assert self.deliver("payment", self.envelope(fact)) in {"New", "Retried", "Takeover"}

    def paid(self) -> tuple[object, list[tuple[str, list[int], list[int]]]]:
        """Return the state of the ride's payment in the table, and all payments at Stripe."""
        found = [
            (each["status"], each["captures"], each["refunds"]) for each in self.gateway.ledger()
        ]
        return self.state("payments"), found

    def reasons(self) -> list[Any]:
        """Return why payments were declined."""
        declined = [event.data for event in self.outbox() if event.type == "PaymentDeclined"]
        return [cast("Any", each).reason for each in declined]


def prepared(gateway: FakeGateway) -> Known:
    """Prepare a payment."""
    made = gateway.prepare(CALL, RESERVATION, LONG_AGO)
    return Known(RIDE.order_id, made.payment_id, made.amount, made.currency)


def meddle(
    gateway: FakeGateway,
    method: str,
    ending: str,
    answer: Callable[[HttpResponse], HttpResponse],
) -> None:
    """Have what Stripe answers to requests whose path ends so be changed."""

    def changed(asked: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        response = gateway.answer(asked, path, key, content)
        is_meant = asked == method and path.partition("?")[0].endswith(ending)
        return answer(response) if is_meant else response

    gateway.sent = changed


def refuse(gateway: FakeGateway, ending: str, *answers: HttpResponse) -> None:
    """Have the next changes whose path ends so get these answers, and not take effect."""
    left = [*answers]

    def refused(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if method == "POST" and path.endswith(ending) and left:
            return left.pop(0)
        return gateway.answer(method, path, key, content)

    gateway.sent = refused


NOTHING: Final = HttpResponse(200, b"")


def saying(**changes: object) -> Callable[[HttpResponse], HttpResponse]:
    """Return what replaces fields of an answer."""
    return lambda response: HttpResponse(
        200, json.dumps({**json.loads(response.content), **changes}).encode()
    )


def refusing(status: int, **error: object) -> Callable[[HttpResponse], HttpResponse]:
    """Return what replaces an answer by an error."""
    body = {"error": {"type": "invalid_request_error", "message": "No.\n Never.", **error}}
    return lambda _: HttpResponse(status, json.dumps(body).encode())


# ── What is asked for ─────────────────────────────────────────────────────────────────────────────


def test_a_ride_takes_five_requests_and_its_refund_one_more() -> None:
    """Each has a key that names the ride or its payment; docs/limits.md has their number."""
    town = Town()
    sent: list[tuple[str, str]] = []

    def note(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        sent.append((method, path.partition("?")[0]))
        return town.gateway.answer(method, path, key, content)

    town.gateway.sent = note
    town.send(RIDE.assigned, RIDE.completed)
    assert sent == [
        ("GET", INTENTS),
        ("GET", "/v1/customers/cus_a"),
        ("POST", INTENTS),
        ("POST", f"{INTENTS}/{FIRST}/confirm"),
        ("POST", f"{INTENTS}/{FIRST}/capture"),
    ]
    town.send(RIDE.cancelled)
    assert sent[5:] == [("POST", "/v1/refunds")]
    assert town.gateway.keys == [
        "order_01-prepare-0-1",
        f"{FIRST}-confirm-0-1",
        f"{FIRST}-capture-0-1",
        f"{FIRST}-refund-0-1",
    ]
    assert town.gateway.headers["Stripe-Version"] == "2025-03-31.basil"


def test_a_cancelled_ride_is_released_with_one_request() -> None:
    """What is reserved is canceled, and not captured."""
    town = Town()
    town.send(RIDE.assigned, RIDE.cancelled)
    assert town.paid() == ("refunded", [("refunded", [], [1250])])
    assert town.gateway.asked == ["find", "customer", "payment_intents", "confirm", "cancel"]


def test_a_payment_is_prepared_without_moving_anything() -> None:
    """Nothing is reserved before it is confirmed, and nothing taken before it is captured."""
    gateway = FakeGateway()
    known = prepared(gateway)
    assert gateway.ledger() == []
    assert gateway.reserve(CALL, known).stands is Stands.HELD
    assert [each["captures"] for each in gateway.ledger()] == [[]]


def test_less_is_captured_than_was_reserved() -> None:
    """The intent keeps the amount that was reserved: what was received is what counts."""
    town = Town()
    town.send(RIDE.assigned, replace(RIDE.completed, price=900))
    assert town.item("payments")["amount"] == 900
    town.send(RIDE.cancelled)
    assert town.paid() == ("refunded", [("refunded", [900], [900])])
    assert [cast("Any", event.data).amount for event in town.outbox()] == [1250, 900, 900]


@pytest.mark.parametrize(
    ("account", "capped", "captured"),
    [
        (Account(), 0.0, 2000),
        (Account(), 1.0, 1250),
        (Account(increments=False), 0.0, 1250),
    ],
)
def test_a_reservation_is_raised_where_account_and_card_allow_it(
    account: Account, capped: float, captured: int
) -> None:
    """Otherwise what is reserved is captured, and the payment says so.

    An account without the feature is asked for it once in a process.
    """
    books = Books(Troubles(capped=capped), account=account, clock=lambda: 4e9)
    town = Town(FakeGateway(books))
    town.send(RIDE.assigned, DEARER)
    assert town.paid() == ("captured", [("captured", [captured], [])])
    assert ("raiseRefused" in town.item("payments")) == (captured < 2000)
    before = len(town.gateway.asked)
    town.send(Life("order_02", customer="cus_b").assigned)
    assert len(town.gateway.asked) - before == 4


# ── Who and what can be charged ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lists_unknown", [True, False])
@pytest.mark.parametrize(
    "customer", ["cus_nobody", "cus_b_cardless", "cus_c_declined", "cus_d_asked"]
)
def test_a_ride_that_cannot_be_paid_is_declined_at_once(
    customer: str, *, lists_unknown: bool
) -> None:
    """Also that of a customer whom Stripe does not know, however it says so; a reason is given."""
    account = Account(lists_unknown=lists_unknown)
    town = Town(FakeGateway(account=account))
    ride = Life(customer=customer)
    town.send(ride.assigned, ride.completed)
    assert town.state("payments") == "declined"
    assert town.emitted() == ["PaymentDeclined"]
    assert town.reasons() not in (["declined"], [None])
    statuses = {each.status for each in town.gateway.books.intents.values()}
    assert statuses <= {"canceled"}


@pytest.mark.parametrize("currency", ["JPY", "KWD"])
def test_a_currency_without_cents_is_declined(currency: str) -> None:
    """Stripe counts in the smallest unit: 1250 is not 12.50 of them."""
    town = Town()
    town.send(replace(RIDE.assigned, currency=currency))
    assert town.paid() == ("declined", [])
    assert currency in town.reasons()[0]


def test_the_card_of_another_customer_is_not_charged() -> None:
    """Stripe answers about somebody else: the attempt fails, and nothing is asked for."""
    gateway = FakeGateway()
    meddle(gateway, "GET", "/customers/cus_a", saying(id="cus_b"))
    with pytest.raises(GatewayAnswerError):
        prepared(gateway)
    assert gateway.asked == ["find", "customer"]


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────

REFUSED: Final = GatewayRefusedError
ACCOUNT: Final = GatewayAccountError
LATER: Final = GatewayUnavailableError
ERRORS: Final[list[tuple[int, dict[str, object], type[GatewayError]]]] = [
    (402, {"type": "card_error", "code": "card_declined"}, REFUSED),
    (400, {"code": "resource_missing", "param": "customer"}, REFUSED),
    (404, {"code": "resource_missing"}, REFUSED),
    (400, {"param": "payment_method"}, REFUSED),
    (400, {"param": "currency"}, REFUSED),
    (400, {"param": "amount", "code": "parameter_invalid_integer"}, REFUSED),
    (400, {"code": "amount_too_small"}, REFUSED),
    (400, {"code": "amount_too_large"}, REFUSED),
    (400, {"code": "payment_method_unactivated"}, ACCOUNT),
    (400, {"code": "parameter_unknown", "param": "receipt"}, ACCOUNT),
    (404, {}, ACCOUNT),
    (400, {"type": "idempotency_error"}, LATER),
    (401, {}, LATER),
    (403, {}, LATER),
    (409, {"code": "idempotency_key_in_use"}, LATER),
    (424, {"type": "api_error"}, LATER),
    (429, {"code": "lock_timeout"}, LATER),
    (429, {"code": "rate_limit"}, LATER),
    (500, {"type": "api_error"}, LATER),
    (503, {"type": "api_error"}, LATER),
]


@pytest.mark.parametrize(("status", "error", "kind"), ERRORS, ids=str)
def test_an_error_is_about_the_ride_or_about_the_account_or_decides_nothing(
    status: int, error: dict[str, object], kind: type[GatewayError]
) -> None:
    """Its code and parameter say which; the text becomes the reason, and is in no message."""
    gateway = FakeGateway()
    meddle(gateway, "POST", INTENTS, refusing(status, **error))
    with pytest.raises(kind, match=str(status)) as caught:
        prepared(gateway)
    assert "Never" not in str(caught.value)
    if isinstance(caught.value, GatewayRefusedError | GatewayAccountError):
        assert caught.value.reason == "No. Never."


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"error": 7}', b'{"code": "x"}'])
@pytest.mark.parametrize("status", [400, 402, 404])
def test_an_error_that_is_not_stripes_decides_nothing(status: int, content: bytes) -> None:
    """Something in between has answered."""
    gateway = FakeGateway()
    meddle(gateway, "POST", INTENTS, lambda _: HttpResponse(status, content))
    with pytest.raises(GatewayUnavailableError):
        prepared(gateway)


@pytest.mark.parametrize("said", ["", "\n\t", ["no"], None, "\ud800"])
def test_a_refusal_without_a_text_has_its_code_as_a_reason(said: object) -> None:
    """An event can hold it."""
    gateway = FakeGateway()
    error = {"type": "card_error", "code": "card_declined", "message": said}
    meddle(gateway, "POST", INTENTS, refusing(402, **error))
    with pytest.raises(GatewayRefusedError) as caught:
        prepared(gateway)
    assert caught.value.reason == "the gateway refused with 402 card_declined"


@pytest.mark.parametrize("error", [{}, {"code": "payment_method_unactivated"}])
def test_a_refused_raise_takes_what_is_held(error: dict[str, object]) -> None:
    """The card, its issuer or the account allows none, and Stripe has no code for that."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.reserve(CALL, known)
    refuse(gateway, "/increment_authorization", refusing(400, **error)(NOTHING))
    assert gateway.capture(CALL, known, 2000).amount == 1250
    assert gateway.ledger()[0]["captures"] == [1250]


@pytest.mark.parametrize(
    ("status", "error", "stands"),
    [
        (402, {"type": "card_error"}, Stands.RETURNED),
        (400, {"code": "charge_expired_for_capture"}, Stands.RETURNED),
        (400, {"code": "parameter_unknown"}, None),
        (500, {}, None),
    ],
)
def test_a_refused_capture_releases_what_is_held(
    status: int, error: dict[str, object], stands: Stands | None
) -> None:
    """If the refusal is about the ride; no event will ask for the money again."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.reserve(CALL, known)
    refuse(gateway, "/capture", *[refusing(status, **error)(NOTHING)] * 8)
    if stands is None:
        with pytest.raises((GatewayAccountError, GatewayUnavailableError)):
            gateway.capture(CALL, known, 1250)
        assert gateway.ledger()[0]["status"] == "authorized"
    else:
        released = gateway.capture(CALL, known, 1250)
        assert (released.stands, released.reason) == (stands, "No. Never.")


def test_a_capture_that_took_effect_and_was_answered_with_an_error_is_a_capture() -> None:
    """The payment is looked at after every refusal, and decides."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.reserve(CALL, known)
    meddle(gateway, "POST", "/capture", refusing(402, type="card_error"))
    taken = gateway.capture(CALL, known, 1250)
    assert (taken.stands, taken.amount) == (Stands.TAKEN, 1250)


def test_a_payment_of_another_account_is_about_the_account() -> None:
    """Stripe does not know our own payment."""
    with pytest.raises(GatewayAccountError, match="404 resource_missing"):
        FakeGateway().reserve(CALL, KNOWN)


# ── What Stripe answers ───────────────────────────────────────────────────────────────────────────

CHARGED: Final = {"charge": "succeeded"}
STANDS: Final[list[tuple[dict[str, Any], Stands]]] = [
    ({"status": "requires_confirmation"}, Stands.PREPARED),
    ({"status": "requires_payment_method", "charge": "failed"}, Stands.REFUSED),
    ({"status": "requires_action"}, Stands.REFUSED),
    ({"status": "processing", "settles_s": 9_000_000_000}, Stands.PENDING),
    ({"status": "requires_capture", "ends_s": 9_000_000_000, **CHARGED}, Stands.HELD),
    ({"status": "succeeded", "captures": [1250], **CHARGED}, Stands.TAKEN),
    (
        {"status": "succeeded", "captures": [1250], "refunds": [1250], **CHARGED},
        Stands.RETURNED,
    ),
    ({"status": "canceled", "refunds": [1250], **CHARGED}, Stands.RETURNED),
    ({"status": "canceled", "charge": "failed"}, Stands.ENDED),
    ({"status": "canceled"}, Stands.ENDED),
]


def intent(name: str = FIRST, **changes: Any) -> Intent:
    """Return a PaymentIntent of the ride."""
    given = {"amount": 1250, "currency": "eur", "created_s": 4_000_000_000, **changes}
    return Intent(id=name, customer="cus_a", ride=RIDE.order_id, **given)


@pytest.mark.parametrize(("changes", "stands"), STANDS, ids=str)
def test_a_payment_stands_where_the_table_says(changes: dict[str, Any], stands: Stands) -> None:
    """The status alone does not say it: a canceled payment was held if its charge succeeded."""
    gateway = FakeGateway()
    gateway.books.intents[FIRST] = intent(**changes)
    found = gateway.find(CALL, RIDE.order_id, "cus_a", LONG_AGO)
    assert found is not None
    assert found.stands is stands


def test_of_several_payments_the_one_with_money_is_the_rides() -> None:
    """Others were prepared, and never confirmed."""
    order = (
        *(Stands.TAKEN, Stands.HELD, Stands.PENDING, Stands.RETURNED),
        *(Stands.REFUSED, Stands.PREPARED, Stands.ENDED),
    )
    changes = {stands: each for each, stands in STANDS}
    for better, worse in pairwise(order):
        for first, last in ((better, worse), (worse, better)):
            gateway = FakeGateway()
            for stands in (first, last):
                gateway.books.intents[f"pi_{stands}"] = intent(f"pi_{stands}", **changes[stands])
            found = gateway.find(CALL, RIDE.order_id, "cus_a", LONG_AGO)
            assert found is not None
            assert found.stands is better


def test_a_charge_that_is_not_shown_is_not_believed() -> None:
    """Its id alone does not say whether it succeeded."""
    gateway = FakeGateway()
    known = prepared(gateway)
    meddle(gateway, "POST", "/confirm", saying(latest_charge="ch_1"))
    with pytest.raises(GatewayAnswerError, match="latest_charge"):
        gateway.reserve(CALL, known)


def test_a_prepared_payment_of_another_amount_is_not_used() -> None:
    """The price has changed since: another payment is made, and that one is never confirmed."""
    gateway = FakeGateway()
    first = prepared(gateway)
    assert prepared(gateway) == first
    other = gateway.prepare(CALL, RESERVATION._replace(amount=2000), LONG_AGO)
    assert other.amount == 2000


def test_a_raised_payment_is_released_with_what_it_has() -> None:
    """The run that raised it was killed. An answer that is wrong is not believed."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.reserve(CALL, known)
    gateway.books.intents[FIRST].amount = 2000
    meddle(gateway, "POST", "/cancel", saying(amount=12_500))
    with pytest.raises(GatewayAnswerError):
        gateway.end(CALL, known, taken=False, gives_back=True)
    gateway.sent = gateway.answer
    assert gateway.end(CALL, known, taken=False, gives_back=True).amount == 2000


def test_a_payment_that_is_worked_on_is_looked_at_again() -> None:
    """If it stays so, the attempt fails, and decides nothing."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.books.intents[FIRST].status = "processing"
    gateway.books.intents[FIRST].settles_s = 9_000_000_000
    with pytest.raises(GatewayUnavailableError):
        gateway.reserve(CALL, known)


@pytest.mark.parametrize(
    "wrong", [{"status": "failed"}, {"payment_intent": "pi_2"}, {"amount": 1}, {"status": None}]
)
def test_a_refund_that_did_not_happen_is_no_refund(wrong: dict[str, Any]) -> None:
    """A failed one is asked for again, under another key."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.reserve(CALL, known)
    gateway.capture(CALL, known, 1250)
    refund = {"status": "succeeded", "payment_intent": FIRST, "amount": 1250, **wrong}
    refuse(gateway, "/refunds", HttpResponse(200, json.dumps(refund).encode()))
    if "status" in wrong:
        again = gateway.end(CALL, known, taken=True, gives_back=True)
        assert again.stands is Stands.RETURNED
        assert gateway.keys[-1].endswith("-refund-0-2")
        assert gateway.ledger()[0]["refunds"] == [1250]
        return
    with pytest.raises(GatewayAnswerError):
        gateway.end(CALL, known, taken=True, gives_back=True)


def test_a_refused_refund_is_said() -> None:
    """No answer is mistaken for money that was given back."""
    gateway = FakeGateway()
    known = prepared(gateway)
    gateway.reserve(CALL, known)
    gateway.capture(CALL, known, 1250)
    error = refusing(402, type="card_error", code="expired_or_canceled_card")
    refuse(gateway, "/refunds", error(NOTHING))
    with pytest.raises(GatewayRefusedError, match="402 expired_or_canceled_card"):
        gateway.end(CALL, known, taken=True, gives_back=True)


@pytest.mark.parametrize("name", ["", "p" * 65, "pi 1", "pi\n", "../ledger", "zahlung_ü", 1, None])
def test_a_payment_whose_id_no_event_can_hold_is_an_error(name: object) -> None:
    """The message names the field, not its value."""
    gateway = FakeGateway()
    meddle(gateway, "POST", INTENTS, saying(id=name))
    with pytest.raises(GatewayAnswerError, match="no id "):
        prepared(gateway)


# ── Lists ─────────────────────────────────────────────────────────────────────────────────────────


def test_all_pages_of_a_customer_are_looked_through() -> None:
    """A hundred payments are in one, the newest first, and only those since a time."""
    gateway = FakeGateway()
    first = prepared(gateway)
    for number in range(250):
        name = f"pi_other_{number}"
        gateway.books.intents[name] = intent(name)
        gateway.books.intents[name].ride = "order_of_somebody"
    lists: list[dict[str, list[str]]] = []

    def note(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if path.startswith(f"{INTENTS}?"):
            lists.append(parse_qs(path.partition("?")[2]))
        return gateway.answer(method, path, key, content)

    gateway.sent = note
    found = gateway.find(CALL, RIDE.order_id, "cus_a", LONG_AGO)
    assert found is not None
    assert found.payment_id == first.payment_id
    assert len(lists) == 3
    assert {each["created[gte]"][0] for each in lists} == {str(int(LONG_AGO.timestamp()))}
    later = datetime.fromtimestamp(4_000_000_001, UTC)
    assert gateway.find(CALL, RIDE.order_id, "cus_a", later) is None


def test_what_was_not_looked_through_is_not_known_to_be_missing() -> None:
    """No time is left for the second page."""
    now = iter([0, *[60_000] * 20])
    gateway = FakeGateway(clock=lambda: next(now))
    page = {"data": [{"id": "pi_1", "metadata": {}}], "has_more": True}
    gateway.sent = lambda *_: HttpResponse(200, json.dumps(page).encode())
    with pytest.raises(GatewayUnavailableError, match="no time was left"):
        gateway.find(Call(60_000, lambda: False), RIDE.order_id, "cus_a", LONG_AGO)


@pytest.mark.parametrize(("reserved_s", "tries"), [(5.9, 0), (6.1, 1)])
def test_time_is_kept_for_the_commit(reserved_s: float, tries: int) -> None:
    """A try that could not end two seconds before the deadline is not begun."""
    gateway = FakeGateway()
    asked: list[str] = []

    def nobody(*request: Any) -> HttpResponse:
        asked.append(request[1])
        raise GatewayUnavailableError("nobody is there")

    gateway.sent = nobody
    call = Call(int(1_000 * reserved_s), lambda: len(asked) > 0)
    with pytest.raises(GatewayUnavailableError):
        gateway.find(call, RIDE.order_id, "cus_a", LONG_AGO)
    assert len(asked) == tries


def test_a_ride_is_looked_for_from_its_first_event_on_or_for_as_long_as_tables_are_kept() -> None:
    """A car's event finds what its own attempts have made, another one what a lost table knew."""
    town = Town()
    since: list[float] = []

    def note(method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        if path.startswith(f"{INTENTS}?"):
            asked = parse_qs(path.partition("?")[2])["created[gte]"][0]
            since.append(town.now().timestamp() - float(asked))
        return town.gateway.answer(method, path, key, content)

    town.gateway.sent = note
    town.send(RIDE.assigned, Life("order_02", customer="cus_a").cancelled)
    assert since == [timedelta(minutes=10).total_seconds(), timedelta(days=35).total_seconds()]


# ── Which gateway a stack has ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, HttpRequest]]:
    """The requests of gateways that are made of settings, with the URL of each."""
    sent: list[tuple[str, HttpRequest]] = []

    class Connection:
        def __init__(self, url: str, *limits: object) -> None:
            self.url = url

        def exchange(self, request: HttpRequest) -> HttpResponse:
            sent.append((self.url, request))
            return HttpResponse(200, b'{"data": [], "has_more": false}')

    monkeypatch.setattr(stripe_gateway, "GatewayConnection", Connection)
    return sent


def test_the_gateway_is_a_setting(asked: list[tuple[str, HttpRequest]]) -> None:
    """Its URL, and a fixed version of the API."""
    settings = from_environment(payment.Settings)
    gateway = payment.gateway_of(replace(settings, payment_gateway_url="https://gateway.example"))
    assert gateway.find(CALL, RIDE.order_id, "cus_a", LONG_AGO) is None
    ((url, request),) = asked
    assert url == "https://gateway.example"
    assert request.headers == {
        "Content-Type": "application/x-www-form-urlencoded",
        "Stripe-Version": "2025-03-31.basil",
    }


def test_the_books_know_stripes_parameters_only() -> None:
    """An unknown or a missing one is an error, so that a mistake of the adapter is found here."""
    form = {
        "amount": "1250",
        "currency": "eur",
        "customer": "cus_a",
        "payment_method": "pm_card_of_cus_a",
        "payment_method_types[]": "card",
        "capture_method": "manual",
        "metadata[carride_ride]": "order_01",
    }

    def status(fields: dict[str, str]) -> int:
        text = "&".join(f"{name}={value}" for name, value in fields.items())
        return send(Books(clock=lambda: 4e9), "POST", INTENTS, form=text).status

    assert status(form) == 200
    assert status(form | {"off_session": "true"}) == 400
    for name in form:
        assert status({key: each for key, each in form.items() if key != name}) == 400, name
