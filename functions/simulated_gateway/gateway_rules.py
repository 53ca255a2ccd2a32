"""The rules of the simulated gateway: what Stripe answers to the requests that payment sends.

Pure: no I/O, no clock, no keys. A PaymentIntent is captured by hand::

    requires_confirmation ─confirm─▶ requires_capture ─capture─▶ succeeded ─refund─▶ (refunded)
              │                └refused─▶ requires_payment_method │
              └───────────────cancel────────────┴─────────────────┘─▶ canceled, for good

It is strict: a parameter that is unknown or missing is an error, and so is a change that the status
does not allow. Who is charged, and how the account is set, are `Customer` and `Account`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

RIDE: Final = "metadata[carride_ride]"
INCREMENTS: Final = "payment_method_options[card][request_incremental_authorization]"
UNEXPECTED: Final = "payment_intent_unexpected_state"
MISSING: Final = "resource_missing"
DAY_S: Final = 86_400
LARGEST: Final = 99_999_999
_CARD: Final = "pm_card_of_"
_CANCELABLE: Final = frozenset(
    {"requires_payment_method", "requires_confirmation", "requires_action", "requires_capture"}
)


class Account(Struct, frozen=True):
    """How the account is set."""

    increments: bool = True  # whether it may raise reservations
    currencies: frozenset[str] = frozenset()  # those that it takes; empty: all
    least: int = 1  # the smallest amount, in cents
    broken: str = ""  # the code of the error that every new payment meets
    lists_unknown: bool = True  # whether the list of an unknown customer is empty, not an error


class Customer(Struct, frozen=True):
    """Who pays, and with what."""

    is_known: bool = True
    pays_with: str = "card"  # or "nothing", or another kind, such as "sepa"
    is_detached: bool = False  # the card has left the customer
    declines: str = ""  # the code with which the issuer refuses every confirmation
    asks: bool = False  # the issuer wants the customer to confirm
    raises: bool = True  # whether the issuer reserves more
    pends_s: float = 0.0  # how long a confirmation is worked on
    hold_s: float = 7.0 * DAY_S  # how long money is reserved


ANYBODY: Final = Customer()


def customer_named(name: str) -> Customer:
    """Return how a customer pays in stage `dev`: like anybody, unless the name says otherwise."""
    if name.startswith("cus_nobody"):
        return Customer(is_known=False)
    if name.endswith("_declined"):
        return Customer(declines="card_declined")
    if name.endswith("_asked"):
        return Customer(asks=True)
    if name.endswith("_cardless"):
        return Customer(pays_with="nothing")
    return ANYBODY


class Intent(Struct):
    """A PaymentIntent; amounts are in cents."""

    id: str
    customer: str
    ride: str
    amount: int
    currency: str
    created_s: int
    raisable: bool = False
    status: str = "requires_confirmation"
    charge: str = ""  # "succeeded" once it was reserved, "failed" if that was refused
    error: str = ""  # the code of the last refusal
    reason: str | None = None  # why it was canceled
    settles_s: int = 0  # when the confirmation is worked off
    ends_s: int = 0  # when the hold ends
    captures: list[int] = []
    refunds: list[int] = []


class Answer(NamedTuple):
    """An answer of Stripe's API."""

    status: int
    body: Mapping[str, Any]


class RefusedError(Exception):
    """Raised when a request cannot take effect."""

    def __init__(self, status: int, code: str = "", param: str = "", message: str = "") -> None:
        super().__init__(message or code or "the request is wrong")
        self.status = status
        self.code = code
        self.param = param

    def answer(self) -> Answer:
        """Return the error as Stripe's API says it."""
        is_of_card = self.status == HTTPStatus.PAYMENT_REQUIRED
        kind = "card_error" if is_of_card else "invalid_request_error"
        error: dict[str, Any] = {"type": kind, "message": str(self)}
        if self.code:
            error["code"] = self.code
        if self.param:
            error["param"] = self.param
        return Answer(self.status, {"error": error})


class Request(NamedTuple):
    """A request, once its path is known."""

    verb: str
    form: Mapping[str, str]  # its parameters, those of the query included
    subject: str = ""  # the customer or the PaymentIntent that the path names


