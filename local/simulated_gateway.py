"""A simulated payment gateway.

It keeps a ledger of its own, and goes wrong at given shares of the requests.

    with GatewayServer(Books(Troubles(dropped=0.05), seed=7)) as gateway:
        cloud.deploy(PaymentGatewayUrl=gateway.url)

Its ledger is the evidence of charges (``GET /ledger``). docs/payment-gateway.md has its protocol.
The rules are those of the gateway that a stack of stage `dev` deploys: `gateway_rules`.
"""

import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

import gateway_rules
from gateway_rules import Payment, RefusedError

HOST: Final = "127.0.0.1"


class Trouble(StrEnum):
    """What can happen to a request."""

    HANGING = "hanging"  # it has no effect and gets no answer
    LATE = "late"  # it takes effect long after the client has given up waiting
    BUSY = "busy"  # it is refused for now, without effect
    FAILED = "failed"  # it takes effect, and is answered with an error
    DROPPED = "dropped"  # it takes effect, and the connection breaks before the answer


class Troubles(NamedTuple):
    """Shares of requests, rides or keys that meet each trouble."""

    hanging: float = 0.0
    late: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    dropped: float = 0.0
    declined: float = 0.0  # rides that cannot be paid for
    forgotten: float = 0.0  # keys that are forgotten as soon as they are used
    # Rides refused with a status of 4xx other than 402, and a body that is not a payment.
    refused: float = 0.0
    pending: float = 0.0  # reservations that are made only after a while
    capped: float = 0.0  # reservations that cannot be raised
    kept: float = 0.0  # keys under which an error is kept: no request with them has an effect


class GatewayRequest(NamedTuple):
    """A request that changes something, under the key of its header ``Idempotency-Key``."""

    path: str
    key: str
    body: Mapping[str, Any]


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    body: Mapping[str, Any]


@dataclass(slots=True)
class _Known:
    """A request under its key; its reply is None until it has taken effect."""

    request: GatewayRequest
    payment: Payment
    since: float
    reply: Reply | None = None


