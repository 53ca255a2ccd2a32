"""The gateway over HTTP: each request is repeated until it is answered, and takes effect once.

A request without an answer may have taken effect, in this run or in one that was killed. A repeated
request carries the same ``Idempotency-Key``. A gateway forgets keys, but not payments, so each
request first looks for the payment.

The gateway's values go into events. Payment ids and amounts are checked, and reasons are cut to
what an event can hold. An error keeps only a short code of the gateway's other texts: they may be
about the customer, and errors end up in logs.
"""

import json
import random
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta, Struct

from carride.decoding import FieldError, shaped
from carride.ride import Cents, Currency
from gateway import (
    Call,
    Charge,
    GatewayAnswerError,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
    NoGatewayError,
    Status,
    Step,
)
from gateway_access import Access, Bearer
from gateway_connection import GatewayConnection, Request, Response

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_RESERVE_MS: Final = 2_000
"""Kept free before the deadline, for the commit."""
_RETRYABLE: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that a later try may not meet. 401 and 403 are about our credentials, and would decline
every ride."""
_REFUSED: Final = range(400, 500)
_ANSWERED: Final = range(200, 300)

_LONGEST_REASON: Final = 200
_PAYMENT_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$(?!\n)"
_is_code: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class _Payment(Struct, frozen=True):
    """A payment as the gateway answers with it."""

    id: Annotated[str, Meta(pattern=_PAYMENT_ID)]
    reference: str
    status: Status
    amount: Cents
    currency: Currency
    reason: Any = None


class _Found(Struct, frozen=True):
    """The answer to a lookup by reference."""

    payments: list[_Payment]


class HttpGateway:
    """A gateway with a JSON interface: it reserves money, captures it and gives it back.

    Each method first asks what the gateway has done already. So it can be called again, and takes
    effect once, even if the gateway has forgotten its keys. A key names the ride or its payment,
    and not the event: two events of a ride that run at the same time ask for the same thing.

    An answer must be about what was asked: reference, id, currency and amount are compared. A
    refused lookup says nothing about the payment, so only a refused change is final. Each method
    raises GatewayError.

    Args:
        url: where it is. If it is empty, every request raises NoGatewayError.
        access: authorises requests; None if the gateway wants nothing.
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
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._url = url.rstrip("/")
        self._access = access
        self._connection = GatewayConnection(self._url, connect_timeout_s, read_timeout_s)
        # The longest try reads the secret, asks for the payment, and sends the request.
        requests_of_a_try = 2 if access is None else 3
        self._longest_try_ms = int(requests_of_a_try * 1_000 * (connect_timeout_s + read_timeout_s))
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def authorize(
        self, call: Call, *, order_id: str, customer_id: str, amount: int, currency: str
    ) -> Charge:
        """Reserve ``amount`` cents of ``currency`` for a ride, or return how it was declined.

        A ride has at most one payment. If the gateway has one already, it is returned, whatever its
        amount.
        """
        key = call.key(Step.RESERVE, f"{order_id}-authorize")
        body = {
            "reference": order_id,
            "customer": customer_id,
            "amount": amount,
            "currency": currency,
        }

        def attempt() -> Charge:
            found = self._find(order_id)
            if found is not None:
                _expect("currency", found.currency, currency)
                return found
            try:
                payment = self._post("/payments", key, body)
            except GatewayRefusedError as error:
                return Charge(None, Status.DECLINED, amount, error.reason)
            _expect("reference", payment.reference, order_id)
            _expect("currency", payment.currency, currency)
            _expect("amount", payment.amount, amount)
            return _charge(payment)

        return self._persist(call, attempt)

    def adjust(self, call: Call, known: Known, amount: int) -> Charge:
        """Raise what is reserved to ``amount`` cents.

        Where the gateway refuses, the returned payment has the amount that it had before.
        """
        key = call.key(Step.CAPTURE, f"{known.payment_id}-adjust-{amount}")

        def attempt() -> Charge:
            charge = self._look(known)
            if charge.status is not Status.AUTHORIZED or charge.amount >= amount:
                return charge
            try:
                return self._change(known, charge, "adjust", key, amount)
            except GatewayRefusedError:
                return self._look(known)

        return self._persist(call, attempt)

    def capture(self, call: Call, known: Known, amount: int) -> Charge:
        """Take ``amount`` cents, at most what is reserved.

        Where the gateway refuses, the returned payment is DECLINED, and the money is still
        reserved.
        """
        key = call.key(Step.CAPTURE, f"{known.payment_id}-capture")

        def attempt() -> Charge:
            charge = self._look(known)
            if charge.status is not Status.AUTHORIZED:
                return charge
            try:
                return self._change(known, charge, "capture", key, amount)
            except GatewayRefusedError as error:
                charge = self._look(known)
                if charge.status is not Status.AUTHORIZED:
                    return charge  # another run has settled it meanwhile
                return charge._replace(status=Status.DECLINED, reason=error.reason)

        return self._persist(call, attempt)

    def refund(self, call: Call, known: Known) -> Charge:
        """Give back what was captured, or release what is only reserved."""
        key = call.key(Step.GIVE_BACK, f"{known.payment_id}-refund")

        def attempt() -> Charge:
            charge = self._look(known)
            if charge.status not in {Status.AUTHORIZED, Status.CAPTURED}:
                return charge
            return self._change(known, charge, "refund", key)

        return self._persist(call, attempt)

    def find(self, call: Call, *, order_id: str) -> Charge | None:
        """Return a ride's payment, if the gateway has one."""
        return self._persist(call, lambda: self._find(order_id))

    def close(self) -> None:
        """Close the kept connection. A function need not: it is frozen, not ended."""
        self._connection.close()

    # ── Asking until there is an answer ───────────────────────────────────────────────────────────

    def _persist[T](self, call: Call, attempt: Callable[[], T]) -> T:
        """Repeat an attempt until it is answered, and while there is time and the call is not lost."""
        unanswered: GatewayUnavailableError | None = None
        for number in range(_TRIES):
            wait_s = self._pause_s(number)
            if not self._has_time(call.deadline_ms, wait_s):
                break
            self._sleep(wait_s)
            if call.lost():
                raise GatewayUnavailableError(
                    "another attempt has taken over: nothing more is asked"
                )
            try:
                return attempt()
            except GatewayUnavailableError as error:
                unanswered = error
        problem = unanswered or "no time was left to ask"
        raise GatewayUnavailableError(f"no answer in time: {problem}") from unanswered

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

    # ── One request ───────────────────────────────────────────────────────────────────────────────

    def _find(self, order_id: str) -> Charge | None:
        """Look for a ride's payment."""
        path = f"/payments?reference={quote(order_id, safe='')}"
        payments = _read(self._request("GET", path), _Found).payments
        for each in payments:
            _expect("reference", each.reference, order_id)
        return _charge(payments[0]) if payments else None

    def _look(self, known: Known) -> Charge:
        """Look at a known payment."""
        payment = _read(self._request("GET", _path_of(known)), _Payment)
        _expect_known(payment, known)
        return _charge(payment)

    def _change(
        self, known: Known, before: Charge, action: str, key: str, amount: int | None = None
    ) -> Charge:
        """Ask for a change of a known payment, which was ``before``; a refund has no amount."""
        body = {} if amount is None else {"amount": amount}
        payment = self._post(f"{_path_of(known)}/{action}", key, body)
        _expect_known(payment, known)
        _expect("currency", payment.currency, before.currency)
        _expect("amount", payment.amount, before.amount if amount is None else amount)
        return _charge(payment)

    def _post(self, path: str, key: str, body: dict[str, Any]) -> _Payment:
        return _read(self._request("POST", path, key, body), _Payment)

    def _request(
        self, method: str, path: str, key: str | None = None, body: object = None
    ) -> object:
        """Send one request, and return the JSON of its answer."""
        asked = f"{method} {path}"
        content = None if body is None else json.dumps(body).encode()
        response = self._send(method, path, key, content)
        answer = _json_of(response.content)
        refuses = response.status in _REFUSED and response.status not in _RETRYABLE
        if refuses and method == "POST":
            raise _refusal(asked, response.status, answer)
        if response.status not in _ANSWERED:
            raise GatewayUnavailableError(f"{asked} was answered with {response.status}")
        if answer is None:
            raise GatewayUnavailableError(f"{asked} was answered with what is not JSON")
        return answer

    def _send(self, method: str, path: str, key: str | None, content: bytes | None) -> Response:
        """Send one request with what authorises it."""
        if not self._url:
            raise NoGatewayError(
                "the stack has no payment gateway: set PaymentGatewayUrl (docs/payment-gateway.md)"
            )
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if self._access is not None:
            headers = self._access(method, self._url + path, headers, content)
        response = self._connection.exchange(Request(method, path, headers, content))
        if response.status == HTTPStatus.UNAUTHORIZED and isinstance(self._access, Bearer):
            self._access.forget()
        return response


