"""The simulated gateway in this process, which does what it is told to go wrong."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import simulated_gateway
from carride_idempotency.testing import FakeDynamoDB, FaultyTransport, Invocation
from gateway import GatewayUnavailableError
from gateway_connection import HttpRequest, HttpResponse
from gateway_rules import Account, Answer
from local.simulated_gateway import Books, GatewayRequest, Troubles
from stripe_gateway import StripeGateway

type Send = Callable[[str, str, str | None, bytes | None], HttpResponse]

FIRST: Final = "pi_000001"
"""The first payment that a gateway makes."""


class FakeGateway(StripeGateway):
    """Payment's client on the simulated gateway, without a network and without waiting.

    By default the gateway declines nobody, and forgets the share ``forgotten`` of the keys at once.

    Attributes:
        away: whether it gives no answers.
        asked: the changes that it was asked for, lists ("find") and customers.
        keys: the keys of the requests.
        sent: answers every request.
    """

    def __init__(
        self,
        books: Books | None = None,
        *,
        forgotten: float = 0.0,
        account: Account = Account(),  # noqa: B008 - it is frozen
        clock: Callable[[], int] = lambda: 0,
        **options: Any,
    ) -> None:
        super().__init__(
            "http://127.0.0.1:9",
            connection=self,
            clock=clock,
            sleep=lambda _: None,
            jitter=lambda: 0.0,
            **options,
        )
        now_s = 4_000_000_000.0
        given = Books(Troubles(forgotten=forgotten), account=account, clock=lambda: now_s)
        self.books = books or given
        self.away = False
        self.asked: list[str] = []
        self.keys: list[str] = []
        self.headers: dict[str, str] = {}
        self.sent: Send = self.answer
        self._after: deque[Callable[[], object]] = deque()

    def then(self, happen: Callable[[], object]) -> None:
        """Have something happen after the next request took effect, before it is answered."""
        self._after.append(happen)

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment that was confirmed."""
        return self.books.ledger()

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Carry a request, as a connection does."""
        self.headers = request.headers
        key = request.headers.get("Idempotency-Key")
        return self.sent(request.method, request.path, key, request.content)

    def answer(
        self, method: str, path: str, key: str | None, content: bytes | None
    ) -> HttpResponse:
        """Have what was told to happen take place, and answer a request."""
        if self.away:
            raise GatewayUnavailableError("nobody is there")
        endpoint = path.partition("?")[0]
        if method == "POST":
            self.asked.append(endpoint.rpartition("/")[2])
            self.keys.append(key or "")
        elif endpoint.endswith("/payment_intents"):
            self.asked.append("find")
        elif endpoint.startswith("/v1/customers/"):
            self.asked.append("customer")
        request = GatewayRequest(method, path, key or "", (content or b"").decode())
        answer = self.books.answer(request)
        if method == "POST" and self._after:
            self._after.popleft()()
        return HttpResponse(answer.status, json.dumps(answer.body).encode())


def send(books: Books, method: str, path: str, key: str = "", form: str = "") -> Answer:
    """Send the gateway a request, as somebody else than payment does."""
    return books.answer(GatewayRequest(method, path, key, form))


class FunctionBooks(Books):
    """The simulated gateway that a stack deploys: its function, on a table in this process."""

    def __init__(self, troubles: Troubles | None = None) -> None:
        super().__init__(troubles)
        self.dynamodb = FakeDynamoDB({"gateway": ("customer", "id")})
        settings = simulated_gateway.Settings(
            simulated_gateway_table="gateway", aws_region="us-east-1"
        )
        self.transport = FaultyTransport(self.dynamodb)
        self._handler = simulated_gateway.make_handler(
            settings, self.transport, clock=lambda: 4_000_000_000.0
        )

    def answer(self, request: GatewayRequest) -> Answer:
        """Send a request as a function URL hands it to the function."""
        path, _, query = request.target.partition("?")
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {"idempotency-key": request.key},
            "body": request.content,
            "requestContext": {"http": {"method": request.method, "path": path}},
        }
        answer = self._handler(event, Invocation(lambda: 0))
        return Answer(answer["statusCode"], json.loads(answer["body"]))
