"""Serves the simulated payment gateway over HTTP, with troubles at given shares of the changes.

    with GatewayServer(Books(Troubles(dropped=0.05), seed=7)) as gateway:
        cloud.deploy(PaymentGatewayUrl=gateway.url)

Its ledger is the evidence of charges. The rules are those of the gateway that a stack of stage
`dev` deploys: `gateway_rules`. Here keys are kept as well, errors under them, and requests may be
slow, late or lost.
"""

import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

import gateway_rules as rules
from gateway_rules import Account, Answer, Customer, Intent, RefusedError, Request

HOST: Final = "127.0.0.1"


class Trouble(StrEnum):
    """What can happen to a request."""

    HANGING = "hanging"  # it has no effect and gets no answer
    LATE = "late"  # it takes effect long after the client has given up waiting
    BUSY = "busy"  # it is refused for now, without effect
    FAILED = "failed"  # it takes effect, and is answered with an error
    DROPPED = "dropped"  # it takes effect, and the connection breaks before the answer


class Troubles(NamedTuple):
    """Shares of changes, rides, customers or keys that meet each trouble."""

    hanging: float = 0.0
    late: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    dropped: float = 0.0
    declined: float = 0.0  # rides whose reservation is refused
    forgotten: float = 0.0  # keys that are forgotten as soon as they are used
    refused: float = 0.0  # rides for which no payment can be prepared: the card is detached
    pending: float = 0.0  # rides whose reservation is made only after a while
    capped: float = 0.0  # rides whose reservation cannot be raised
    kept: float = 0.0  # keys under which an error is kept: no request with them has an effect
    unknown: float = 0.0  # customers whom the gateway does not know
    asked: float = 0.0  # rides whose customer would have to confirm
    expired: float = 0.0  # rides whose reservation ends within hours


class GatewayRequest(NamedTuple):
    """A request, under the key of its header ``Idempotency-Key``; empty without one."""

    method: str
    target: str
    key: str = ""
    content: str = ""


@dataclass(slots=True)
class _Known:
    """A request under its key; its answer is None until it has taken effect."""

    request: GatewayRequest
    since: float
    answer: Answer | None = None