_NAMED: Final = frozenset({"confirm", "capture", "cancel", "increment_authorization"})
_EXPANDED: Final = {"expand[]": "latest_charge"}
# For each verb: the parameters that it needs, and those that it may have.
_PARAMETERS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "customer": (frozenset(), frozenset()),
    "look": (frozenset(), frozenset({"expand[]"})),
    "list": (
        frozenset({"customer"}),
        frozenset({"created[gte]", "limit", "starting_after", "expand[]"}),
    ),
    "create": (
        frozenset(
            {"amount", "currency", "customer", "payment_method", "payment_method_types[]", RIDE}
        ),
        frozenset({"capture_method", INCREMENTS, "expand[]"}),
    ),
    "confirm": (frozenset({"off_session"}), frozenset({"expand[]"})),
    "capture": (frozenset({"amount_to_capture"}), frozenset({"expand[]"})),
    "cancel": (frozenset(), frozenset({"cancellation_reason", "expand[]"})),
    "increment_authorization": (frozenset({"amount"}), frozenset({"expand[]"})),
    "refund": (frozenset({"payment_intent"}), frozenset({RIDE})),
}


def read(method: str, target: str, content: str = "") -> Request:
    """Return what a request asks for.

    Raises:
        RefusedError: The path, or a parameter, is unknown, or a parameter is missing.
    """
    path, _, query = target.partition("?")
    form = dict(parse_qsl(content if method == "POST" else query, keep_blank_values=True))
    request = _routed(method, path, form)
    needed, allowed = _PARAMETERS[request.verb]
    for name in form:
        if name not in needed | allowed:
            raise RefusedError(400, "parameter_unknown", name)
    for name in needed:
        if not form.get(name):
            raise RefusedError(400, "parameter_missing", name)
    return request


def _routed(method: str, path: str, form: Mapping[str, str]) -> Request:
    """Return what a path asks for."""
    match method, path.strip("/").split("/"):
        case "GET", ["v1", "customers", name]:
            return Request("customer", form, unquote(name))
        case "GET", ["v1", "payment_intents"]:
            return Request("list", form)
        case "GET", ["v1", "payment_intents", name]:
            return Request("look", form, unquote(name))
        case "POST", ["v1", "payment_intents"]:
            return Request("create", form)
        case "POST", ["v1", "payment_intents", name, verb] if verb in _NAMED:
            return Request(verb, form, unquote(name))
        case "POST", ["v1", "refunds"]:
            return Request("refund", form, form.get("payment_intent", ""))
    raise RefusedError(404, message=f"Unrecognized request URL ({method}: {path})")


# ── Customers and lists ───────────────────────────────────────────────────────────────────────────


def customer(name: str, who: Customer) -> Answer:
    """Answer with a customer."""
    if not who.is_known:
        raise RefusedError(404, MISSING, "id", f"No such customer: '{name}'")
    method = None if who.pays_with == "nothing" else f"{_CARD}{name}"
    settings = {"default_payment_method": method}
    return Answer(200, {"id": name, "object": "customer", "invoice_settings": settings})


def listed(request: Request, found: Iterable[Intent], who: Customer, account: Account) -> Answer:
    """Answer with a page of a customer's PaymentIntents, given the newest first."""
    if not who.is_known and not account.lists_unknown:
        raise RefusedError(400, MISSING, "customer", "No such customer")
    since_s = int(request.form.get("created[gte]", 0))
    intents = [each for each in found if each.created_s >= since_s]
    after = request.form.get("starting_after")
    if after is not None:
        names = [each.id for each in intents]
        intents = intents[names.index(after) + 1 :]
    limit = int(request.form.get("limit", 10))
    expanded = request.form.get("expand[]") == "data.latest_charge"
    data = [shown(each, expanded=expanded) for each in intents[:limit]]
    return Answer(200, {"object": "list", "data": data, "has_more": len(intents) > limit})


# ── PaymentIntents ────────────────────────────────────────────────────────────────────────────────


