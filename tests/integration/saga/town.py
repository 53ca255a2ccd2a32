"""A stack with cars and a gateway, and how tests have rides happen in it."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from carride.events import Fact
from local.gateway import Books, GatewayServer, Request, Troubles
from local.laptop import Laptop, Stack
from ops import audit, saga
from ops.witnesses import witnesses
from tests.unit.functions.saga import Life, told

QUIET_SECONDS = 60.0


class Town:
    """Dispatch, payment and a gateway, deployed from the real template."""

    def __init__(self, laptop: Laptop, stack: Stack, gateway: GatewayServer) -> None:
        self.laptop = laptop
        self.stack = stack
        self.gateway = gateway
        self._solvent, self._broke = (itertools.filterfalse(is_broke, names()), filter(is_broke, names()))

    def ride(self, *, broke: bool = False) -> Life:
        """Return a new ride, whose customer can pay, or cannot."""
        return Life(next(self._broke if broke else self._solvent), pickup="sector_10")

    def hear(self, *facts: Fact) -> None:
        """Put facts on the bus one after the other, each when the one before has run its course."""
        for fact in facts:
            self.put(fact)
            self.laptop.wait_until_quiet(timeout=QUIET_SECONDS)

    def put(self, *facts: Fact) -> None:
        """Put facts on the bus, all at once."""
        entries = [
            {
                "EventBusName": self.stack.outputs["CarRideBusName"],
                "Source": "acr.com.car-ride",
                "DetailType": "CarRideEvent",
                "Detail": json.dumps(told(fact).to_detail()),
            }
            for fact in facts
        ]
        answer = self.laptop.client("events").put_events(Entries=entries)
        assert answer["FailedEntryCount"] == 0

    def saga(self) -> saga.Saga:
        """Return how the rides have ended, by all witnesses."""
        clients = audit.Clients(*(self.laptop.client(service) for service in ("dynamodb", "logs", "sqs")))
        return saga.check(witnesses(clients, self.stack.outputs, self.gateway.ledger()))

    def charges(self) -> list[dict[str, Any]]:
        """Return the gateway's ledger."""
        return self.gateway.ledger()


def names() -> Iterator[str]:
    """Yield names for rides."""
    return (f"order_{number:03d}" for number in itertools.count(1))


def is_broke(order_id: str) -> bool:
    """Whether the gateway of these tests declines a ride."""
    books = Books(Troubles(declined=0.5), seed=1)
    request = Request("/payments", "key", {"reference": order_id, "customer": "customer_a", "amount": 1})
    return (books.begin(request) or books.finish(request)).status == 402
