"""Stripe, by its PaymentIntents in two steps, as a `Gateway`.

A ride has one PaymentIntent, whose metadata names the ride. It is created without being confirmed,
so it moves nothing; payment records its id; then it is confirmed, captured, canceled or refunded by
that id. Stripe lets each of these happen once, under any key, and nothing after the end. The ride's
``customerID`` is a customer of Stripe, who pays with the default payment method, "off session".

Where a PaymentIntent stands (https://docs.stripe.com/payments/paymentintents/lifecycle)::

    requires_confirmation                                   prepared
    requires_payment_method, requires_action                refused: it is canceled
    processing                                              pending: looked at again
    requires_capture                                        held
    succeeded; succeeded, and its charge is refunded        taken; returned
    canceled, and its charge has succeeded; else            returned; ended

What an error decides (https://docs.stripe.com/api/errors), by its code and parameter::

    401, 403: our key                                       nothing: asked again
    409, 424, 429, 5xx, idempotency_error, no answer        nothing: asked again
    402; customer, card, amount, currency, payment's state  refused: about this ride
    any other 400 and 404 to a change                       refused: about us, or the account
    any other 400 and 404 to a lookup                       nothing: asked again

After a refused change the PaymentIntent is looked at, and decides. A request is repeated under its
key after no answer only. After any other answer it has a new key, and so it has in each hour:
Stripe keeps errors under keys, for at least a day
(https://docs.stripe.com/api/idempotent_requests). Keys spare requests that take no effect; nothing
else rests on them.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import datetime
from http import HTTPStatus
from itertools import count
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from msgspec import Meta, Struct, ValidationError, convert

from carride.ride import Cents
from gateway import (
    Call,
    GatewayAccountError,
    GatewayRefusedError,
    GatewayRequestError,
    GatewayUnavailableError,
    Intent,
    Known,
    NoGatewayError,
    Reservation,
    Stands,
)
from gateway_access import Access, Bearer
from gateway_answers import PAYMENT_ID, code_of, expect, json_of, read_answer, reason_of
from gateway_connection import Connection, GatewayConnection, HttpRequest, HttpResponse

VERSION: Final = "2025-03-31.basil"
"""Of the API. Without it an account's own version would answer."""
RIDE: Final = "carride_ride"
"""The key of the metadata that has the ride."""

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_RESERVE_MS: Final = 2_000
"""Kept free before the deadline, for the commit."""
_PAGE: Final = 100
_HOUR_MS: Final = 3_600_000
_STALE: Final = 3
"""How often a change is asked for that may have met an earlier refusal, kept under its key."""

_INTENTS: Final = "/v1/payment_intents"
_CUSTOMERS: Final = "/v1/customers"
_EXPANDED: Final = {"expand[]": "latest_charge"}
"""Without it a charge is only an id, which a refused confirmation leaves too."""
_INCREMENTS: Final = "payment_method_options[card][request_incremental_authorization]"

_DEFINITE: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.PAYMENT_REQUIRED, HTTPStatus.NOT_FOUND}
)
_PARAMETERS_OF_A_RIDE: Final = frozenset(
    {"amount", "amount_to_capture", "currency", "customer", "payment_method"}
)
_CODES_OF_A_RIDE: Final = frozenset(
    {
        "amount_too_large",
        "amount_too_small",
        "capture_charge_authorization_expired",
        "charge_expired_for_capture",
    }
)
_CODES_OF_A_STATE: Final = frozenset({"charge_already_refunded", "payment_intent_unexpected_state"})
_MISSING: Final = "resource_missing"
_OUR_OWN: Final = frozenset({"intent", "payment_intent"})
"""The parameters that name a PaymentIntent which payment has made."""