def _path_of(known: Known) -> str:
    return f"/payments/{quote(known.payment_id, safe='')}"


# ── Reading answers ───────────────────────────────────────────────────────────────────────────────


def _expect(field: str, found: object, asked: object) -> None:
    """Raise GatewayAnswerError unless an answer is about what was asked."""
    if found != asked:
        raise GatewayAnswerError(f"the gateway's answer has another {field} than it was asked for")


def _expect_known(payment: _Payment, known: Known) -> None:
    _expect("id", payment.id, known.payment_id)
    _expect("reference", payment.reference, known.order_id)
    if known.currency is not None:
        _expect("currency", payment.currency, known.currency)


def _json_of(content: bytes) -> object:
    """Return the JSON of an answer; None if it is not JSON."""
    try:
        answer: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return answer


def _refusal(asked: str, status: int, answer: object) -> Exception:
    """Return the error for an answer that refuses a request for good."""
    said = answer if isinstance(answer, dict) else {}
    code = said.get("code")
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and code is None:
        # Another event has used the key, with another amount.
        return GatewayUnavailableError(
            f"{asked} was answered with 422: its key has another request"
        )
    known = f"{status}"
    if isinstance(code, str) and _is_code(code):
        known = f"{status} {code}"
    reason = _reason(said.get("reason")) or f"the gateway refused with {known}"
    return GatewayRefusedError(f"{asked} was refused with {known}", reason)


def _read[S: Struct](answer: object, shape: type[S]) -> S:
    try:
        return shaped(answer, shape)
    except FieldError as error:
        raise GatewayAnswerError(
            f"the gateway's answer has no {error.field} that an event can hold"
        ) from None


def _charge(payment: _Payment) -> Charge:
    if payment.status is Status.PENDING:
        raise GatewayUnavailableError(f"{payment.id} is still being worked on")
    return Charge(
        payment.id, payment.status, payment.amount, _reason(payment.reason), payment.currency
    )


def _reason(said: object) -> str | None:
    """Return what an event can hold of a text.

    One line of printable characters, cut to its length.
    """
    if not isinstance(said, str):
        return None
    printable = "".join(character if character.isprintable() else " " for character in said)
    return " ".join(printable.split())[:_LONGEST_REASON] or None
