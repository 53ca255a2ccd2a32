"""A payment gateway to test against: it keeps its own ledger, and misbehaves in shares that it is given.

    with GatewayServer(Books(Troubles(dropped=0.05), seed=7)) as gateway:
        cloud.deploy(PaymentGatewayUrl=gateway.url)

Its ledger is the evidence of what was charged. It believes its clients, and charges as often as it is asked: what keeps
a ride from being charged twice is in the consumer, which sends the same ``Idempotency-Key`` for the same operation, and
asks what became of a request before it sends it again. No card data is taken.

    POST /payments                {"reference", "customer", "amount",    reserves money, or declines to
                                   "currency"}
    POST /payments/ID/adjust      {"amount"}                             reserves more, or declines to
    POST /payments/ID/capture     {"amount"}                             takes it
    POST /payments/ID/refund      {}                                     gives it back, or releases it
    GET  /payments?reference=…    GET /payments/ID    GET /ledger
"""

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from local.interrupts import end_in_order

HOST: Final = "127.0.0.1"
_LATE_S: Final = 4.0
_HANGING_S: Final = 30.0


class Trouble(StrEnum):
    """What can become of a request."""

    HANGING = "hanging"
    """It is never worked on, and gets no answer."""
    LATE = "late"
    """It takes effect long after the client has given up waiting."""
    BUSY = "busy"
    """It is sent away, without effect."""
    FAILED = "failed"
    """It takes effect, and is answered with an error."""
    DROPPED = "dropped"
    """It takes effect, and the connection breaks before the answer."""


class Troubles(NamedTuple):
    """Which share of the requests meets which trouble; the rest meets none."""

    hanging: float = 0.0
    late: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    dropped: float = 0.0
    declined: float = 0.0
    """Which share of the rides cannot be paid for."""
    forgotten: float = 0.0
    """Which share of the keys is forgotten as soon as it is used."""
    refused: float = 0.0
    """Which share of the rides is refused with a status of 4xx that is not 402, and a body that is no payment."""
    pending: float = 0.0
    """Which share of the reservations is made only after a while; see `Strict`."""
    capped: float = 0.0
    """Which share of the reservations cannot be raised."""

    @classmethod
    def mixed(cls, share: float, *, declined: float = 0.0) -> Self:
        """Return troubles of every kind, of which ``share`` is the sum; some of the keys are forgotten too."""
        each = share / len(Trouble)
        return cls(each, each, each, each, each, declined, forgotten=share)


class Strict(NamedTuple):
    """What a gateway insists on, beyond what the simplest one would.

    Nothing is captured above what is reserved, nothing of no amount is reserved, and its texts are long and unclean.
    """

    keys_s: float = 5.0
    """For how long it knows a key."""
    pending_s: float = 3.0
    """After how long a pending reservation is made."""


class Request(NamedTuple):
    """A request that is to take effect."""

    path: str
    key: str
    """Of the header ``Idempotency-Key``."""
    body: Mapping[str, Any]


class Reply(NamedTuple):
    """What a request is answered with."""

    status: int
    body: Mapping[str, Any]


@dataclass(slots=True)
class Payment:
    """A payment in the ledger; amounts are in cents."""

    id: str
    reference: str
    """The client's name for it."""
    customer: str
    amount: int
    currency: str
    status: str = "pending"
    reason: str | None = None
    captures: list[int] = field(default_factory=list)
    refunds: list[int] = field(default_factory=list)


class _RefusedError(Exception):
    """The request cannot take effect; ``reply`` says why."""

    def __init__(self, status: int, title: str, code: str = "impossible") -> None:
        super().__init__(title)
        self.reply = Reply(status, {"title": title, "code": code})


@dataclass(slots=True)
class _Known:
    """A request that was taken in."""

    request: Request
    payment: Payment
    since: float
    reply: Reply | None = None
    """None until it has taken effect."""


