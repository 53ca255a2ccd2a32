"""The gateway over HTTP: timeouts that fit inside the function's time, and retries that cannot charge twice.

A request that got no answer may have taken effect, in this run or in one that nobody remembers. Two
things keep the next one from taking effect again: it carries the same ``Idempotency-Key``, and
before it is sent the gateway is asked what it has done already, since a gateway forgets its keys at
some time, and its payments never.

What the gateway says goes into events, so it is checked here: payment ids and amounts have to fit,
reasons are cut to fit. Of other texts only a short code is kept, since they may be about the
customer and errors end up in logs.
"""

import json
import random
import re
import select
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

from msgspec import Meta, Struct

from carride.decoding import FieldError, shaped
from carride.ride import Cents, Currency
from gateway import (
    Call,
    Charge,
    GatewayAnswerError,
    GatewayRefusedError,
    GatewayUnavailableError,
    NoGatewayError,
    Status,
)

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_RESERVE_MS: Final = 2_000  # kept free before the deadline, for the commit
_RETRYABLE: Final = frozenset({401, 403, 408, 409, 425, 429})
"""Refusals that a later try may not meet. 401 and 403 are about our credentials and would decline
every ride."""
_REFUSED: Final = range(400, 500)

_LONGEST_REASON: Final = 200
_PAYMENT_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$(?!\n)"
_is_code: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch

type Headers = dict[str, str]
type Access = Callable[[str, str, Headers, bytes | None], Headers]
"""Takes method, URL, headers and content of a request; returns the headers with what authorises
it."""


class _Payment(Struct, frozen=True):
    """A payment as the gateway answers with it."""

    id: Annotated[str, Meta(pattern=_PAYMENT_ID)]
    status: Status
    amount: Cents
    reason: Any = None
    currency: Currency | None = None


class _Found(Struct, frozen=True):
    """The answer to a question for payments."""

    payments: list[_Payment]