class Books:
    """The gateway without its network: payments, and the keys by which requests are recognised.

    The same seed gives the same requests and rides the same troubles. A key is known for ``keys_s``
    seconds, and a pending reservation is made after ``pending_s``, by a clock that only grows.

    Attributes:
        met: how often each trouble was met.
        kept: the rides of which an error is kept under a key.
    """

    def __init__(
        self,
        troubles: Troubles | None = None,
        *,
        seed: int = 0,
        keys_s: float = math.inf,
        pending_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.met: Counter[str] = Counter()
        self.kept: set[str] = set()
        self._troubles = troubles or Troubles()
        self._seed = seed
        self._keys_s = keys_s
        self._pending_s = pending_s
        self._clock = clock
        self._pending: dict[str, float] = {}
        self._lock = threading.Lock()
        self._payments: dict[str, Payment] = {}
        self._known: dict[str, _Known] = {}
        self._tries: Counter[str] = Counter()

    def trouble(self, key: str) -> Trouble | None:
        """Return the trouble of the next request under a key."""
        with self._lock:
            self._tries[key] += 1
            chance = self._chance("trouble", f"{key}/{self._tries[key]}")
            for trouble in Trouble:
                chance -= getattr(self._troubles, trouble)
                if chance < 0:
                    self.met[trouble] += 1
                    return trouble
        return None

    def begin(self, request: GatewayRequest) -> Reply | None:
        """Accept a request; return None if it has to be finished, else the answer."""
        with self._lock:
            if self._meets("kept", request.key):
                self.kept.add(self._ride_of(request))
                return _problem(500, "something went wrong, and this key will say so again")
            now = self._clock()
            known = self._known.get(request.key)
            if known is None or (known.reply and now - known.since > self._keys_s):
                try:
                    self._known[request.key] = _Known(request, self._payment_of(request), now)
                except RefusedError as refused:
                    return _refusal(refused)
                return None
            if known.request != request:
                return _problem(422, "this Idempotency-Key was used for another request")
            return known.reply or _problem(
                409, "a request with this Idempotency-Key is being worked on"
            )

    def finish(self, request: GatewayRequest) -> Reply:
        """Let an accepted request take effect, and return the answer."""
        with self._lock:
            known = self._known[request.key]
            try:
                known.reply = self._settle(known.payment, request)
            except RefusedError as refused:
                known.reply = _refusal(refused)
            if self._meets("forgotten", request.key):
                del self._known[request.key]
            return known.reply

    def look_up(self, path: str, query: Mapping[str, list[str]]) -> Reply:
        """Answer a question, which changes nothing."""
        with self._lock:
            for name in [name for name, due in self._pending.items() if due <= self._clock()]:
                del self._pending[name]
                self._payments[name].status = "authorized"
            if path == "/ledger":
                return _payments(self._payments.values())
            if path == "/payments":
                references = query.get("reference", [])
                return _payments(
                    each for each in self._payments.values() if each.reference in references
                )
            payment = self._payments.get(path.removeprefix("/payments/"))
            if payment is None:
                return _problem(404, "there is no such payment")
            return Reply(200, msgspec.to_builtins(payment))

    def _ride_of(self, request: GatewayRequest) -> str:
        """Return the ride that a request is about; empty if it names none."""
        match request.path.split("/")[1:]:
            case ["payments", name, _] if name in self._payments:
                return self._payments[name].reference
            case _:
                return str(request.body.get("reference", ""))

    def _payment_of(self, request: GatewayRequest) -> Payment:
        """Return the payment that a request is about: a new one, or the one that its path names."""
        match request.path.split("/")[1:]:
            case ["payments"]:
                name = f"pay_{len(self._payments) + 1:06d}"
                return self._payments.setdefault(name, gateway_rules.payment(name, request.body))
            case ["payments", name, "adjust" | "capture" | "refund"] if name in self._payments:
                return self._payments[name]
        raise RefusedError(404, f"{request.path} is not an operation")

    def _settle(self, payment: Payment, request: GatewayRequest) -> Reply:
        action = request.path.rpartition("/")[2]
        if action == "payments":
            return self._reserve(payment)
        is_raise = action == "adjust" and payment.status == "authorized"
        if is_raise and self._meets("capped", payment.reference):
            raise RefusedError(402, f"{payment.customer} has no more", "insufficient_funds")
        gateway_rules.change(payment, action, request.body)
        return Reply(200, msgspec.to_builtins(payment))

    def _reserve(self, payment: Payment) -> Reply:
        """Reserve the money for a new payment, or decline to."""
        is_refused = self._meets("refused", payment.reference)
        if is_refused or self._meets("declined", payment.reference):
            payment.status = "declined"
            # Long and with control characters, as no client would like it.
            payment.reason = f"insufficient\0funds\n{'of the customer ' * 20}"
            if is_refused:
                raise RefusedError(
                    422, f"the card of {payment.customer} has expired", "expired_card"
                )
            return Reply(402, msgspec.to_builtins(payment))
        if self._meets("pending", payment.reference):
            self._pending[payment.id] = self._clock() + self._pending_s
            return Reply(202, msgspec.to_builtins(payment))
        payment.status = "authorized"
        return Reply(201, msgspec.to_builtins(payment))

    def _meets(self, trouble: str, name: str) -> bool:
        """Return whether a ride or a key meets a trouble, and count it."""
        share: float = getattr(self._troubles, trouble)
        met = self._chance(trouble, name) < share
        if met:
            self.met[trouble] += 1
        return met

    def _chance(self, purpose: str, name: str) -> float:
        return random.Random(f"{self._seed}/{purpose}/{name}").random()  # noqa: S311 - a simulation, not a secret


def _payments(found: Iterable[Payment]) -> Reply:
    return Reply(200, {"payments": msgspec.to_builtins(list(found))})


def _refusal(refused: RefusedError) -> Reply:
    return Reply(refused.status, {"title": str(refused), "code": refused.code})


def _problem(status: int, title: str) -> Reply:
    return Reply(status, {"status": status, "title": title})


class GatewayServer(ThreadingHTTPServer):
    """The gateway on a free loopback port, for as long as the ``with`` block lasts.

    A late request takes effect after ``late_s`` seconds, and a hanging one keeps its connection for
    ``hanging_s``.
    """

    daemon_threads = True
    block_on_close = False  # a hanging request ends with the process
    request_queue_size = 128

    def __init__(self, books: Books, *, late_s: float = 4.0, hanging_s: float = 30.0) -> None:
        super().__init__((HOST, 0), _Handler)
        self.books = books
        self._stopping = threading.Event()
        self._late_s = late_s
        self._hanging_s = hanging_s

    def __enter__(self) -> Self:
        threading.Thread(
            target=self.serve_forever, args=(0.05,), name="gateway", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        """The gateway's address."""
        return f"http://{HOST}:{self.server_port}"

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment, the oldest first, with all captures and refunds."""
        payments: list[dict[str, Any]] = self.books.look_up("/ledger", {}).body["payments"]
        return payments

    def exchange(self, method: str, target: str, key: str | None, body: object) -> Reply | None:
        """Answer a request; None breaks the connection."""
        url = urlsplit(target)
        if method == "GET":
            return self.books.look_up(url.path, parse_qs(url.query))
        if key is None or not isinstance(body, dict):
            return _problem(
                400, "a request that changes something needs an Idempotency-Key and a JSON object"
            )
        request = GatewayRequest(url.path, key, body)
        trouble = self.books.trouble(key)
        if trouble is Trouble.HANGING:
            self._stopping.wait(self._hanging_s)
            return None
        if trouble is Trouble.BUSY:
            return _problem(503, "too busy")
        reply = self.books.begin(request)
        if reply is None:
            if trouble is Trouble.LATE:
                self._stopping.wait(self._late_s)
            reply = self.books.finish(request)
        if trouble is Trouble.FAILED:
            return _problem(500, "something went wrong")
        return None if trouble is Trouble.DROPPED else reply


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GatewayServer

    def do_POST(self) -> None:
        body = None
        with suppress(json.JSONDecodeError):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        reply = self.server.exchange(
            self.command, self.path, self.headers.get("Idempotency-Key"), body
        )
        if reply is None:
            self.close_connection = True
            return
        content = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):  # the client has given up
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Log nothing: the ledger holds every payment."""
