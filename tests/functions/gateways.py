"""A gateway in this process, which does what it is told to go wrong."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import simulated_gateway
from carride_idempotency import marshalling
from carride_idempotency.clock import epoch_ms
from carride_idempotency.testing import FakeDynamoDB, FaultyTransport, Invocation
from gateway import GatewayUnavailableError
from gateway_client import HttpGateway
from gateway_connection import Response
from local.simulated_gateway import Books, Reply, Request, Troubles


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

    def begin(self, request: Request) -> Reply | None:
        """Leave the request to `finish`."""
        return None

    def finish(self, request: Request) -> Reply:
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


class FakeGateway(HttpGateway):
    """The HTTP adapter on the simulated gateway's books, without a network and without waiting.

    By default the gateway declines nobody, and forgets the share ``forgotten`` of the keys at once.

    Attributes:
        away: whether it gives no answers.
        asked: what the gateway was asked for, questions about a ride's payment included ("find").
        sent: answers every request.
    """

    def __init__(self, books: Books | None = None, *, forgotten: float = 0.0) -> None:
        super().__init__(
            "http://127.0.0.1:9", clock=lambda: 0, sleep=lambda _: None, jitter=lambda: 0.0
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

    def _send(self, method: str, path: str, key: str | None, content: bytes | None) -> Response:
        return self.sent(method, path, key, content)

    def answer(self, method: str, path: str, key: str | None, content: bytes | None) -> Response:
        """Have what was told to happen take place, and answer a request."""
        if self.away:
            raise GatewayUnavailableError("nobody is there")
        reply = self._reply(method, path, key, content)
        if method == "POST" and self._after:
            self._after.popleft()()
        return Response(reply.status, json.dumps(reply.body).encode())

    def _reply(self, method: str, path: str, key: str | None, content: bytes | None) -> Reply:
        path, _, reference = path.partition("?reference=")
        if method == "GET":
            self.asked += ["find"] if reference else []
            return self.books.look_up(path, {"reference": [reference]})
        assert key is not None
        assert content is not None
        self.asked.append(path.rpartition("/")[2])
        request = Request(path, key, json.loads(content))
        return self.books.begin(request) or self.books.finish(request)
