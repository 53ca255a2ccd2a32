"""The gateway over HTTP: timeouts that fit inside the function's time, and retries that cannot charge twice.

A request that got no answer may have taken effect. Two things keep the next one from taking effect again: it carries
the same ``Idempotency-Key``, and before it is sent the gateway is asked what became of the one before, since a gateway
forgets its keys at some time, and its payments never.
"""

import json
import random
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import urllib3

from gateway import Call, Charge, GatewayRefusedError, GatewayUnavailableError, Status

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_RESERVE_MS: Final = 2_000
"""Kept free before the deadline, for the commit."""
_DECLINED: Final = 402
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
_REFUSED: Final = range(400, 500)


class HttpGateway:
    """A gateway with a JSON interface.

    Args:
        url: where it is, without a path.
        connect_timeout_s, read_timeout_s: after how many seconds a request is given up.
        clock, sleep, jitter: epoch milliseconds, waiting in seconds, a number from 0 to 1.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = 1.0,
        read_timeout_s: float = 3.0,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=connect_timeout_s, read=read_timeout_s), retries=False
        )
        # What one try can take at the most: the question what became of the one before, and the request itself.
        self._longest_try_ms = int(2_000 * (connect_timeout_s + read_timeout_s))
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def authorize(self, call: Call, *, order_id: str, customer_id: str, amount: int) -> Charge:
        """Reserve money for a ride, or decline to."""
        body = {"reference": order_id, "customer": customer_id, "amount": amount}
        return self._have_done(
            call,
            lambda: self._find(order_id),
            lambda: self._post("/payments", f"{call.key}-authorize", body),
        )

    def capture(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Take the money."""
        path = f"/payments/{quote(payment_id, safe='')}"
        return self._have_done(
            call,
            lambda: self._unless(path, Status.AUTHORIZED),
            lambda: self._post(f"{path}/capture", f"{call.key}-capture", {"amount": amount}),
        )

    def refund(self, call: Call, *, payment_id: str) -> Charge:
        """Give the money back, or release it."""
        path = f"/payments/{quote(payment_id, safe='')}"
        return self._have_done(
            call,
            lambda: self._unless(path, Status.AUTHORIZED, Status.CAPTURED),
            lambda: self._post(f"{path}/refund", f"{call.key}-refund", {}),
        )

    def find(self, call: Call, *, order_id: str) -> Charge | None:
        """Return a ride's payment, if the gateway has one."""
        return self._persist(call, lambda: self._find(order_id))

    # ── Asking until there is an answer ───────────────────────────────────────────────────────────────────────────────

    def _have_done(self, call: Call, what_became: Callable[[], Charge | None], request: Callable[[], Charge]) -> Charge:
        asked = call.repeated

        def attempt() -> Charge:
            nonlocal asked
            if asked and (done := what_became()) is not None:
                return done
            asked = True
            return request()

        return self._persist(call, attempt)

    def _persist[T](self, call: Call, attempt: Callable[[], T]) -> T:
        problem: Exception | None = None
        pause_s = _FIRST_PAUSE_S
        for _ in range(_TRIES):
            wait_s = 0.0 if problem is None else pause_s * self._jitter()
            if not self._has_time(call.deadline_ms, wait_s):
                break
            self._sleep(wait_s)
            if call.lost():
                raise GatewayUnavailableError("another attempt has taken over: nothing more is asked")
            try:
                return attempt()
            except GatewayUnavailableError as unanswered:
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if problem else pause_s
                problem = unanswered
        raise GatewayUnavailableError(f"no answer in time: {problem or 'there was none left'}") from problem

    def _has_time(self, deadline_ms: int | None, wait_s: float) -> bool:
        end_ms = self._clock() + int(1000 * wait_s) + self._longest_try_ms
        return deadline_ms is None or end_ms + _RESERVE_MS <= deadline_ms

    # ── One request ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, order_id: str) -> Charge | None:
        found = self._request("GET", f"/payments?reference={quote(order_id, safe='')}")["payments"]
        return _charge(found[0]) if found else None

    def _unless(self, path: str, *before: Status) -> Charge | None:
        """Return a payment, unless it is as it was before."""
        charge = _charge(self._request("GET", path))
        return None if charge.status in before else charge

    def _post(self, path: str, key: str, body: dict[str, Any]) -> Charge:
        return _charge(self._request("POST", path, key, body))

    def _request(self, method: str, path: str, key: str | None = None, body: object = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
        content = None if body is None else json.dumps(body).encode()
        try:
            response = self._pool.request(method, self._url + path, body=content, headers=headers, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise GatewayUnavailableError(f"{method} {path} got no answer: {error}") from error
        if response.status in _REFUSED and response.status != _DECLINED and response.status not in _RETRYABLE:
            raise GatewayRefusedError(f"{method} {path} was refused with {response.status}: {response.data[:200]!r}")
        if not 200 <= response.status < 300 and response.status != _DECLINED:  # noqa: PLR2004 - HTTP's successes
            raise GatewayUnavailableError(f"{method} {path} was answered with {response.status}")
        try:
            answer: dict[str, Any] = json.loads(response.data)
        except ValueError as error:
            raise GatewayUnavailableError(f"{method} {path} was answered with what is no JSON") from error
        return answer


def _charge(payment: dict[str, Any]) -> Charge:
    try:
        charge = Charge(payment["id"], Status(payment["status"]), payment["amount"], payment.get("reason"))
    except (KeyError, ValueError) as error:
        raise GatewayUnavailableError(f"the answer is no payment: {error}") from error
    if charge.status is Status.PENDING:
        raise GatewayUnavailableError(f"{charge.payment_id} is still being worked on")
    return charge
