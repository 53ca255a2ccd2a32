"""A thin front of localstripe: what Stripe documents and localstripe lacks.

localstripe keeps PaymentIntents, charges and refunds, and changes them as Stripe does. It lacks:

- ``Idempotency-Key``: a request under a known key gets the first answer, errors included; with
  another content it gets an idempotency_error, and 409 while the first is worked on. Keys are
  forgotten when they are told to be.
- the lists of PaymentIntents by customer and time, and their order: the newest first
- ``amount_received``
- ``off_session`` of a confirmation, which it refuses
- ``increment_authorization``: no card allows a raise
- that a change which the status does not allow is refused, and a second refund
"""

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlencode, urlsplit

import urllib3

HOST: Final = "127.0.0.1"
INTENTS: Final = "/v1/payment_intents"
_ALLOWED: Final = {
    "confirm": {"requires_confirmation"},
    "capture": {"requires_capture"},
    "cancel": {
        "requires_action",
        "requires_capture",
        "requires_confirmation",
        "requires_payment_method",
    },
}
"""The statuses of a PaymentIntent in which it can be changed."""
SECRET: Final = "sk_test_12345"  # noqa: S105 - of nobody


class Answer(NamedTuple):
    """An answer of Stripe."""

    status: int
    body: Any


class StripeFront(HTTPServer):
    """The front on a free loopback port, for as long as the ``with`` block lasts.

    It answers one request after the other: a thread for each would be one that payment left behind.

    Attributes:
        posts: the paths and keys of the requests that localstripe has got.
    """

    def __init__(self, localstripe: str) -> None:
        super().__init__((HOST, 0), _Handler)
        self.posts: list[tuple[str, str]] = []
        self._localstripe = localstripe
        self._http = urllib3.PoolManager(headers={"Authorization": f"Bearer {SECRET}"})
        self._received: dict[str, int] = {}
        self._refunded: set[str] = set()
        self._answers: dict[str, tuple[tuple[str, str], Answer]] = {}

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._http.clear()

    @property
    def url(self) -> str:
        """The address of the front."""
        return f"http://{HOST}:{self.server_port}"

    def clear(self) -> None:
        """Forget every payment and key. Customers stay."""
        for intent in self.intents():
            self._http.request("DELETE", f"{self._localstripe}{INTENTS}/{intent['id']}")
        self._received.clear()
        self.posts.clear()
        self.forget_keys()

    def forget_keys(self) -> None:
        """Forget every key, as Stripe does after a day."""
        self._answers.clear()

    def customer(self, card: str = "pm_card_visa") -> str:
        """Make a customer who pays with a test card, and return the id."""
        form = f"payment_method={card}&invoice_settings[default_payment_method]={card}"
        name: str = self._forward("POST", "/v1/customers", form).body["id"]
        return name

    def customer_to_ask(self) -> str:
        """Make a customer whose card wants each payment confirmed, and return the id."""
        form = "type=card&card[number]=4000008260003178&card[exp_month]=12&card[exp_year]=2030"
        card = self._forward("POST", "/v1/payment_methods", f"{form}&card[cvc]=123").body["id"]
        return self.customer(card)

    def intents(self) -> list[Any]:
        """Return every PaymentIntent, the newest first."""
        found = self._forward("GET", f"{INTENTS}?limit=10000").body["data"]
        return [*reversed(found)]

    def answer(self, method: str, target: str, key: str | None, content: str) -> Answer:
        """Answer a request."""
        path = urlsplit(target).path
        if method == "GET" and path == INTENTS:
            return self._listed(parse_qs(urlsplit(target).query))
        if method == "GET" or key is None:
            return self._forward(method, target, content)
        request = (target, content)
        if key not in self._answers:
            self.posts.append((path, key))
            self._answers[key] = (request, self._forward(method, target, content))
        first, answer = self._answers[key]
        if first != request:
            return Answer(400, {"error": {"type": "idempotency_error"}})
        return answer

    def _listed(self, query: dict[str, list[str]]) -> Answer:
        """Return a page of a customer's PaymentIntents."""
        since = int(query["created[gte]"][0])
        found = [
            each
            for each in self.intents()
            if each["customer"] == query["customer"][0] and each["created"] >= since
        ]
        limit = int(query["limit"][0])
        return Answer(200, {"data": found[:limit], "has_more": len(found) > limit})

    def _forward(self, method: str, target: str, content: str = "") -> Answer:
        """Have localstripe answer a request, and add what it leaves out."""
        verb = urlsplit(target).path.rpartition("/")[2]
        if verb == "refunds" and content in self._refunded:
            code = "charge_already_refunded"
            return Answer(400, {"error": {"type": "invalid_request_error", "code": code}})
        if verb == "increment_authorization":
            return Answer(400, {"error": {"type": "invalid_request_error"}})
        if verb in _ALLOWED and not self._allows(target, verb):
            code = "payment_intent_unexpected_state"
            return Answer(400, {"error": {"type": "invalid_request_error", "code": code}})
        form = {"Content-Type": "application/x-www-form-urlencoded", **self._http.headers}
        path = urlsplit(target).path
        asked = {name: values[0] for name, values in parse_qs(content).items()}
        asked.pop("off_session", None)
        content = urlencode(asked)
        url = f"{self._localstripe}{target}"
        answer = self._http.request(method, url, body=content.encode(), headers=form)
        if verb == "refunds" and answer.status == 200:
            self._refunded.add(content)
        body = answer.json() if answer.data.startswith(b"{") else {}
        if path.endswith("/capture") and answer.status == 200:
            self._received[body["id"]] = int(asked["amount_to_capture"])
        for each in body.get("data", [body]):
            if each.get("object") == "payment_intent":
                each["amount_received"] = self._received.get(each["id"], 0)
        return Answer(answer.status, body)

    def _allows(self, target: str, verb: str) -> bool:
        """Return whether a PaymentIntent's status allows a change."""
        name = urlsplit(target).path.removesuffix(f"/{verb}")
        return self._forward("GET", name).body.get("status") in _ALLOWED[verb]


class _Handler(BaseHTTPRequestHandler):
    server: StripeFront

    def do_POST(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            answer = Answer(401, {"error": {"type": "invalid_request_error"}})
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            key = self.headers.get("Idempotency-Key")
            answer = self.server.answer(self.command, self.path, key, content)
        data = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(data)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Log nothing."""
