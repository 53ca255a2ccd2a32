"""A gateway that answers about something else than it was asked for.

Gateways have done so, and a customer's money depends on it: payment has to notice.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gateway_connection import HttpRequest, HttpResponse
from tests.world.gateway import Gateway

type Body = dict[str, Any]

_MISTAKEN: Final = ("answers about something else",)
_OF_RESERVATIONS: Final = ("another amount", "nothing", "another currency", "another ride")
_OF_CHANGES: Final = (*_OF_RESERVATIONS, "another id")
"""Nobody can tell that the id of a new payment is wrong."""
_OFTEN: Final = 0.5
"""The share of wrong answers of a gateway that is mistaken in general."""
_ANSWERED: Final = range(200, 300)
_LARGEST: Final = 1_000_000_000


def _with(**changes: object) -> Callable[[Body], Body]:
    return lambda body: {**body, **changes}


_CHANGES: Final[Mapping[str, Callable[[Body], Body]]] = {
    "another amount": lambda body: {**body, "amount": min(_LARGEST, 10 * body["amount"])},
    "nothing": _with(amount=0),
    "another currency": _with(currency="JPY"),
    "another id": _with(id="pay_of_somebody"),
    "another ride": _with(reference="order_of_somebody"),
}
"""What is wrong in the answer to a change that took effect."""


class MistakenGateway(Gateway):
    """A gateway whose answers are sometimes about something else."""

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; what it changes is right, even if the answer is not."""
        response = super().exchange(request)
        if response.status not in _ANSWERED:
            return response
        cloud = self._cloud
        what = f"answer to {request.method} {request.path}"
        share = cloud.story.gateways_share / 4
        if cloud.story.is_mistaken:
            share = _OFTEN
        if not cloud.fault("gateway", _MISTAKEN, what, share):
            return response
        body = json.loads(response.content)
        if request.method == "GET":
            changed = self._of_another_ride(body)
        else:
            kinds = _OF_RESERVATIONS if request.path == "/payments" else _OF_CHANGES
            kind = kinds[int(cloud.roll(f"mistake {cloud.doing()} {what}") * len(kinds))]
            cloud.say(f"{what} is about {kind}")
            changed = _CHANGES[kind](body)
        return HttpResponse(response.status, json.dumps(changed).encode())

    def _of_another_ride(self, body: Body) -> Body:
        """Return a lookup's answer about payments of other rides; the right one if there are none.

        A lookup by reference ignores the reference, and one of a payment finds its neighbour.
        """
        ledger = msgspec.to_builtins(self.ledger())
        if "payments" not in body:
            others = [each for each in ledger if each["id"] != body["id"]]
            return others[0] if others else body
        known = {each["id"] for each in body["payments"]}
        others = [each for each in ledger if each["id"] not in known]
        return {"payments": others + body["payments"]}