_WITHOUT_DECIMALS: Final = frozenset(
    {"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "UGX"}
    | {"VND", "VUV", "XAF", "XOF", "XPF"}
)
_WITH_THREE_DECIMALS: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
_WITHOUT_CENTS: Final = _WITHOUT_DECIMALS | _WITH_THREE_DECIMALS
"""Currencies whose smallest unit is not a hundredth. Stripe counts in smallest units, and a ride's
price in hundredths: 1250 would be a hundred times too much, or a tenth
(https://docs.stripe.com/currencies)."""

_HOLD_HAS_ENDED: Final = "what was reserved has been released"
_BY_WORTH: Final = (
    Stands.TAKEN,
    Stands.HELD,
    Stands.PENDING,
    Stands.RETURNED,
    Stands.REFUSED,
    Stands.PREPARED,
    Stands.ENDED,
)
"""Which one of several PaymentIntents is the ride's. Others were prepared and not confirmed."""
_FINAL: Final = frozenset({Stands.RETURNED, Stands.ENDED})
_ALLOWED: Final[Mapping[str, Set[Stands]]] = {
    "confirm": {Stands.PREPARED},
    "increment_authorization": {Stands.HELD},
    "capture": {Stands.HELD},
    "cancel": {Stands.PREPARED, Stands.REFUSED, Stands.HELD},
}
"""Where a PaymentIntent has to stand for each change."""

type _Form = Mapping[str, object]


class _Error(Struct, frozen=True):
    """What is wrong with a request, or with a payment."""

    type: str = ""
    code: Any = None
    param: Any = None
    message: Any = None


class _Charge(Struct, frozen=True):
    """The charge of a PaymentIntent."""

    status: str
    refunded: bool = False  # in full


class _Intent(Struct, frozen=True):
    """A PaymentIntent."""

    id: Annotated[str, Meta(pattern=PAYMENT_ID)]
    status: str
    amount: Cents
    currency: Annotated[str, Meta(pattern=r"^[a-z]{3}$(?!\n)")]
    metadata: dict[str, Any]
    latest_charge: _Charge | None
    amount_received: Cents = 0
    last_payment_error: _Error | None = None


class _Page(Struct, frozen=True):
    """A page of a list, the newest first."""

    data: list[dict[str, Any]]
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


class StripeGateway:
    """Stripe, or what answers like it.

    Args:
        url: where it is, without a path. If it is empty, every request raises NoGatewayError.
        access: adds the account's secret key; None if the gateway wants nothing.
        connection: carries requests. Default: one over HTTP, opened at the first request.
        connect_timeout_s, read_timeout_s: after how many seconds a request is given up.
        clock, sleep, jitter: epoch milliseconds, waiting in seconds, a number from 0 to 1.
    """

    def __init__(
        self,
        url: str,
        access: Access | None = None,
        *,
        connect_timeout_s: float = 1.0,
        read_timeout_s: float = 3.0,
        connection: Connection | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._url = url.rstrip("/")
        self._access = access
        self._connection = connection or GatewayConnection(
            self._url, connect_timeout_s, read_timeout_s
        )
        requests = 1 if access is None else 2  # the secret may have to be read
        self._longest_try_ms = int(requests * (connect_timeout_s + read_timeout_s) * 1_000)
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._asks_for_increments = True
        """Whether payments are made that can be raised. An account without that feature refuses
        them, and this process then asks without."""

    def close(self) -> None:
        """Close the kept connection. A function need not: it is frozen, not ended."""
        self._connection.close()

    # ── The port ──────────────────────────────────────────────────────────────────────────────────

    def prepare(self, call: Call, reservation: Reservation, since: datetime) -> Intent:
        """As `Gateway.prepare`. A prepared payment of another amount is left, and ends nothing."""
        if reservation.currency in _WITHOUT_CENTS:
            reason = f"{reservation.currency} has no hundredths, in which rides are priced"
            raise GatewayRefusedError(reason, reason)
        found = self.find(call, reservation.order_id, reservation.customer_id, since)
        if found is not None:
            expect("currency", found.currency, reservation.currency)
            if found.stands is not Stands.PREPARED or found.amount == reservation.amount:
                return found
        return self._create(call, reservation, self._card_of(call, reservation.customer_id))

    def find(self, call: Call, order_id: str, customer_id: str, since: datetime) -> Intent | None:
        """As `Gateway.find`, by the list of the customer's PaymentIntents.

        A list has what was answered before; the search lags
        (https://docs.stripe.com/search#data-freshness).
        """
        found = [
            _intent_of(read_answer(each, _Intent))
            for each in self._payments_of(call, customer_id, since)
            if isinstance(each.get("metadata"), dict) and each["metadata"].get(RIDE) == order_id
        ]
        return min(found, key=lambda each: _BY_WORTH.index(each.stands), default=None)

    def reserve(self, call: Call, known: Known) -> Intent:
        """As `Gateway.reserve`."""
        intent, refusal = self._change(call, known, "confirm", {"off_session": "true"})
        if intent.stands is Stands.HELD and refusal is None:
            expect("amount", intent.amount, known.amount)
        is_refused = intent.stands in {Stands.PREPARED, Stands.REFUSED}
        if not is_refused:
            return intent
        if isinstance(refusal, GatewayAccountError) and intent.stands is Stands.PREPARED:
            raise refusal
        reason = intent.reason
        if reason is None and refusal is not None and not isinstance(refusal, _StateError):
            reason = refusal.reason
        return self._canceled(call, known)._replace(reason=reason)

    def capture(self, call: Call, known: Known, amount: int) -> Intent:
        """As `Gateway.capture`."""
        held = known.amount
        if amount > held and self._asks_for_increments:
            form = {"amount": amount}
            raised, refusal = self._change(call, known, "increment_authorization", form, times=1)
            if raised.stands is not Stands.HELD:
                return raised
            if refusal is None:
                expect("amount", raised.amount, amount)
            held = raised.amount
        amount = min(amount, held)
        intent, refusal = self._change(call, known, "capture", {"amount_to_capture": amount})
        if refusal is None:
            expect("status", intent.stands, Stands.TAKEN)
            expect("amount", intent.amount, amount)
            return intent
        if intent.stands is not Stands.HELD:
            return intent
        if isinstance(refusal, GatewayAccountError):
            raise refusal
        return self._canceled(call, known)._replace(reason=refusal.reason)

    def end(self, call: Call, known: Known, *, taken: bool, gives_back: bool) -> Intent:
        """As `Gateway.end`."""
        amount = known.amount
        if not taken or not gives_back:
            intent = self._canceled(call, known)
            if intent.stands is not Stands.TAKEN or not gives_back:
                return intent
            amount = intent.amount
        return self._refunded(call, known, amount)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def _create(self, call: Call, reservation: Reservation, card: str) -> Intent:
        form = {
            "amount": reservation.amount,
            "currency": reservation.currency.lower(),
            "customer": reservation.customer_id,
            "payment_method": card,
            "payment_method_types[]": "card",
            "capture_method": "manual",
            f"metadata[{RIDE}]": reservation.order_id,
        }
        if self._asks_for_increments:
            form[_INCREMENTS] = "if_available"
        keys = self._keys(f"{reservation.order_id}-prepare")
        for number in range(1, _STALE + 1):
            try:
                answer = self._ask(call, "POST", _INTENTS, form | _EXPANDED, keys)
                break
            except _IncrementsError:
                self._asks_for_increments = False
                return self._create(call, reservation, card)
            except GatewayAccountError:
                if number == _STALE:
                    raise
        made = read_answer(answer, _Intent)
        expect("ride", made.metadata.get(RIDE), reservation.order_id)
        intent = _intent_of(made)
        expect("currency", intent.currency, reservation.currency)
        expect("amount", intent.amount, reservation.amount)
        return intent

    def _change(
        self, call: Call, known: Known, verb: str, form: _Form, times: int = _STALE
    ) -> tuple[Intent, GatewayRequestError | None]:
        """Change a PaymentIntent; return how it stands then, and why the change was refused.

        Stripe may repeat an earlier refusal, which does not fit the PaymentIntent any more.
        """
        path = f"{_path_of(known)}/{verb}"
        refusal: GatewayRequestError
        keys = self._keys(f"{known.payment_id}-{verb}")
        for _ in range(times):
            try:
                answer = self._ask(call, "POST", path, {**form, **_EXPANDED}, keys)
            except GatewayRequestError as error:
                refusal = error
                intent = self._look(call, known)
                if not isinstance(error, _MAY_BE_STALE) or intent.stands not in _ALLOWED[verb]:
                    break
            else:
                intent = _known_intent(answer, known)
                if intent.stands is Stands.PENDING:
                    intent = self._look(call, known)
                return intent, None
        return intent, refusal

    def _look(self, call: Call, known: Known) -> Intent:
        """Look at a PaymentIntent, until the gateway does not work on it any more."""
        path = f"{_path_of(known)}?{urlencode(_EXPANDED)}"
        try:
            answer = self._ask(call, "GET", path, is_done=_is_settled)
        except GatewayRefusedError as refusal:  # a lookup decides nothing about a ride
            raise GatewayAccountError(str(refusal), refusal.reason) from refusal
        return _known_intent(answer, known)

    def _canceled(self, call: Call, known: Known) -> Intent:
        """Cancel a PaymentIntent; return how it has ended, or that its money was taken."""
        intent, refusal = self._change(call, known, "cancel", {})
        if intent.stands in _FINAL and refusal is None and intent.amount != known.amount:
            # It may have been raised. An answer that is wrong is not given twice.
            expect("amount", self._look(call, known).amount, intent.amount)
        if intent.stands in _FINAL or intent.stands is Stands.TAKEN:
            return intent
        if isinstance(refusal, GatewayAccountError):
            raise refusal
        raise GatewayUnavailableError(f"{known.payment_id} is {intent.stands}, and was canceled")

    def _refunded(self, call: Call, known: Known, amount: int) -> Intent:
        """Give back what was taken."""
        form = {"payment_intent": known.payment_id, f"metadata[{RIDE}]": known.order_id}
        keys = self._keys(f"{known.payment_id}-refund")
        for _ in range(_STALE):
            try:
                answer = self._ask(call, "POST", "/v1/refunds", form, keys, is_done=_is_refunded)
            except GatewayRequestError as refusal:
                intent = self._look(call, known)
                if intent.stands is Stands.RETURNED:
                    return intent
                if not isinstance(refusal, _MAY_BE_STALE):
                    raise
            else:
                refund = read_answer(answer, _Refund)
                expect("id", refund.payment_intent, known.payment_id)
                expect("amount", refund.amount, amount)
                return Intent(known.payment_id, Stands.RETURNED, amount, known.currency)
        raise GatewayUnavailableError(f"{known.payment_id} is {intent.stands}, and was refunded")

    def _card_of(self, call: Call, customer_id: str) -> str:
        """Return what a customer pays with."""
        path = f"{_CUSTOMERS}/{quote(customer_id, safe='')}"
        customer = read_answer(self._ask(call, "GET", path), _Customer)
        expect("customer", customer.id, customer_id)
        card = customer.invoice_settings.default_payment_method
        if card is None:
            reason = "the customer has no default payment method"
            raise GatewayRefusedError(reason, reason)
        return card

    def _payments_of(
        self, call: Call, customer_id: str, since: datetime
    ) -> Iterator[dict[str, Any]]:
        """Yield a customer's PaymentIntents, the newest first."""
        query: dict[str, object] = {
            "customer": customer_id,
            "created[gte]": max(0, int(since.timestamp())),
            "limit": _PAGE,
            "expand[]": "data.latest_charge",
        }
        while True:
            try:
                answer = self._ask(call, "GET", f"{_INTENTS}?{urlencode(query)}")
            except GatewayRefusedError as refusal:
                if "starting_after" in query:
                    raise GatewayUnavailableError(f"the list broke off: {refusal}") from refusal
                return  # nobody whom Stripe does not know has a payment
            page = read_answer(answer, _Page)
            yield from page.data
            if not page.has_more or not page.data:
                return
            query["starting_after"] = page.data[-1].get("id")

    # ── Asking until there is an answer ───────────────────────────────────────────────────────────

    def _ask(
        self,
        call: Call,
        method: str,
        path: str,
        form: _Form | None = None,
        keys: Iterator[str] | None = None,
        *,
        is_done: Callable[[object], bool] = lambda _: True,
    ) -> object:
        """Send a request until it is answered; return the JSON of the answer.

        Args:
            call: the attempt.
            method: the request's, like `path` and `form`.
            path: with its query.
            form: what to send.
            keys: the keys for it; each answer uses up one.
            is_done: whether an answer of status 200 decides.

        Raises:
            GatewayRequestError: The request is refused.
            GatewayUnavailableError: Nothing was answered that decides, in the time that was left.
        """
        content = None if form is None else urlencode(form).encode()
        request = f"{method} {_without_customer(path)}"
        key = next(keys) if keys else ""
        problem = "no time was left to ask"
        cause: Exception | None = None
        for tries in range(_TRIES):
            wait_s = self._pause_s(tries)
            if not self._has_time(call.deadline_ms, wait_s):
                break
            self._sleep(wait_s)
            if call.lost():
                raise GatewayUnavailableError(
                    "another attempt has taken over: nothing more is asked"
                )
            try:
                response = self._send(method, path, key, content)
            except GatewayUnavailableError as unanswered:
                problem = f"{request}: {unanswered}"
                cause = unanswered
                continue
            answer = json_of(response.content)
            if response.status == HTTPStatus.OK and answer is not None and is_done(answer):
                return answer
            error = _error_of(answer)
            known = _status_and_code(response.status, error)
            problem = f"{request} was answered with {known}"
            cause = None
            refusal = _refusal_of(method, response.status, error)
            if refusal is not None:
                reason = reason_of(error.message) or f"the gateway refused with {known}"
                raise refusal(f"{request} was refused with {known}", reason)
            key = next(keys) if keys else ""
        raise GatewayUnavailableError(f"no answer in time: {problem}") from cause

    def _keys(self, name: str) -> Iterator[str]:
        """Yield the idempotency keys of a change, from the first one of this hour on.

        An outage uses up as many keys as a run has tries. A later run would only be given the
        errors that Stripe keeps under them, until it forgets them.
        """
        hour = self._clock() // _HOUR_MS
        return (f"{name}-{hour}-{number}" for number in count(1))

    def _pause_s(self, tries: int) -> float:
        """Return how long to wait after some tries: twice as long each time, up to a limit."""
        if tries == 0:
            return 0.0
        longest_s: float = min(_FIRST_PAUSE_S * 2 ** (tries - 1), _LONGEST_PAUSE_S)
        return longest_s * self._jitter()

    def _has_time(self, deadline_ms: int | None, wait_s: float) -> bool:
        if deadline_ms is None:
            return True
        end_ms = self._clock() + int(1000 * wait_s) + self._longest_try_ms
        return end_ms + _RESERVE_MS <= deadline_ms

    def _send(self, method: str, path: str, key: str, content: bytes | None) -> HttpResponse:
        """Send one request with what authorises it."""
        if not self._url:
            raise NoGatewayError(
                "the stack has no payment gateway: set PaymentGatewayUrl (docs/payment-gateway.md)"
            )
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Stripe-Version": VERSION,
        }
        if key:
            headers["Idempotency-Key"] = key
        if self._access is not None:
            headers = self._access(method, self._url + path, headers, content)
        response = self._connection.exchange(HttpRequest(method, path, headers, content))
        if response.status == HTTPStatus.UNAUTHORIZED and isinstance(self._access, Bearer):
            self._access.forget()
        return response


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────


class _StateError(GatewayRefusedError):
    """Raised when a PaymentIntent's status does not allow a change."""


_MAY_BE_STALE: Final = (_StateError, GatewayAccountError)
"""Refusals that the PaymentIntent or the account may have outgrown."""


class _IncrementsError(GatewayAccountError):
    """Raised when the account may not make payments that can be raised."""


def _refusal_of(method: str, status: int, error: _Error) -> type[GatewayRequestError] | None:
    """Return what an answer that is not 200 means; None if it decides nothing."""
    if status not in _DEFINITE or error.type in {"", "idempotency_error"}:
        return None
    if error.code == _MISSING and error.param in _OUR_OWN:
        return GatewayAccountError
    if method == "GET":
        return GatewayRefusedError if error.code == _MISSING else None
    if error.param == _INCREMENTS:
        return _IncrementsError
    if error.code in _CODES_OF_A_STATE:
        return _StateError
    is_about_ride = error.param in _PARAMETERS_OF_A_RIDE or error.code in _CODES_OF_A_RIDE
    if is_about_ride or status == HTTPStatus.PAYMENT_REQUIRED or error.code == _MISSING:
        return GatewayRefusedError
    return GatewayAccountError


def _status_and_code(status: int, error: _Error) -> str:
    """Return an answer's status, and the error's code if that may stand in an error message."""
    code = code_of(error.code) or code_of(error.type)
    if code is None:
        return str(status)
    return f"{status} {code}"


def _error_of(answer: object) -> _Error:
    """Return the error in an answer; an empty one if there is none."""
    said = answer.get("error") if isinstance(answer, dict) else None
    try:
        return convert(said, _Error)
    except ValidationError:
        return _Error()


# ── Reading answers ───────────────────────────────────────────────────────────────────────────────


def _without_customer(path: str) -> str:
    """Return a path as an error may show it: queries, and paths of customers, name a person."""
    endpoint, _, _ = path.partition("?")
    return _CUSTOMERS if endpoint.startswith(_CUSTOMERS) else endpoint


def _path_of(known: Known) -> str:
    return f"{_INTENTS}/{quote(known.payment_id, safe='')}"


def _is_settled(answer: object) -> bool:
    """Return whether the gateway does not work on a PaymentIntent."""
    return not isinstance(answer, dict) or answer.get("status") != "processing"


def _is_refunded(answer: object) -> bool:
    """Return whether a refund did not fail. A failed one is asked for again."""
    is_refund = isinstance(answer, dict) and "status" in answer
    return not is_refund or answer["status"] in {"succeeded", "pending"}  # type: ignore[index] # it is a dict then


def _known_intent(answer: object, known: Known) -> Intent:
    """Return the payment in an answer, which must be the known one."""
    found = read_answer(answer, _Intent)
    expect("id", found.id, known.payment_id)
    expect("ride", found.metadata.get(RIDE), known.order_id)
    intent = _intent_of(found)
    expect("currency", intent.currency, known.currency)
    return intent


def _intent_of(found: _Intent) -> Intent:
    """Return the payment of a PaymentIntent."""
    stands = _stands(found)
    amount = found.amount
    if found.status == "succeeded":  # a hold that was released has received nothing
        amount = found.amount_received
    return Intent(found.id, stands, amount, found.currency.upper(), _reason(found, stands))


def _stands(found: _Intent) -> Stands:
    """Return where a PaymentIntent stands: the table above."""
    charge = found.latest_charge
    match found.status:
        case "requires_confirmation":
            return Stands.PREPARED
        case "requires_payment_method" | "requires_action":
            return Stands.REFUSED
        case "requires_capture":
            return Stands.HELD
        case "succeeded":
            is_refunded = charge is not None and charge.refunded
            return Stands.RETURNED if is_refunded else Stands.TAKEN
        case "canceled":
            was_held = charge is not None and charge.status == "succeeded"
            return Stands.RETURNED if was_held else Stands.ENDED
        case _:
            return Stands.PENDING


def _reason(found: _Intent, stands: Stands) -> str | None:
    """Return why a payment was refused, or is not held any more."""
    if stands is Stands.RETURNED:
        return _HOLD_HAS_ENDED
    if stands in {Stands.REFUSED, Stands.ENDED} and found.last_payment_error is not None:
        return reason_of(found.last_payment_error.message)
    return None
