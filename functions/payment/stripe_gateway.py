"""Stripe: its PaymentIntents, captured by hand, behind the port of `PersistentGateway`.

A ride has one PaymentIntent, whose metadata names the ride. The ride's ``customerID`` is the id of
a customer of Stripe (``cus_…``), who pays with the default payment method. Nobody is there to
confirm a payment, so each is made "off session".

What Stripe's answers mean to payment (https://docs.stripe.com/api/errors)::

    a PaymentIntent that requires_capture                        authorized
    succeeded; succeeded and the charge is refunded              captured; refunded
    canceled, by payment, by hand or because the hold has ended  refunded
    requires_payment_method after an error                       declined
    requires_action, which nobody is there for                   canceled as abandoned: declined
    in any other status                                          the attempt fails

    402: the card or its issuer says no                          refused for good
    400, 404 to a raise: the card or the account allows none     refused for good
    400 about the amount, or the end of the hold                 refused for good
    400 idempotency_error: the key has another request           look, and ask again
    400, 404: our request, our settings or the account is wrong  the attempt fails
    401, 403, 409, 424, 429, 500 and above                       ask again, under the same key

**A payment whose answer was lost** is found by listing the customer's PaymentIntents. A list
includes what was just made; the search API may not (https://docs.stripe.com/search#data-freshness).
A repetition that runs beside the first request has the same key, so it gets the first answer, or a
409. Stripe keeps keys for at least a day. Under a key it also keeps errors, those of status 500
included (https://docs.stripe.com/api/idempotent_requests). Payment uses a new key only when the
first request cannot be finished any more, as for any gateway. Webhooks are not needed.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from msgspec import Meta, Struct, ValidationError, convert

from carride.ride import Cents
from gateway import (
    Call,
    Charge,
    GatewayAnswerError,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
    Status,
    Step,
)
from gateway_access import Access
from gateway_answers import PAYMENT_ID, code_of, expect, json_of, read_answer, reason_of
from persistent_gateway import Change, PersistentGateway, Reservation

URL: Final = "https://api.stripe.com"
VERSION: Final = "2025-03-31.basil"
"""Of the API. Without it an account's own version would answer."""
RIDE: Final = "carride_ride"
"""The key of the metadata that has the ride."""

_INTENTS: Final = "/v1/payment_intents"
_LOOKBACK: Final = timedelta(days=35)
"""How old a payment may be that is found by its ride. Dead letters are kept for 14 days, and a
table is restored to 35 days ago at most."""
_PAGE: Final = 100
_PAGES: Final = 20

_STATUSES: Final[Mapping[str, Status]] = {
    "requires_capture": Status.AUTHORIZED,
    "succeeded": Status.CAPTURED,
    "canceled": Status.REFUNDED,
}
_NEEDS_CUSTOMER: Final = "requires_action"
_ABANDONED: Final = "abandoned"
"""Why payment cancels a PaymentIntent that needs the customer."""
_FINAL_CODES: Final = frozenset(
    {
        "amount_too_large",
        "amount_too_small",
        "capture_charge_authorization_expired",
        "charge_expired_for_capture",
    }
)
"""Errors of status 400 that are about one ride, whatever our settings are."""
_OUR_REQUEST: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND})