class Books:
    """The gateway without its network: PaymentIntents, and the keys that requests are known by.

    The same seed gives the same requests, rides and customers the same troubles. A key is known for
    ``keys_s`` seconds, a pending reservation is made after ``pending_s``, and a reservation that
    ends early does so after ``hold_s``, by a clock in seconds that only grows.

    Attributes:
        met: how often each trouble was met.
        intents: every PaymentIntent, by its id, in the order in which they were made.
    """

    def __init__(
        self,
        troubles: Troubles | None = None,
        *,
        seed: int = 0,
        keys_s: float = math.inf,
        pending_s: float = 3.0,
        hold_s: float = 7_200.0,
        account: Account = Account(),  # noqa: B008 - it is frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.met: Counter[str] = Counter()
        self.intents: dict[str, Intent] = {}
        self.account = account
        self._troubles = troubles or Troubles()
        self._seed = seed
        self._keys_s = keys_s
        self._pending_s = pending_s
        self._hold_s = hold_s
        self._clock = clock
        self._lock = threading.Lock()
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

    def begin(self, request: GatewayRequest) -> Answer | None:
        """Accept a request; return None if it has to be finished, else the answer."""
        with self._lock:
            if not request.key:
                return self._carried_out(request)
            if self._meets("kept", request.key):
                self.met["kept"] += 1
                return _problem(500, "api_error")
            now = self._clock()
            known = self._known.get(request.key)
            if known is None or (known.answer and now - known.since > self._keys_s):
                self._known[request.key] = _Known(request, now)
                return None
            if known.request != request:
                return _problem(400, "idempotency_error")
            in_use = _problem(409, "invalid_request_error", "idempotency_key_in_use")
            return known.answer or in_use

    def finish(self, request: GatewayRequest) -> Answer:
        """Let an accepted request take effect, and return the answer."""
        with self._lock:
            answer = self._carried_out(request)
            self._known[request.key].answer = answer
            if self._meets("forgotten", request.key):
                self.met["forgotten"] += 1
                del self._known[request.key]
            return answer

    def answer(self, request: GatewayRequest) -> Answer:
        """Accept a request and finish it."""
        return self.begin(request) or self.finish(request)

    def forget_keys(self) -> None:
        """Forget every key, as Stripe does after a day."""
        with self._lock:
            self._known = {key: each for key, each in self._known.items() if not each.answer}

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment that was confirmed, the oldest first."""
        with self._lock:
            for each in self.intents.values():
                rules.pass_time(each, self._clock())
            return rules.ledger(list(self.intents.values()))

    def customer_of(self, customer: str, ride: str) -> Customer:
        """Return who pays for a ride; before there is a ride, who the customer is."""
        named = rules.customer_named(customer)
        if named != rules.ANYBODY:
            return named
        if self._meets("unknown", customer):
            return Customer(is_known=False)
        if not ride:
            return rules.ANYBODY
        return Customer(
            is_detached=self._meets("refused", ride),
            declines="insufficient_funds" if self._meets("declined", ride) else "",
            asks=self._meets("asked", ride),
            raises=not self._meets("capped", ride),
            pends_s=self._pending_s if self._meets("pending", ride) else 0.0,
            hold_s=self._hold_s if self._meets("expired", ride) else 7.0 * rules.DAY_S,
        )

    def _carried_out(self, request: GatewayRequest) -> Answer:
        try:
            asked = rules.read(request.method, request.target, request.content)
            return self._answer(asked)
        except RefusedError as refused:
            return refused.answer()

    def _answer(self, asked: Request) -> Answer:
        now_s = self._clock()
        match asked.verb:
            case "customer":
                return rules.customer(asked.subject, self._customer(asked.subject, ""))
            case "list":
                name = asked.form["customer"]
                found = [each for each in self.intents.values() if each.customer == name]
                for each in found:
                    rules.pass_time(each, now_s)
                who = self._customer(name, "")
                return rules.listed(asked, reversed(found), who, self.account)
            case "create":
                who = self._customer(asked.form["customer"], asked.form[rules.RIDE])
                name = f"pi_{len(self.intents) + 1:06d}"
                intent = rules.created(asked, name, who, self.account, now_s)
                self.intents[name] = intent
                return rules.answered(asked, intent)
        if asked.subject not in self.intents:
            raise rules.missing(asked.subject)
        intent = self.intents[asked.subject]
        rules.pass_time(intent, now_s)
        if asked.verb != "look":
            who = self._customer(intent.customer, intent.ride)
            rules.change(intent, asked, who, self.account, now_s)
        return rules.answered(asked, intent)

    def _customer(self, customer: str, ride: str) -> Customer:
        """Return who pays for a ride, and count the troubles that this customer means."""
        who = self.customer_of(customer, ride)
        met = {
            "unknown": not who.is_known,
            "refused": who.is_detached,
            "declined": bool(who.declines),
            "asked": who.asks,
            "capped": not who.raises,
            "pending": who.pends_s > 0,
            "expired": who.hold_s < rules.DAY_S,
        }
        self.met.update(name for name, is_met in met.items() if is_met)
        return who

    def _meets(self, trouble: str, name: str) -> bool:
        """Return whether a ride, a customer or a key meets a trouble."""
        share: float = getattr(self._troubles, trouble)
        return share > 0 and self._chance(trouble, name) < share

    def _chance(self, purpose: str, name: str) -> float:
        return random.Random(f"{self._seed}/{purpose}/{name}").random()  # noqa: S311 - a simulation, not a secret


def _problem(status: int, kind: str, code: str | None = None) -> Answer:
    return Answer(status, {"error": {"type": kind, "code": code, "message": "something is wrong"}})


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
        return self.books.ledger()

    def exchange(self, request: GatewayRequest, headers: Mapping[str, str]) -> Answer | None:
        """Answer a request; None breaks the connection."""
        if not headers.get("Stripe-Version"):
            return _problem(400, "invalid_request_error", "version_missing")
        trouble = self.books.trouble(request.key) if request.key else None
        if trouble is Trouble.HANGING:
            self._stopping.wait(self._hanging_s)
            return None
        if trouble is Trouble.BUSY:
            return _problem(503, "api_error")
        answer = self.books.begin(request)
        if answer is None:
            if trouble is Trouble.LATE:
                self._stopping.wait(self._late_s)
            answer = self.books.finish(request)
        if trouble is Trouble.FAILED:
            return _problem(500, "api_error")
        return None if trouble is Trouble.DROPPED else answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GatewayServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        key = self.headers.get("Idempotency-Key", "")
        request = GatewayRequest(self.command, self.path, key, content)
        answer = self.server.exchange(request, dict(self.headers))
        if answer is None:
            self.close_connection = True
            return
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):  # the client has given up
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Log nothing: the ledger holds every payment."""
