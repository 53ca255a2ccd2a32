"""A gateway that misbehaves as real ones do, in one way for as long as a delivery lasts."""

import json
from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import Any, Final, NamedTuple

from gateway import GatewayUnavailableError
from gateway_connection import HttpResponse
from local.simulated_gateway import GatewayRequest
from tests.functions.gateways import FakeGateway


class Way(StrEnum):
    """How it misbehaves."""

    REFUSES_LOOKUPS = "refuses lookups"
    LISTS_OTHERS = "lists the payments of other rides"
    ANSWERS_WRONGLY = "answers about something else"
    ENDLESS = "takes effect, and does not end its answer"
    FINISHES_LATE = "takes a request in, and finishes it within the hour"


type Exchange = Callable[[str, str, str | None, bytes | None], HttpResponse]

_REFUSALS: Final = (400, 404, 405, 410, 451)
_LATEST_S: Final = 3_500.0
"""After which a request is finished: a gateway's bound is an hour."""


class _Late(NamedTuple):
    """A request that is finished at a time, in seconds."""

    at: float
    request: GatewayRequest


class BadGateway:
    """Stands between payment and a gateway.

    Attributes:
        way: how it misbehaves now; None: not at all.
        met: how often it has misbehaved since `choose`.
    """

    def __init__(self, gateway: FakeGateway, chance: Random, clock: Callable[[], float]) -> None:
        self._gateway = gateway
        self._answer: Exchange = gateway.answer
        self._chance = chance
        self._clock = clock
        self._late: list[_Late] = []
        self.way: Way | None = None
        self.met = 0

    def choose(self, way: Way | None) -> None:
        """Misbehave in a way from now on."""
        self.way = way
        self.met = 0

    def answer(
        self, method: str, path: str, key: str | None, content: bytes | None
    ) -> HttpResponse:
        """Answer a request, or do as bad gateways do."""
        self.finish_late()
        asked = (method, path, key, content)
        match self.way, method:
            case Way.REFUSES_LOOKUPS, "GET":
                self.met += 1
                return HttpResponse(self._chance.choice(_REFUSALS), b'{"code": "gone"}')
            case Way.LISTS_OTHERS, "GET":
                return self._all_payments(asked)
            case Way.ANSWERS_WRONGLY, "POST":
                return self._wrong(asked)
            case Way.ENDLESS, "POST":
                self.met += 1
                self._answer(*asked)
                raise GatewayUnavailableError("the answer has no end")
            case Way.FINISHES_LATE, "POST":
                return self._taken_in(asked)
            case _:
                return self._answer(*asked)

    def finish_late(self) -> None:
        """Finish the requests whose time has come."""
        due = [each for each in self._late if each.at <= self._clock()]
        self._late = [each for each in self._late if each not in due]
        for each in due:
            self._gateway.books.finish(each.request)

    def _all_payments(self, asked: Any) -> HttpResponse:
        """Ignore the reference of a lookup."""
        if "?reference=" not in asked[1]:
            return self._answer(*asked)
        found = {"payments": self._gateway.ledger()}
        self.met += 1
        return HttpResponse(200, json.dumps(found).encode())

    def _wrong(self, asked: Any) -> HttpResponse:
        """Take effect, and answer about something else."""
        response = self._answer(*asked)
        said = json.loads(response.content)
        if response.status not in range(200, 300):
            return response
        self.met += 1
        wrong = self._chance.choice(
            [
                {"amount": said["amount"] * 10},
                {"reference": "order_99"},
                {"currency": "USD"},
            ]
        )
        return HttpResponse(response.status, json.dumps(said | wrong).encode())

    def _taken_in(self, asked: Any) -> HttpResponse:
        """Begin a request, answer nothing, and finish it within the hour."""
        _, path, key, content = asked
        request = GatewayRequest(path, key, json.loads(content))
        self.met += 1
        reply = self._gateway.books.begin(request)
        if reply is None:
            at = self._clock() + self._chance.uniform(0, _LATEST_S)
            self._late.append(_Late(at, request))
        raise GatewayUnavailableError("no answer")