_WITHOUT_DECIMALS: Final = frozenset(
    {"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "UGX"}
    | {"VND", "VUV", "XAF", "XOF", "XPF"}
)
_WITH_THREE_DECIMALS: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
_WITHOUT_CENTS: Final = _WITHOUT_DECIMALS | _WITH_THREE_DECIMALS
"""Currencies whose smallest unit is not a hundredth. Stripe counts in smallest units, and a ride's
price in hundredths: 1250 would be a hundred times too much, or a tenth
(https://docs.stripe.com/currencies)."""


class _Error(Struct, frozen=True):
    """What is wrong with a request, or with a payment."""

    type: str = ""
    code: Any = None
    message: Any = None


class _Charged(Struct, frozen=True):
    """The charge of a PaymentIntent."""

    refunded: bool = False  # in full


class _Intent(Struct, frozen=True):
    """A PaymentIntent."""

    id: Annotated[str, Meta(pattern=PAYMENT_ID)]
    status: str
    amount: Cents
    currency: Annotated[str, Meta(pattern=r"^[a-z]{3}$(?!\n)")]
    metadata: dict[str, Any]
    amount_received: Cents = 0
    last_payment_error: _Error | None = None
    latest_charge: str | _Charged | None = None  # its id, if nobody asked for more
    cancellation_reason: str | None = None


class _Listed(Struct, frozen=True):
    """A PaymentIntent in a list."""

    id: str
    metadata: dict[str, Any]


class _Page(Struct, frozen=True):
    """A page of a list, the newest first."""

    data: list[_Listed]
    has_more: bool


class _Invoices(Struct, frozen=True):
    """How a customer pays."""

    default_payment_method: str | None = None


class _Customer(Struct, frozen=True):
    """A customer. A deleted one has only its id."""

    id: str
    invoice_settings: _Invoices = _Invoices()


class _Refund(Struct, frozen=True):
    """Money that was given back."""

    status: str
    payment_intent: str
    amount: Cents


class StripeGateway(PersistentGateway):
    """Stripe, by its PaymentIntents.

    Args:
        url: where it is; Stripe's own address if it is empty.
        access: adds the account's secret key.
        increments: whether the account may raise reservations. Stripe refuses every payment of
            another account that asks for it (https://docs.stripe.com/payments/incremental-authorization).
        options: those of `PersistentGateway`.
    """

    content_type = "application/x-www-form-urlencoded"
    longest_answer = 1_048_576  # a page of payments has about 300 kB
    requests_of_a_try = 4  # the list, a found payment or the customer, the request itself

    def __init__(
        self, url: str, access: Access | None, *, increments: bool = False, **options: Any
    ) -> None:
        super().__init__(url or URL, access, **options)
        self._increments = increments

    def _find(self, call: Call, order_id: str, customer_id: str) -> Charge | None:
        found = [
            listed.id
            for listed in self._payments_of(call, customer_id)
            if listed.metadata.get(RIDE) == order_id
        ]
        if len(found) > 1:
            raise GatewayAnswerError(
                f"Stripe has {len(found)} payments of {order_id}: settle it by hand"
            )
        if not found:
            return None
        known = Known(order_id, found[0])
        intent = _known_intent(self._read(known), known)
        if intent.status == _NEEDS_CUSTOMER:
            intent = _known_intent(self._abandon(call, known), known)
        return _charge(intent)

    def _abandon(self, call: Call, known: Known) -> object:
        """Cancel a PaymentIntent that waits for the customer, who is not there.

        Otherwise the ride would wait for ever, or be charged after it has ended.
        """
        # Both a reservation and its return may find the payment, so both numbers are in the key.
        key = f"{known.payment_id}-abandon"
        key = call.key(Step.RESERVE, key)
        key = call.key(Step.GIVE_BACK, key)
        form = {"cancellation_reason": _ABANDONED}
        return self._request("POST", f"{_path_of(known)}/cancel", key, form)

    def _look(self, known: Known) -> Charge:
        return _known_charge(self._read(known), known)

    def _read(self, known: Known) -> object:
        return self._request("GET", f"{_path_of(known)}?expand[]=latest_charge")

    def _reserve(self, reservation: Reservation, key: str) -> Charge:
        if reservation.currency in _WITHOUT_CENTS:
            reason = f"{reservation.currency} has no hundredths, in which rides are priced"
            raise GatewayRefusedError(reason, reason)
        form = {
            "amount": reservation.amount,
            "currency": reservation.currency.lower(),
            "customer": reservation.customer_id,
            "payment_method": self._card_of(reservation.customer_id),
            "payment_method_types[]": "card",
            "capture_method": "manual",
            "confirm": "true",
            "off_session": "true",
            f"metadata[{RIDE}]": reservation.order_id,
        }
        if self._increments:
            form["payment_method_options[card][request_incremental_authorization]"] = "if_available"
        intent = read_answer(self._request("POST", _INTENTS, key, form), _Intent)
        expect("ride", intent.metadata.get(RIDE), reservation.order_id)
        charge = _charge(intent)
        expect("currency", charge.currency, reservation.currency)
        expect("amount", charge.amount, reservation.amount)
        return charge

    def _change(
        self, known: Known, before: Charge, change: Change, key: str, amount: int
    ) -> Charge:
        path = _path_of(known)
        match change:
            case Change.ADJUST:
                charge = self._raise(known, key, amount)
            case Change.CAPTURE:
                form = {"amount_to_capture": amount}
                charge = _known_charge(self._request("POST", f"{path}/capture", key, form), known)
            case Change.REFUND if before.status is Status.AUTHORIZED:
                charge = _known_charge(self._request("POST", f"{path}/cancel", key, {}), known)
            case Change.REFUND:
                charge = self._refund(known, before, key)
        expect("currency", charge.currency, before.currency)
        expect("amount", charge.amount, amount)
        return charge

    def _raise(self, known: Known, key: str, amount: int) -> Charge:
        """Ask the card's issuer to reserve more."""
        if not self._increments:
            reason = "the account raises no reservations (StripeIncrements)"
            raise GatewayRefusedError(reason, reason)
        path = f"{_path_of(known)}/increment_authorization"
        return _known_charge(self._request("POST", path, key, {"amount": amount}), known)

    def _refund(self, known: Known, before: Charge, key: str) -> Charge:
        """Give back what was captured."""
        form = {
            "payment_intent": known.payment_id,
            f"metadata[{RIDE}]": known.order_id,
        }
        answer = self._request("POST", "/v1/refunds", key, form)
        refund = read_answer(answer, _Refund)
        expect("id", refund.payment_intent, known.payment_id)
        if refund.status not in {"succeeded", "pending"}:
            raise GatewayUnavailableError(f"the refund of {known.payment_id} is {refund.status}")
        return before._replace(status=Status.REFUNDED, amount=refund.amount)

    def _card_of(self, customer_id: str) -> str:
        """Return what a customer pays with."""
        if not _is_customer(customer_id):
            reason = "the ride's customer is not a customer of Stripe"
            raise GatewayRefusedError(reason, reason)
        path = f"/v1/customers/{quote(customer_id, safe='')}"
        customer = read_answer(self._request("GET", path), _Customer)
        expect("customer", customer.id, customer_id)
        card = customer.invoice_settings.default_payment_method
        if card is None:
            reason = "the customer has no default payment method"
            raise GatewayRefusedError(reason, reason)
        return card

    def _payments_of(self, call: Call, customer_id: str) -> Iterator[_Listed]:
        """Yield a customer's payments, the newest first."""
        if not _is_customer(customer_id):
            return
        since_s = max(0, self._clock() // 1000 - int(_LOOKBACK.total_seconds()))
        query = {"customer": customer_id, "created[gte]": since_s, "limit": _PAGE}
        for _ in range(_PAGES):
            page = read_answer(self._request("GET", f"{_INTENTS}?{urlencode(query)}"), _Page)
            yield from page.data
            if not page.has_more or not page.data:
                return
            if not self._has_time(call.deadline_ms, 0):
                raise GatewayUnavailableError("no time was left for all of the customer's payments")
            query["starting_after"] = page.data[-1].id
        raise GatewayUnavailableError(
            f"{customer_id} has more than {_PAGE * _PAGES} payments since {_LOOKBACK.days} days ago"
        )

    # ── One request ───────────────────────────────────────────────────────────────────────────────

    def _headers(self, key: str | None) -> dict[str, str]:
        return {**super()._headers(key), "Stripe-Version": VERSION}

    def _request(
        self,
        method: str,
        path: str,
        key: str | None = None,
        form: Mapping[str, object] | None = None,
    ) -> object:
        """Send one request, and return the JSON of its answer."""
        content = None
        if form is not None:
            content = urlencode(form).encode()
        response = self._send(method, path, key, content)
        answer = json_of(response.content)
        if response.status == HTTPStatus.OK and answer is not None:
            return answer
        error = _error_of(answer)
        known = _status_and_code(response.status, error)
        endpoint, _, _ = path.partition("?")  # the query names the customer
        if method == "POST" and _is_final(path, response.status, error):
            reason = reason_of(error.message) or f"Stripe refused with {known}"
            raise GatewayRefusedError(f"{method} {endpoint} was refused with {known}", reason)
        raise GatewayUnavailableError(f"{method} {endpoint} was answered with {known}")


def _status_and_code(status: int, error: _Error) -> str:
    """Return an answer's status, and the error's code if that may stand in an error message."""
    code = code_of(error.code) or code_of(error.type)
    if code is None:
        return str(status)
    return f"{status} {code}"


def _is_final(path: str, status: int, error: _Error) -> bool:
    """Return whether an answer that is not 200 refuses a change for good."""
    if status == HTTPStatus.PAYMENT_REQUIRED:
        return True
    if status not in _OUR_REQUEST or error.type == "idempotency_error":
        return False
    return path.endswith("/increment_authorization") or code_of(error.code) in _FINAL_CODES


# ── Reading answers ───────────────────────────────────────────────────────────────────────────────


def _is_customer(customer_id: str) -> bool:
    return customer_id.startswith("cus_")


def _path_of(known: Known) -> str:
    return f"{_INTENTS}/{quote(known.payment_id, safe='')}"


def _error_of(answer: object) -> _Error:
    """Return the error in an answer; an empty one if there is none."""
    said = answer.get("error") if isinstance(answer, dict) else None
    try:
        return convert(said, _Error)
    except ValidationError:
        return _Error()


def _known_charge(answer: object, known: Known) -> Charge:
    """Return the payment in an answer, which must be the known one."""
    charge = _charge(_known_intent(answer, known))
    if known.currency is not None:
        expect("currency", charge.currency, known.currency)
    return charge


def _known_intent(answer: object, known: Known) -> _Intent:
    intent = read_answer(answer, _Intent)
    expect("id", intent.id, known.payment_id)
    expect("ride", intent.metadata.get(RIDE), known.order_id)
    return intent


def _charge(intent: _Intent) -> Charge:
    """Return the payment of a PaymentIntent."""
    status = _status_of(intent)
    if status is Status.PENDING:
        raise GatewayUnavailableError(
            f"{intent.id} is {code_of(intent.status)}: if it stays so, cancel it at Stripe"
        )
    reason = None
    if _is_abandoned(intent):
        reason = "the customer would have to confirm the payment"
    elif status is Status.DECLINED and intent.last_payment_error is not None:
        reason = reason_of(intent.last_payment_error.message)
    amount = intent.amount
    if intent.status == "succeeded":  # a hold that was released has received nothing
        amount = intent.amount_received
    return Charge(intent.id, status, amount, reason, intent.currency.upper())


def _is_abandoned(intent: _Intent) -> bool:
    """Return whether payment has canceled an intent that needed the customer.

    Such an intent has no charge: it has never reserved money.
    """
    is_canceled = intent.status == "canceled" and intent.cancellation_reason == _ABANDONED
    return is_canceled and intent.latest_charge is None


def _status_of(intent: _Intent) -> Status:
    if intent.status == "requires_payment_method" and intent.last_payment_error is not None:
        return Status.DECLINED
    if _is_abandoned(intent):
        return Status.DECLINED
    status = _STATUSES.get(intent.status, Status.PENDING)
    charged = intent.latest_charge
    if status is Status.CAPTURED and isinstance(charged, _Charged) and charged.refunded:
        return Status.REFUNDED
    return status
