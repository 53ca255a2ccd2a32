"""A stack with cars and a gateway, and how tests have rides happen in it."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from carride.facts import Fact
from local.local_aws import LocalAws, Stack
from local.reconciler import reconcile
from local.simulated_gateway import Books, GatewayServer, Troubles
from ops.audit import collect_evidence, gateway_payments
from ops.audit.saga import Saga, saga_of
from tests.kit.rides import Life
from tests.kit.rides import event as event_of
from tests.pipeline.pipeline import Pipeline

CARS: Final = 2
SEED: Final = 1
DECLINED: Final = 0.5
"""Share of the rides that the gateway declines."""


class Town(Pipeline):
    """Dispatch, payment and a gateway, deployed from the real template."""

    def __init__(self, cloud: LocalAws, stack: Stack, gateway: GatewayServer) -> None:
        super().__init__(cloud, stack)
        self.gateway = gateway
        self._solvent = itertools.filterfalse(is_broke, names())
        self._broke = filter(is_broke, names())

    def ride(self, *, broke: bool = False) -> Life:
        """Return a new ride, whose customer can pay, or cannot."""
        return Life(next(self._broke if broke else self._solvent), pickup="sector_10")

    def hear(self, *facts: Fact) -> None:
        """Put facts on the bus one after the other, each when the one before has run its course."""
        for fact in facts:
            self.put(event_of(fact).to_detail())
            self.settle()

    def saga(self, *rides: Life) -> Saga:
        """Return how these rides have ended, by all evidence."""
        names = {ride.order_id for ride in rides}
        found = collect_evidence(
            self.stack, grace=timedelta(), payments=gateway_payments(self.gateway.ledger())
        )
        return saga_of(
            found._replace(
                published=[
                    event
                    for event in found.published
                    if event.named and event.named.order_id in names
                ],
                items=[item for item in found.items if item.order_id in names],
                cars={car: name if name in names else None for car, name in found.cars.items()},
                payments=[payment for payment in found.payments or () if payment.order_id in names],
            )
        )

    def reconcile(self) -> None:
        """Run the reconciler as if it were tomorrow."""
        reconcile(self.stack, self.settle)

    def charges(self, *rides: Life) -> list[dict[str, Any]]:
        """Return what the gateway has of these rides."""
        names = {ride.order_id for ride in rides}
        return [charge for charge in self.gateway.ledger() if charge["reference"] in names]


def names() -> Iterator[str]:
    """Yield names for rides."""
    return (f"order_{number:03d}" for number in itertools.count(1))


def is_broke(order_id: str) -> bool:
    """Whether the gateway of these tests declines a ride."""
    books = Books(Troubles(declined=DECLINED), seed=SEED)
    return bool(books.customer_of("customer_a", order_id).declines)
