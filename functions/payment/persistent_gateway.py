"""What payment asks of any gateway: each request is repeated until answered, and takes effect once.

A request without an answer may have taken effect, in this run or in one that was killed. A repeated
request carries the same ``Idempotency-Key``. A gateway forgets keys, but not payments, so each
request first looks for the payment.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

from gateway import (
    Call,
    Charge,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
    NoGatewayError,
    Status,
    Step,
)
from gateway_access import Access, Bearer
from gateway_answers import expect
from gateway_connection import (
    LONGEST_ANSWER,
    Connection,
    GatewayConnection,
    HttpRequest,
    HttpResponse,
)

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_RESERVE_MS: Final = 2_000
"""Kept free before the deadline, for the commit."""

HELD: Final = frozenset({Status.AUTHORIZED, Status.CAPTURED})
"""The statuses of a payment that holds a customer's money."""


class Reservation(NamedTuple):
    """What to reserve for a ride."""

    order_id: str
    customer_id: str
    amount: int  # in cents
    currency: str  # as in ISO 4217


class Change(StrEnum):
    """What a gateway can do with a payment that it has."""

    ADJUST = "adjust"
    CAPTURE = "capture"
    REFUND = "refund"


class PersistentGateway(ABC):
    """A gateway that reserves money, captures it and gives it back.

    Each method first asks what the gateway has done already. So it can be called again, and takes
    effect once, even if the gateway has forgotten its keys. A key names the ride or its payment,
    and not the event: two events of a ride that run at the same time ask for the same thing.

    An answer must be about what was asked: the ride, the payment, the currency and the amount are
    compared. A refused lookup says nothing about the payment, so only a refused change is final.
    Each method raises GatewayError.

    A subclass knows a gateway's protocol: ``_find``, ``_look``, ``_reserve`` and ``_change``.

    Args:
        url: where it is, without a path. If it is empty, every request raises NoGatewayError.
        access: authorises requests; None if the gateway wants nothing.
        connection: carries requests. Default: one over HTTP, opened at the first request.
        connect_timeout_s, read_timeout_s: after how many seconds a request is given up.
        clock, sleep, jitter: epoch milliseconds, waiting in seconds, a number from 0 to 1.

    Attributes:
        content_type: the form of the requests' content.
        longest_answer: in bytes; a longer one is given up.
        requests_of_a_try: how many requests the longest try sends, without that for a secret.
    """

    content_type: str = "application/json"
    longest_answer: int = LONGEST_ANSWER
    requests_of_a_try: int = 2

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
            self._url, connect_timeout_s, read_timeout_s, self.longest_answer
        )
        requests = self.requests_of_a_try
        if access is not None:
            requests += 1
        longest_request_s = connect_timeout_s + read_timeout_s
        self._longest_try_ms = int(requests * longest_request_s * 1_000)
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def authorize(self, call: Call, reservation: Reservation) -> Charge:
        """Reserve the money for a ride, or return how it was declined.

        A ride has at most one payment. If the gateway has one already, it is returned, whatever its
        amount.
        """
        key = call.key(Step.RESERVE, f"{reservation.order_id}-authorize")

        def attempt() -> Charge:
            found = self._find(call, reservation.order_id, reservation.customer_id)
            if found is not None:
                expect("currency", found.currency, reservation.currency)
                return found
            try:
                return self._reserve(reservation, key)
            except GatewayRefusedError as error:
                return Charge(None, Status.DECLINED, reservation.amount, error.reason)

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
                return self._change(known, charge, Change.ADJUST, key, amount)
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
                return self._change(known, charge, Change.CAPTURE, key, amount)
            except GatewayRefusedError as error:
                charge = self._look(known)
                if charge.status is not Status.AUTHORIZED:
                    return charge  # another run has settled it meanwhile
                return charge._replace(status=Status.DECLINED, reason=error.reason)

        return self._persist(call, attempt)

    def refund(self, call: Call, known: Known, held: Collection[Status] = HELD) -> Charge:
        """Give back what was captured, or release what is only reserved.

        A payment whose status is not among ``held`` is returned as it is. The gateway refuses if
        the status has changed since it was looked at, and it is looked at again.
        """

        def attempt() -> Charge:
            charge = self._look(known)
            if charge.status not in held:
                return charge
            name = "refund-captured" if charge.status is Status.CAPTURED else "refund"
            key = call.key(Step.GIVE_BACK, f"{known.payment_id}-{name}")
            try:
                return self._change(known, charge, Change.REFUND, key, charge.amount)
            except GatewayRefusedError:
                self._expect_unchanged(known, charge)
                raise

        return self._persist(call, attempt)

    def _expect_unchanged(self, known: Known, before: Charge) -> None:
        """Raise GatewayUnavailableError, so that the request is repeated, if a payment changed."""
        if self._look(known).status is not before.status:
            raise GatewayUnavailableError(f"{known.payment_id} was changed meanwhile")

    def find(self, call: Call, order_id: str, customer_id: str) -> Charge | None:
        """Return a ride's payment, if the gateway has one."""
        return self._persist(call, lambda: self._find(call, order_id, customer_id))

    def close(self) -> None:
        """Close the kept connection. A function need not: it is frozen, not ended."""
        self._connection.close()

    # ── A gateway's protocol ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _find(self, call: Call, order_id: str, customer_id: str) -> Charge | None:
        """Look once for a ride's payment."""

    @abstractmethod
    def _look(self, known: Known) -> Charge:
        """Look once at a known payment."""

    @abstractmethod
    def _reserve(self, reservation: Reservation, key: str) -> Charge:
        """Ask once for a reservation. Raise GatewayRefusedError if it is declined for good."""

    @abstractmethod
    def _change(
        self, known: Known, before: Charge, change: Change, key: str, amount: int
    ) -> Charge:
        """Ask once for a change of a payment, which was ``before``, and return it as it is then.

        ``amount`` is what to reserve, to take or to give back, in cents. Raise GatewayRefusedError
        if the change is refused for good.
        """

    # ── Asking until there is an answer ───────────────────────────────────────────────────────────

    def _persist[T](self, call: Call, attempt: Callable[[], T]) -> T:
        """Repeat an attempt until it is answered, while there is time and the call is not lost."""
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

    def _send(self, method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        """Send one request with what authorises it."""
        if not self._url:
            raise NoGatewayError(
                "the stack has no payment gateway: set PaymentGatewayUrl (docs/payment-gateway.md)"
            )
        headers = self._headers(key)
        if self._access is not None:
            headers = self._access(method, self._url + path, headers, content)
        response = self._connection.exchange(HttpRequest(method, path, headers, content))
        if response.status == HTTPStatus.UNAUTHORIZED and isinstance(self._access, Bearer):
            self._access.forget()
        return response

    def _headers(self, key: str | None) -> dict[str, str]:
        """Return the headers of a request, but for those that authorise it."""
        headers = {"Content-Type": self.content_type}
        if key is not None:
            headers["Idempotency-Key"] = key
        return headers