def created(request: Request, name: str, who: Customer, account: Account, now_s: float) -> Intent:
    """Return the PaymentIntent that a request makes. Nothing is reserved for it."""
    form = request.form
    if account.broken:
        raise RefusedError(400, account.broken)
    if not who.is_known:
        raise RefusedError(400, MISSING, "customer", f"No such customer: '{form['customer']}'")
    if who.is_detached or form["payment_method"] != f"{_CARD}{form['customer']}":
        raise RefusedError(400, MISSING, "payment_method", "No such PaymentMethod")
    if form["payment_method_types[]"] != "card":
        raise RefusedError(400, "payment_intent_invalid_parameter", "payment_method_types")
    if who.pays_with != "card":
        message = f"The payment method is {who.pays_with}, which is not in payment_method_types"
        raise RefusedError(400, "", "payment_method", message)
    if account.currencies and form["currency"] not in account.currencies:
        raise RefusedError(400, "", "currency", f"Invalid currency: {form['currency']}")
    if form.get("capture_method") != "manual":
        raise RefusedError(400, "payment_intent_invalid_parameter", "capture_method")
    if INCREMENTS in form and not account.increments:
        raise RefusedError(400, "", INCREMENTS, "This account is not eligible for the feature")
    amount = _amount(form["amount"], "amount")
    if amount < account.least:
        raise RefusedError(400, "amount_too_small", "amount")
    raisable = INCREMENTS in form
    return Intent(
        id=name,
        customer=form["customer"],
        ride=form[RIDE],
        amount=amount,
        currency=form["currency"],
        created_s=int(now_s),
        raisable=raisable,
    )


def _amount(text: str, param: str) -> int:
    if not text.isdecimal():
        raise RefusedError(400, "parameter_invalid_integer", param, f"Invalid integer: {text}")
    amount = int(text)
    if amount < 1:
        raise RefusedError(400, "parameter_invalid_integer", param, "must be at least 1")
    if amount > LARGEST:
        raise RefusedError(400, "amount_too_large", param)
    return amount


def pass_time(found: Intent, now_s: float) -> None:
    """Have happen what happens without a request: a confirmation is worked off, a hold ends."""
    if found.status == "processing" and now_s >= found.settles_s:
        found.status = "requires_capture"
        found.charge = "succeeded"
    if found.status == "requires_capture" and now_s >= found.ends_s:
        found.status = "canceled"
        found.reason = "automatic"
        found.refunds = [found.amount]


def change(found: Intent, request: Request, who: Customer, account: Account, now_s: float) -> None:
    """Confirm, raise, capture, cancel or refund a PaymentIntent.

    Raises:
        RefusedError: The status, the issuer or a parameter does not allow it.
    """
    _CHANGES[request.verb](found, request.form, who, account, now_s)


type _Form = Mapping[str, str]


def _confirm(found: Intent, _: _Form, who: Customer, __: Account, now_s: float) -> None:
    if found.status != "requires_confirmation":
        raise _unexpected(found)
    if who.is_detached:
        raise RefusedError(400, MISSING, "payment_method", "No such PaymentMethod")
    if who.declines or who.asks:
        found.charge = "failed"
        found.error = who.declines or "authentication_required"
        found.status = "requires_payment_method"
        message = f"Your card was declined: {found.error}."
        raise RefusedError(402, found.error, "", message)
    found.settles_s = math.ceil(now_s + who.pends_s)
    found.ends_s = math.ceil(now_s + who.pends_s + who.hold_s)
    found.status = "processing"
    if not who.pends_s:
        pass_time(found, found.settles_s)


def _capture(found: Intent, form: _Form, _: Customer, __: Account, ___: float) -> None:
    if found.status != "requires_capture":
        raise _unexpected(found)
    amount = _amount(form["amount_to_capture"], "amount_to_capture")
    if amount > found.amount:
        raise RefusedError(400, "amount_too_large", "amount_to_capture")
    found.status = "succeeded"
    found.captures = [*found.captures, amount]