class HttpGateway:
    """A gateway with a JSON interface: it reserves money, captures it and gives it back.

    Every method asks first what the gateway has done already, so it can be called again, and takes
    effect once, also where the gateway has forgotten its keys. A key names the ride or its payment,
    and not the event: two events of a ride that are worked on at once ask for one thing. Each
    method raises GatewayError.

    Args:
        url: where it is, without a path; empty if there is none, then every request raises
            NoGatewayError.
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
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._kept = deque[HTTPConnection](maxlen=1)
        # What one try can take at the most: reading the secret, asking what became of the one
        # before, and the request.
        self._longest_try_ms = int(
            (2_000 if access is None else 3_000) * (connect_timeout_s + read_timeout_s)
        )
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def authorize(
        self, call: Call, *, order_id: str, customer_id: str, amount: int, currency: str
    ) -> Charge:
        """Reserve ``amount`` cents of ``currency`` for a ride, or decline to. There is one payment for a ride."""
        body = {
            "reference": order_id,
            "customer": customer_id,
            "amount": amount,
            "currency": currency,
        }

        def attempt() -> Charge:
            try:
                return self._find(order_id) or self._post(
                    "/payments", f"{order_id}-authorize", body
                )
            except GatewayRefusedError as error:
                return Charge(None, Status.DECLINED, amount, error.reason)

        charge = self._persist(call, attempt)
        if charge.currency not in {None, currency}:
            raise GatewayAnswerError("the gateway's answer has another currency than the ride")
        return charge

    def adjust(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Raise what is reserved to ``amount`` cents; the answer has the old amount where the gateway refuses."""
        path = f"/payments/{quote(payment_id, safe='')}"

        def attempt() -> Charge:
            charge = self._look(path)
            if charge.status is not Status.AUTHORIZED or charge.amount >= amount:
                return charge
            try:
                return self._post(
                    f"{path}/adjust", f"{payment_id}-adjust-{amount}", {"amount": amount}
                )
            except GatewayRefusedError:
                return self._look(path)

        return self._persist(call, attempt)

    def capture(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Take ``amount`` cents, at most what is reserved. DECLINED, and still reserved, where the gateway refuses."""
        path = f"/payments/{quote(payment_id, safe='')}"

        def attempt() -> Charge:
            charge = self._look(path)
            if charge.status is not Status.AUTHORIZED:
                return charge
            try:
                return self._post(f"{path}/capture", f"{payment_id}-capture", {"amount": amount})
            except GatewayRefusedError as error:
                charge = self._look(path)  # another run may have settled it meanwhile
                still = charge.status is Status.AUTHORIZED
                return (
                    charge._replace(status=Status.DECLINED, reason=error.reason)
                    if still
                    else charge
                )

        return self._persist(call, attempt)

    def refund(self, call: Call, *, payment_id: str) -> Charge:
        """Give back what was captured, or release what is only reserved."""
        path = f"/payments/{quote(payment_id, safe='')}"

        def attempt() -> Charge:
            charge = self._look(path)
            if charge.status not in {Status.AUTHORIZED, Status.CAPTURED}:
                return charge
            return self._post(f"{path}/refund", f"{payment_id}-refund", {})

        return self._persist(call, attempt)

    def find(self, call: Call, *, order_id: str) -> Charge | None:
        """Return a ride's payment, if the gateway has one."""
        return self._persist(call, lambda: self._find(order_id))

    # ── Asking until there is an answer ───────────────────────────────────────────────────────────

    def _persist[T](self, call: Call, attempt: Callable[[], T]) -> T:
        problem: Exception | None = None
        pause_s = _FIRST_PAUSE_S
        for _ in range(_TRIES):
            wait_s = 0.0 if problem is None else pause_s * self._jitter()
            if not self._has_time(call.deadline_ms, wait_s):
                break
            self._sleep(wait_s)
            if call.lost():
                raise GatewayUnavailableError(
                    "another attempt has taken over: nothing more is asked"
                )
            try:
                return attempt()
            except GatewayUnavailableError as unanswered:
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if problem else pause_s
                problem = unanswered
        raise GatewayUnavailableError(
            f"no answer in time: {problem or 'there was none left'}"
        ) from problem

    def _has_time(self, deadline_ms: int | None, wait_s: float) -> bool:
        end_ms = self._clock() + int(1000 * wait_s) + self._longest_try_ms
        return deadline_ms is None or end_ms + _RESERVE_MS <= deadline_ms

    # ── One request ───────────────────────────────────────────────────────────────────────────────

    def _find(self, order_id: str) -> Charge | None:
        found = _shaped(
            self._request("GET", f"/payments?reference={quote(order_id, safe='')}"), _Found
        ).payments
        return _charge(found[0]) if found else None

    def _look(self, path: str) -> Charge:
        return _charge(_shaped(self._request("GET", path), _Payment))

    def _post(self, path: str, key: str, body: dict[str, Any]) -> Charge:
        return _charge(_shaped(self._request("POST", path, key, body), _Payment))

    def _request(
        self, method: str, path: str, key: str | None = None, body: object = None
    ) -> object:
        status, content = self._send(
            method, path, key, None if body is None else json.dumps(body).encode()
        )
        try:
            answer: object = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if status in _REFUSED and status not in _RETRYABLE:
            said = answer if isinstance(answer, dict) else {}
            code = said.get("code")
            # Another event asks for another amount.
            if status == HTTPStatus.UNPROCESSABLE_ENTITY and code is None:
                raise GatewayUnavailableError(
                    f"{method} {path} was answered with 422: its key has another request"
                )
            known = f"{status} {code}" if isinstance(code, str) and _is_code(code) else f"{status}"
            reason = _reason(said.get("reason")) or f"the gateway refused with {known}"
            raise GatewayRefusedError(f"{method} {path} was refused with {known}", reason)
        if not 200 <= status < 300:  # noqa: PLR2004 - HTTP's successes
            raise GatewayUnavailableError(f"{method} {path} was answered with {status}")
        if answer is None:
            raise GatewayUnavailableError(f"{method} {path} was answered with what is no JSON")
        return answer

    def _send(
        self, method: str, path: str, key: str | None, content: bytes | None
    ) -> tuple[int, bytes]:
        if not self._url:
            raise NoGatewayError(
                "the stack has no payment gateway: set PaymentGatewayUrl (docs/payment-gateway.md)"
            )
        headers = {"Content-Type": "application/json"} | (
            {} if key is None else {"Idempotency-Key": key}
        )
        if self._access:
            headers = self._access(method, self._url + path, headers, content)
        try:
            status, answer = self._exchange(method, path, headers, content)
        except (OSError, HTTPException, ValueError) as error:
            raise GatewayUnavailableError(
                f"{method} {path} got no answer: {type(error).__name__}"
            ) from error
        if status == HTTPStatus.UNAUTHORIZED and isinstance(self._access, Bearer):
            self._access.forget()
        return status, answer

    def _exchange(
        self, method: str, path: str, headers: Headers, content: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request once, over the connection of the one before if that is still open."""
        connection = self._kept.pop() if self._kept else self._new_connection()
        if connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            connection.close()  # by the gateway: otherwise it would have nothing to say
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(self._read_timeout_s)
            connection.request(method, urlsplit(self._url).path + path, content, headers)
            answer = connection.getresponse()
            read = answer.read()
        except BaseException:
            connection.close()
            raise
        self._kept.append(connection)
        return answer.status, read

    def close(self) -> None:
        """Close the kept connection. A function need not: it is frozen, not ended."""
        while self._kept:
            self._kept.pop().close()

    def _new_connection(self) -> HTTPConnection:
        address = urlsplit(self._url)
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        return kind(str(address.hostname), address.port, timeout=self._connect_timeout_s)


def _shaped[S: Struct](answer: object, shape: type[S]) -> S:
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
    """Return what an event can hold of a text: one line without control characters, cut at the contract's length."""
    if not isinstance(said, str):
        return None
    printable = "".join(character if character.isprintable() else " " for character in said)
    return " ".join(printable.split())[:_LONGEST_REASON] or None


# ── Who asks: with a signature, or with a secret ──────────────────────────────────────────────────


def signed(session: Any, region: str) -> Access:
    """Return what signs requests to a Lambda function URL with the credentials of a botocore session."""

    def access(method: str, url: str, headers: Headers, content: bytes | None) -> Headers:
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - not every gateway needs it
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        request: Any = AWSRequest(method, url, headers=headers, data=content)
        SigV4Auth(session.get_credentials(), "lambda", region).add_auth(request)
        return dict(request.headers.items())

    return access


class Bearer:
    """Adds a secret, which ``read`` returns, at the first request and again once it is told to forget it."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._secret = ""

    def __call__(self, method: str, url: str, headers: Headers, content: bytes | None) -> Headers:  # noqa: ARG002 - Access
        """Return the headers and the secret."""
        self._secret = self._secret or self._read()
        return {**headers, "Authorization": f"Bearer {self._secret}"}

    def forget(self) -> None:
        """Forget the secret: the gateway refused it, so it may have been rotated."""
        self._secret = ""


def read_secret(session: Any, secret_arn: str) -> str:
    """Return a secret of Secrets Manager; raise GatewayUnavailableError if it cannot be read or sent in a header."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - not every gateway needs it

    from carride.clients import SINGLE_ATTEMPT  # noqa: PLC0415

    client = session.create_client("secretsmanager", config=SINGLE_ATTEMPT)
    try:
        secret: str = client.get_secret_value(SecretId=secret_arn).get("SecretString", "").strip()
    except (BotoCoreError, ClientError) as error:
        raise GatewayUnavailableError(f"PaymentGatewaySecretArn cannot be read: {error}") from error
    if not (secret and secret.isascii() and secret.isprintable()):
        raise GatewayUnavailableError(
            "the secret PaymentGatewaySecretArn is not one line of printable ASCII"
        )
    return secret