class Books:
    """The gateway without its network: payments, and the keys by which requests are recognised.

    Args:
        troubles: what is to go wrong, and how often.
        seed: which requests and rides meet it: the same ones for the same seed.
        strict: what it insists on.
        clock: seconds, which only grow.
    """

    def __init__(
        self,
        troubles: Troubles | None = None,
        *,
        seed: int = 0,
        strict: Strict | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.met: Counter[str] = Counter()
        """How many requests have met which trouble."""
        self._troubles = troubles or Troubles()
        self._seed = seed
        self._strict = strict
        self._clock = clock
        self._pending: dict[str, float] = {}
        self._lock = threading.Lock()
        self._payments: dict[str, Payment] = {}
        self._known: dict[str, _Known] = {}
        self._tries: Counter[str] = Counter()

    def trouble(self, key: str) -> Trouble | None:
        """Return what the next request under a key meets."""
        with self._lock:
            self._tries[key] += 1
            chance = self._chance("trouble", f"{key}/{self._tries[key]}")
            for trouble in Trouble:
                chance -= getattr(self._troubles, trouble)
                if chance < 0:
                    self.met[trouble] += 1
                    return trouble
        return None

    def begin(self, request: Request) -> Reply | None:
        """Take a request in: return the answer if there is nothing to be done, and None if it is to be finished."""
        with self._lock:
            now = self._clock()
            known = self._known.get(request.key)
            if known is None or (self._strict and known.reply and now - known.since > self._strict.keys_s):
                try:
                    self._known[request.key] = _Known(request, self._payment_of(request), now)
                except _RefusedError as refused:
                    return refused.reply
                return None
            if known.request != request:
                return _problem(422, "this Idempotency-Key was used for another request")
            return known.reply or _problem(409, "a request with this Idempotency-Key is being worked on")

    def finish(self, request: Request) -> Reply:
        """Have a request that was taken in take effect."""
        with self._lock:
            known = self._known[request.key]
            try:
                known.reply = self._settle(known)
            except _RefusedError as refused:
                known.reply = refused.reply
            if self._chance("forgotten", request.key) < self._troubles.forgotten:
                self.met["forgotten"] += 1
                del self._known[request.key]
            return known.reply

    def look_up(self, path: str, query: Mapping[str, list[str]]) -> Reply:
        """Answer a question, which changes nothing."""
        with self._lock:
            self._make_pending_reservations()
            if path == "/ledger":
                return Reply(200, {"payments": [asdict(payment) for payment in self._payments.values()]})
            if path == "/payments":
                named = query.get("reference", [])
                found = [asdict(payment) for payment in self._payments.values() if payment.reference in named]
                return Reply(200, {"payments": found})
            payment = self._payments.get(path.removeprefix("/payments/"))
            return _problem(404, "there is no such payment") if payment is None else Reply(200, asdict(payment))

    def _payment_of(self, request: Request) -> Payment:
        """Return the payment that a request is about: a new one, or the one that its path names."""
        match request.path.split("/")[1:], request.body:
            case ["payments"], {"reference": str(reference), "customer": str(customer), "amount": int(amount)}:
                currency = request.body.get("currency", "EUR")
                payment = Payment(f"pay_{len(self._payments) + 1:06d}", reference, customer, amount, currency)
                self._payments[payment.id] = payment
                return payment
            case (["payments", name, "capture" | "adjust"], {"amount": int()}) | (["payments", name, "refund"], {}):
                if name in self._payments:
                    return self._payments[name]
        raise _RefusedError(404, f"{request.path} is nothing that can be done, or its body is not complete")

    def _reserve(self, payment: Payment) -> Reply:
        reason = "insufficient funds" if self._strict is None else f"insufficient\0funds\n{'of the customer ' * 20}"
        if self._unlucky("refused", payment) or (self._strict and not payment.amount):
            payment.status, payment.reason = "declined", reason
            raise _RefusedError(422, f"the card of {payment.customer} has expired", "expired_card")
        if self._unlucky("declined", payment):
            payment.status, payment.reason = "declined", reason
            return Reply(402, asdict(payment))
        if self._strict is not None and self._unlucky("pending", payment):
            self._pending[payment.id] = self._clock() + self._strict.pending_s
            return Reply(202, asdict(payment))
        payment.status = "authorized"
        return Reply(201, asdict(payment))

    def _make_pending_reservations(self) -> None:
        now = self._clock()
        for name in [name for name, due in self._pending.items() if due <= now]:
            del self._pending[name]
            self._payments[name].status = "authorized"

    def _settle(self, known: _Known) -> Reply:
        payment, body = known.payment, known.request.body
        match known.request.path.rpartition("/")[2], payment.status:
            case "payments", _:
                return self._reserve(payment)
            case "adjust", "authorized":
                if self._unlucky("capped", payment):
                    raise _RefusedError(402, f"{payment.customer} has no more", "insufficient_funds")
                payment.amount = body["amount"]
            case "capture", "authorized" if self._strict and not 0 < body["amount"] <= payment.amount:
                raise _RefusedError(422, f"{payment.customer} has {payment.amount} reserved", "amount_too_large")
            case "capture", "authorized" | "captured":
                payment.status, payment.amount = "captured", body["amount"]
                payment.captures.append(payment.amount)
            case "refund", "authorized" | "captured" | "refunded":
                payment.status = "refunded"
                payment.refunds.append(payment.amount)
            case action, status:
                raise _RefusedError(422, f"{payment.id} is {status}: {action} is not possible")
        return Reply(200, asdict(payment))

    def _unlucky(self, trouble: str, payment: Payment) -> bool:
        """Whether a ride meets a trouble, which is counted."""
        share: float = getattr(self._troubles, trouble)
        met = self._chance(trouble, payment.reference) < share
        self.met.update([trouble] if met else [])
        return met

    def _chance(self, purpose: str, name: str) -> float:
        return random.Random(f"{self._seed}/{purpose}/{name}").random()  # noqa: S311 - a simulation, not a secret


def _problem(status: int, title: str) -> Reply:
    return Reply(status, {"status": status, "title": title})


class GatewayServer:
    """The gateway on a loopback port of its own, for as long as the ``with`` block lasts.

    Args:
        books: the gateway.
        port: where to listen; left out, any free port.
        late_s: how much later a late request takes effect.
        hanging_s: for how long a hanging one keeps its connection.
    """

    def __init__(self, books: Books, *, port: int = 0, late_s: float = _LATE_S, hanging_s: float = _HANGING_S) -> None:
        self.books = books
        self._stopping = threading.Event()
        self._server = _Server((HOST, port), _Handler)
        self._server.exchange = self._exchange
        self._late_s = late_s
        self._hanging_s = hanging_s
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="gateway", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self._server.server_port}"

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment, the oldest first, with everything that was captured and refunded."""
        payments: list[dict[str, Any]] = self.books.look_up("/ledger", {}).body["payments"]
        return payments

    def _exchange(self, method: str, target: str, key: str | None, body: object) -> Reply | None:
        """Answer a request; None breaks the connection."""
        url = urlsplit(target)
        if method == "GET":
            return self.books.look_up(url.path, parse_qs(url.query))
        if key is None or not isinstance(body, dict):
            return _problem(400, "a request that changes something needs an Idempotency-Key and a JSON object")
        request = Request(url.path, key, body)
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
            return _problem(500, "something went wrong, and nobody knows when")
        return None if trouble is Trouble.DROPPED else reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a hanging request ends with the process
    request_queue_size = 128
    exchange: Callable[[str, str, str | None, object], Reply | None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self._answer(json.loads(content))
        except json.JSONDecodeError:
            self._answer(None)

    def _answer(self, body: object) -> None:
        reply = self.server.exchange(self.command, self.path, self.headers.get("Idempotency-Key"), body)
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

    def log_message(self, *_: object) -> None:
        """Log nothing: the ledger holds every payment."""


def main() -> None:
    """Run a gateway until it is interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m local.simulated_gateway", description="Simulate a payment gateway."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (a free one)")
    parser.add_argument("--trouble", type=float, default=0.0, metavar="SHARE", help="of the requests that go wrong")
    parser.add_argument("--declined", type=float, default=0.0, metavar="SHARE", help="of the rides that cannot be paid")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end_in_order()
    books = Books(Troubles.mixed(options.trouble, declined=options.declined), seed=options.seed)
    with GatewayServer(books, port=options.port) as gateway, suppress(KeyboardInterrupt):
        print(f"{gateway.url}  (Ctrl-C ends it; GET /ledger shows what was charged)", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
