"""A gateway that speaks the protocol of docs/payment-gateway.md: the simulated one, or your own."""

import json
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta, Struct

from carride.ride import Cents, Currency
from gateway import (
    Call,
    Charge,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
    Status,
)
from gateway_answers import PAYMENT_ID, code_of, expect, json_of, read_answer, reason_of
from persistent_gateway import Change, PersistentGateway, Reservation

_RETRYABLE: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that a later try may not meet. 401 and 403 are about our credentials, and would decline
every ride."""
_REFUSED: Final = range(400, 500)
_ANSWERED: Final = range(200, 300)


class _Payment(Struct, frozen=True):
    """A payment as the gateway answers with it."""

    id: Annotated[str, Meta(pattern=PAYMENT_ID)]
    reference: str
    status: Status
    amount: Cents
    currency: Currency
    reason: Any = None


class _Found(Struct, frozen=True):
    """The answer to a lookup by reference."""

    payments: list[_Payment]


class HttpGateway(PersistentGateway):
    """A gateway with a JSON interface."""

    def _find(self, call: Call, order_id: str, customer_id: str) -> Charge | None:  # noqa: ARG002 - the reference suffices
        path = f"/payments?reference={quote(order_id, safe='')}"
        answer = self._request("GET", path)
        payments = read_answer(answer, _Found).payments
        for payment in payments:
            expect("reference", payment.reference, order_id)
        if not payments:
            return None
        return _charge(payments[0])

    def _look(self, known: Known) -> Charge:
        payment = read_answer(self._request("GET", _path_of(known)), _Payment)
        _expect_known(payment, known)
        return _charge(payment)

    def _reserve(self, reservation: Reservation, key: str) -> Charge:
        body = {
            "reference": reservation.order_id,
            "customer": reservation.customer_id,
            "amount": reservation.amount,
            "currency": reservation.currency,
        }
        payment = self._post("/payments", key, body)
        expect("reference", payment.reference, reservation.order_id)
        expect("currency", payment.currency, reservation.currency)
        expect("amount", payment.amount, reservation.amount)
        return _charge(payment)

    def _change(
        self, known: Known, before: Charge, change: Change, key: str, amount: int
    ) -> Charge:
        body: dict[str, object] = {"amount": amount}
        if change is Change.REFUND:
            body = {"status": before.status}
        path = f"{_path_of(known)}/{change}"
        payment = self._post(path, key, body)
        _expect_known(payment, known)
        expect("currency", payment.currency, before.currency)
        expect("amount", payment.amount, amount)
        return _charge(payment)

    def _post(self, path: str, key: str, body: dict[str, Any]) -> _Payment:
        answer = self._request("POST", path, key, body)
        return read_answer(answer, _Payment)

    def _request(
        self, method: str, path: str, key: str | None = None, body: object = None
    ) -> object:
        """Send one request, and return the JSON of its answer."""
        asked = f"{method} {path}"
        content = None if body is None else json.dumps(body).encode()
        response = self._send(method, path, key, content)
        answer = json_of(response.content)
        refuses = response.status in _REFUSED and response.status not in _RETRYABLE
        if refuses and method == "POST":
            raise _refusal(asked, response.status, answer)
        if response.status not in _ANSWERED:
            raise GatewayUnavailableError(f"{asked} was answered with {response.status}")
        if answer is None:
            raise GatewayUnavailableError(f"{asked} was answered with what is not JSON")
        return answer


def _path_of(known: Known) -> str:
    return f"/payments/{quote(known.payment_id, safe='')}"


def _expect_known(payment: _Payment, known: Known) -> None:
    expect("id", payment.id, known.payment_id)
    expect("reference", payment.reference, known.order_id)
    if known.currency is not None:
        expect("currency", payment.currency, known.currency)


def _refusal(asked: str, status: int, answer: object) -> Exception:
    """Return the error for an answer that refuses a request for good."""
    said = answer if isinstance(answer, dict) else {}
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and said.get("code") is None:
        # Another event has used the key, with another amount.
        return GatewayUnavailableError(
            f"{asked} was answered with 422: its key has another request"
        )
    code = code_of(said.get("code"))
    known = f"{status}" if code is None else f"{status} {code}"
    reason = reason_of(said.get("reason")) or f"the gateway refused with {known}"
    return GatewayRefusedError(f"{asked} was refused with {known}", reason)


def _charge(payment: _Payment) -> Charge:
    if payment.status is Status.PENDING:
        raise GatewayUnavailableError(f"{payment.id} is still being worked on")
    return Charge(
        payment.id, payment.status, payment.amount, reason_of(payment.reason), payment.currency
    )
