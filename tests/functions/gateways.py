"""A gateway in this process, which does what it is told to go wrong."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

import simulated_gateway
from carride_idempotency import marshalling
from carride_idempotency.clock import epoch_ms
from carride_idempotency.testing import FakeDynamoDB, FaultyTransport, Invocation
from gateway import GatewayUnavailableError
from gateway_client import HttpGateway
from gateway_connection import HttpResponse
from local.simulated_gateway import Books, GatewayRequest, Reply, Troubles
from persistent_gateway import PersistentGateway
from stripe_gateway import RIDE, StripeGateway


class FunctionBooks(Books):
    """The books of the simulated gateway that a stack deploys.

    Its function, on tables in this process.
    """

    def __init__(self, troubles: Troubles | None = None) -> None:
        super().__init__(troubles)
        self.dynamodb = FakeDynamoDB({"gateway": ("idempotencyKey",)})
        settings = simulated_gateway.Settings(
            simulated_gateway_table="gateway", aws_region="us-east-1"
        )
        self.transport = FaultyTransport(self.dynamodb)
        self._handler = simulated_gateway.make_handler(settings, self.transport)

    def begin(self, request: GatewayRequest) -> Reply | None:
        """Leave the request to `finish`."""
        return None

    def finish(self, request: GatewayRequest) -> Reply:
        """Send a request that changes something."""
        return self.send(
            "POST", request.path, json.dumps(request.body), {"idempotency-key": request.key}
        )

    def look_up(self, path: str, query: Mapping[str, list[str]]) -> Reply:
        """Ask a question; the ledger is read from the table."""
        if path != "/ledger":
            return self.send("GET", path, query=urlencode(query, doseq=True))
        items: Any = map(marshalling.values, self.dynamodb.all("gateway"))
        return Reply(
            200, {"payments": [each for item in items for each in item.get("payments", ())]}
        )

    def send(
        self,
        method: str,
        path: str,
        body: str = "",
        headers: Mapping[str, str] = {},
        query: str = "",
    ) -> Reply:
        """Send any request, as a function URL hands it to the function."""
        http = {"method": method, "path": path}
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": query,
            "headers": headers,
            "body": body,
        }
        answer = self._handler({**event, "requestContext": {"http": http}}, Invocation(epoch_ms))
        return Reply(answer["statusCode"], json.loads(answer["body"]))


class Told(PersistentGateway):
    """A gateway's client on the simulated gateway's books, without a network and without waiting.

    By default the gateway declines nobody, and forgets the share ``forgotten`` of the keys at once.

    Attributes:
        away: whether it gives no answers.
        asked: what the gateway was asked for, questions about a ride's payment included ("find").
        sent: answers every request.
    """

    def __init__(
        self,
        books: Books | None = None,
        *,
        forgotten: float = 0.0,
        clock: Callable[[], int] = lambda: 0,
        **options: Any,
    ) -> None:
        super().__init__(
            "http://127.0.0.1:9", clock=clock, sleep=lambda _: None, jitter=lambda: 0.0, **options
        )
        self.books = books or Books(Troubles(forgotten=forgotten))
        self.away = False
        self.asked: list[str] = []
        self.sent = self.answer
        self._after: deque[Callable[[], object]] = deque()

    def then(self, happen: Callable[[], object]) -> None:
        """Have something happen after the next request took effect, before it is answered."""
        self._after.append(happen)

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment."""
        payments: list[dict[str, Any]] = self.books.look_up("/ledger", {}).body["payments"]
        return payments

    def _send(self, method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        return self.sent(method, path, key, content)

    def answer(
        self, method: str, path: str, key: str | None, content: bytes | None
    ) -> HttpResponse:
        """Have what was told to happen take place, and answer a request."""
        if self.away:
            raise GatewayUnavailableError("nobody is there")
        reply = self._reply(method, path, key, content)
        if method == "POST" and self._after:
            self._after.popleft()()
        return HttpResponse(reply.status, json.dumps(reply.body).encode())

    def _reply(self, method: str, path: str, key: str | None, content: bytes | None) -> Reply:
        raise NotImplementedError

    def _change_books(self, path: str, key: str, body: Mapping[str, Any]) -> Reply:
        """Send the books a request, and note what it asked for."""
        self.asked.append(path.rpartition("/")[2])
        request = GatewayRequest(path, key, body)
        return self.books.begin(request) or self.books.finish(request)


class FakeGateway(Told, HttpGateway):
    """The HTTP adapter."""

    def _reply(self, method: str, path: str, key: str | None, content: bytes | None) -> Reply:
        path, _, reference = path.partition("?reference=")
        if method == "GET":
            self.asked += ["find"] if reference else []
            return self.books.look_up(path, {"reference": [reference]})
        assert key is not None
        assert content is not None
        return self._change_books(path, key, json.loads(content))


UNEXPECTED: Final = "payment_intent_unexpected_state"
"""The code of Stripe's error about a change that a PaymentIntent's status does not allow."""


class FakeStripe(Told, StripeGateway):
    """The adapter of Stripe, on books that answer as Stripe's API does.

    A customer has a card if the id begins with ``cus_``.

    Attributes:
        needs_customer: whether a payment that is pending waits for the customer.
        abandoned: the payments that were canceled because they waited.
    """

    def __init__(self, books: Books | None = None, **options: Any) -> None:
        super().__init__(books, access=None, **options)
        self.keys: list[str] = []
        self.needs_customer = False
        self.abandoned: list[str] = []
        self._reserved: dict[str, int] = {}

    def _reply(self, method: str, path: str, key: str | None, content: bytes | None) -> Reply:
        path, _, query = path.partition("?")
        said = {name: values[0] for name, values in parse_qs(query).items()}
        match method, path.split("/")[2:]:
            case "GET", ["customers", customer]:
                card = {"default_payment_method": "pm_card_visa"}
                return Reply(200, {"id": customer, "invoice_settings": card})
            case "GET", ["payment_intents"]:
                self.asked.append("find")
                return self._listed(said)
            case "GET", ["payment_intents", name]:
                found = self.books.look_up(f"/payments/{name}", {})
                return self._stripes(found)
        assert method == "POST"
        assert key is not None
        assert content is not None
        self.keys.append(key)
        form = {name: values[0] for name, values in parse_qs(content.decode()).items()}
        return self._post(path.split("/")[2:], key, form)

    def _listed(self, query: Mapping[str, str]) -> Reply:
        """List a customer's payments, the newest first, as many as a page has."""
        found = [each for each in reversed(self.ledger()) if each["customer"] == query["customer"]]
        names = [each["id"] for each in found]
        if "starting_after" in query:
            found = found[names.index(query["starting_after"]) + 1 :]
        page = found[: int(query["limit"])]
        data = [self._intent_of(each) | {"latest_charge": f"ch_{each['id']}"} for each in page]
        return Reply(200, {"object": "list", "data": data, "has_more": len(found) > len(page)})

    def _post(self, path: list[str], key: str, form: Mapping[str, str]) -> Reply:
        match path:
            case ["payment_intents"]:
                assert form["capture_method"] == "manual"
                assert (form["confirm"], form["off_session"]) == ("true", "true")
                body = {
                    "reference": form[f"metadata[{RIDE}]"],
                    "customer": form["customer"],
                    "amount": int(form["amount"]),
                    "currency": form["currency"].upper(),
                }
                return self._stripes(self._change_books("/payments", key, body))
            case ["payment_intents", name, "increment_authorization"]:
                body = {"amount": int(form["amount"])}
                return self._stripes(self._change_books(f"/payments/{name}/adjust", key, body))
            case ["payment_intents", name, "capture"]:
                body = {"amount": int(form["amount_to_capture"])}
                return self._stripes(self._change_books(f"/payments/{name}/capture", key, body))
            case ["payment_intents", name, "cancel"] if "cancellation_reason" in form:
                if name in self.abandoned:
                    error = {"type": "invalid_request_error", "code": UNEXPECTED}
                    return Reply(400, {"error": error})
                assert form["cancellation_reason"] == "abandoned"
                self.abandoned.append(name)
                return self._stripes(self.books.look_up(f"/payments/{name}", {}))
            case ["payment_intents", name, "cancel"]:
                held = {"status": "authorized"}
                return self._stripes(self._change_books(f"/payments/{name}/refund", key, held))
            case ["refunds"]:
                name = form["payment_intent"]
                taken = {"status": "captured"}
                reply = self._change_books(f"/payments/{name}/refund", key, taken)
                if reply.status != 200:
                    return self._stripes(reply)
                refund = {"payment_intent": name, "amount": reply.body["amount"]}
                return Reply(200, {"id": "re_1", "status": "succeeded", **refund})
        return Reply(404, {"error": {"type": "invalid_request_error"}})

    def _stripes(self, reply: Reply) -> Reply:
        """Return the books' reply as Stripe would say it."""
        match reply.status, reply.body.get("code"):
            case ((200 | 201 | 202), _):
                return Reply(200, self._intent_of(reply.body))
            case 422, None:
                return Reply(400, {"error": {"type": "idempotency_error"}})
            case ((402 | 422), code):
                error = {"type": "card_error", "code": code or "card_declined"}
                return Reply(402, {"error": error | {"message": reply.body.get("reason")}})
        return Reply(reply.status, {"error": {"type": "api_error"}})

    def _intent_of(self, payment: Mapping[str, Any]) -> dict[str, Any]:
        """Return a payment of the books as a PaymentIntent, whose amount is what was reserved."""
        if payment["status"] == "authorized":
            self._reserved[payment["id"]] = payment["amount"]
        reserved = self._reserved.get(payment["id"], payment["amount"])
        intent = _intent(payment) | {"amount": reserved}
        if payment["id"] in self.abandoned:
            said = {"status": "canceled", "cancellation_reason": "abandoned"}
            return intent | said | {"latest_charge": None}
        if self.needs_customer and payment["status"] == "pending":
            return intent | {"status": "requires_action", "latest_charge": None}
        return intent


def _intent(payment: Mapping[str, Any]) -> dict[str, Any]:
    statuses = {
        "authorized": "requires_capture",
        "captured": "succeeded",
        "declined": "requires_payment_method",
        "pending": "processing",
        "refunded": "succeeded" if payment["captures"] else "canceled",
    }
    is_declined = payment["status"] == "declined"
    error = {"code": "card_declined", "message": payment["reason"]}
    return {
        "id": payment["id"],
        "object": "payment_intent",
        "status": statuses[payment["status"]],
        "amount": payment["amount"],
        "amount_received": sum(payment["captures"]),
        "currency": payment["currency"].lower(),
        "customer": payment["customer"],
        "metadata": {RIDE: payment["reference"]},
        "last_payment_error": error if is_declined else None,
        "latest_charge": {"object": "charge", "refunded": payment["status"] == "refunded"},
    }