def _cancel(found: Intent, form: _Form, _: Customer, __: Account, ___: float) -> None:
    if found.status not in _CANCELABLE:
        raise _unexpected(found)
    if found.charge == "succeeded":
        found.refunds = [*found.refunds, found.amount]
    found.status = "canceled"
    found.reason = form.get("cancellation_reason")


def _raise(found: Intent, form: _Form, who: Customer, account: Account, _: float) -> None:
    if found.status != "requires_capture":
        raise _unexpected(found)
    if not (account.increments and found.raisable):
        raise RefusedError(400, "", "", "This PaymentIntent is not eligible for the feature")
    amount = _amount(form["amount"], "amount")
    if amount <= found.amount:
        raise RefusedError(400, "", "amount", "must be larger than the current amount")
    if not who.raises:
        raise RefusedError(402, "card_declined", "", "insufficient funds")
    found.amount = amount


def _refund(found: Intent, _: _Form, __: Customer, ___: Account, ____: float) -> None:
    if found.status != "succeeded":
        raise RefusedError(400, "charge_not_refundable", "", f"{found.id} is {found.status}")
    if found.refunds:
        raise RefusedError(400, "charge_already_refunded", "", f"{found.id} has been refunded")
    found.refunds = [sum(found.captures)]


_CHANGES: Final[Mapping[str, Callable[[Intent, _Form, Customer, Account, float], None]]] = {
    "confirm": _confirm,
    "capture": _capture,
    "cancel": _cancel,
    "increment_authorization": _raise,
    "refund": _refund,
}


def _unexpected(found: Intent) -> RefusedError:
    return RefusedError(400, UNEXPECTED, "", f"{found.id} has a status of {found.status}")


def missing(name: str) -> RefusedError:
    """Return the error about a PaymentIntent that does not exist."""
    return RefusedError(404, MISSING, "intent", f"No such payment_intent: '{name}'")


# ── What is answered, and what is on record ───────────────────────────────────────────────────────


def answered(request: Request, found: Intent) -> Answer:
    """Answer with a PaymentIntent; to a refund with the refund."""
    if request.verb == "refund":
        refund = {"object": "refund", "status": "succeeded", "payment_intent": found.id}
        return Answer(200, {"id": f"re_{found.id}", "amount": found.refunds[-1], **refund})
    return Answer(200, shown(found, expanded=request.form.get("expand[]") == "latest_charge"))


def shown(found: Intent, *, expanded: bool) -> dict[str, Any]:
    """Return a PaymentIntent as Stripe's API shows it."""
    charge: Any = f"ch_{found.id}" if found.charge else None
    if charge is not None and expanded:
        charge = {
            "id": charge,
            "object": "charge",
            "status": found.charge,
            "refunded": bool(found.refunds),
        }
    error = None
    if found.error:
        message = f"Your card was declined: {found.error}."
        error = {"type": "card_error", "code": found.error, "message": message}
    return {
        "id": found.id,
        "object": "payment_intent",
        "status": found.status,
        "amount": found.amount,
        "amount_received": sum(found.captures),
        "currency": found.currency,
        "customer": found.customer,
        "created": found.created_s,
        "metadata": {"carride_ride": found.ride},
        "last_payment_error": error,
        "latest_charge": charge,
        "cancellation_reason": found.reason,
    }


_ON_RECORD: Final = {
    "requires_payment_method": "declined",
    "requires_action": "pending",
    "processing": "pending",
    "requires_capture": "authorized",
    "succeeded": "captured",
}


def ledger(intents: Sequence[Intent]) -> list[dict[str, Any]]:
    """Return what the gateway has on record of money: a PaymentIntent that was confirmed."""
    entries = []
    for each in intents:
        status = _ON_RECORD.get(each.status)
        if each.status == "canceled" and each.charge:
            status = "refunded" if each.charge == "succeeded" else "declined"
        if each.status == "succeeded" and each.refunds:
            status = "refunded"
        if status is None:
            continue
        entry = {
            "id": each.id,
            "reference": each.ride,
            "customer": each.customer,
            "status": status,
            "amount": sum(each.captures) or each.amount,
            "currency": each.currency.upper(),
            "captures": each.captures,
            "refunds": each.refunds,
        }
        entries.append(entry)
    return entries
