"""A gateway in this process, which does what it is told to go wrong."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from gateway import GatewayUnavailableError
from gateway_client import HttpGateway
from local.simulated_gateway import Books, Reply, Request, Troubles


class KilledError(BaseException):
    """Ends a run as Lambda does when it stops a process: nothing can be done about it any more."""


class FakeGateway(HttpGateway):
    """The HTTP adapter on the simulated gateway's books, without a network and without waiting.

    Args:
        books: the gateway; left out, one that declines nobody and forgets that share of the keys at once.
        forgotten: the share.

    Attributes:
        away: whether it gives no answers.
        asked: what the gateway was asked for, questions about a ride's payment included ("find").
    """

    def __init__(self, books: Books | None = None, *, forgotten: float = 0.0) -> None:
        super().__init__("http://127.0.0.1:9", clock=lambda: 0, sleep=lambda _: None, jitter=lambda: 0.0)
        self.books = books or Books(Troubles(forgotten=forgotten))
        self.away = False
        self.asked: list[str] = []
        self._after: deque[Callable[[], object]] = deque()

    def then(self, happen: Callable[[], object]) -> None:
        """Have something happen after the next request took effect, before it is answered."""
        self._after.append(happen)

    def no_longer(self) -> None:
        """Have nothing happen any more."""
        self._after.clear()

    def then_die(self) -> None:
        """Have the process killed after the next request took effect."""

        def die() -> None:
            raise KilledError

        self.then(die)

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment."""
        payments: list[dict[str, Any]] = self.books.look_up("/ledger", {}).body["payments"]
        return payments

    def _send(self, method: str, path: str, key: str | None, content: bytes | None) -> tuple[int, bytes]:
        if self.away:
            raise GatewayUnavailableError("nobody is there")
        reply = self._reply(method, path, key, content)
        if method == "POST" and self._after:
            self._after.popleft()()
        return reply.status, json.dumps(reply.body).encode()

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
