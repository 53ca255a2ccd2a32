"""A gateway that answers about something else than it was asked for.

Gateways have done so, and a customer's money depends on it: payment has to notice.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway_connection import HttpRequest, HttpResponse
from gateway_rules import shown
from tests.world.gateway import Gateway

type Body = dict[str, Any]

_MISTAKEN: Final = ("answers about something else",)
_OF_RESERVATIONS: Final = ("another amount", "nothing", "another currency", "another ride")
_OF_CHANGES: Final = (*_OF_RESERVATIONS, "another id")
"""Nobody can tell that the id of a new payment is wrong."""
_OF_REFUNDS: Final = ("another amount", "nothing", "another id")
_OFTEN: Final = 0.5
"""The share of wrong answers of a gateway that is mistaken in general."""
_LARGEST: Final = 10_000_000


def _times_ten(body: Body) -> Body:
    """Return a payment, or a refund, of another amount."""
    changed = dict(body)
    for name in ("amount", "amount_received"):
        if changed.get(name):
            larger = min(_LARGEST, 10 * changed[name])
            changed[name] = larger if larger != changed[name] else 1
    return changed


def _nothing(body: Body) -> Body:
    return body | {name: 0 for name in ("amount", "amount_received") if name in body}


def _with(**changes: object) -> Callable[[Body], Body]:
    return lambda body: {**body, **changes}


_CHANGES: Final[Mapping[str, Callable[[Body], Body]]] = {
    "another amount": _times_ten,
    "nothing": _nothing,
    "another currency": _with(currency="jpy"),
    "another id": _with(id="pi_of_somebody", payment_intent="pi_of_somebody"),
    "another ride": _with(metadata={"carride_ride": "order_of_somebody"}),
}
"""What is wrong in the answer to a change that took effect."""


class MistakenGateway(Gateway):
    """A gateway whose answers are sometimes about something else."""

    def exchange(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; what it changes is right, even if the answer is not."""
        response = super().exchange(request)
        if response.status != 200:
            return response
        cloud = self._cloud
        endpoint = request.path.partition("?")[0]
        what = f"answer to {request.method} {endpoint}"
        share = cloud.story.gateways_share / 4
        if cloud.story.is_mistaken:
            share = _OFTEN
        if not cloud.fault("gateway", _MISTAKEN, what, share):
            return response
        body = json.loads(response.content)
        if request.method == "GET":
            changed = self._of_another(body)
        else:
            kinds: Sequence[str] = _OF_CHANGES
            if endpoint.endswith("/payment_intents"):
                kinds = _OF_RESERVATIONS
            if endpoint.endswith("/refunds"):
                kinds = _OF_REFUNDS
            kind = kinds[int(cloud.roll(f"mistake {cloud.doing()} {what}") * len(kinds))]
            cloud.say(f"{what} is about {kind}")
            changed = _CHANGES[kind](body)
        return HttpResponse(response.status, json.dumps(changed).encode())

    def _of_another(self, body: Body) -> Body:
        """Return a lookup's answer about somebody else; the right one if there is nobody.

        A list ignores the customer, and a lookup finds the customer or the payment beside.
        """
        intents = [shown(each, expanded=True) for each in self.books.intents.values()]
        if body["object"] == "list":
            known = {each["id"] for each in body["data"]}
            others = [each for each in intents if each["id"] not in known]
            return body | {"data": others + body["data"]}
        if body["object"] == "customer":
            return body | {"id": "cus_of_somebody"}
        others = [each for each in intents if each["id"] != body["id"]]
        return others[0] if others else body
