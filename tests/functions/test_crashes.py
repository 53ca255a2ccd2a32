"""Every consumer under a fault at each call that it makes.

One effect, nothing lost, no key left behind.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from carride.facts import Fact
from carride_idempotency.testing import crash_everywhere, sqs_event
from carride_idempotency.testing.worlds import CRASH_AFTER, CRASH_BEFORE, Fault
from examples.minimal.consumer import consumer as example
from gateway import GatewayUnavailableError
from tests.functions.gateways import FakeGateway
from tests.functions.world import BOOKING, World, request
from tests.kit.rides import Life

pytestmark = pytest.mark.proof

RIDE: Final = Life()


class Case(NamedTuple):
    """An event, and what happened before it."""

    consumer: str
    event: Any
    before: Fact | None = None
    forgotten: float = 0.0  # the share of keys that the gateway forgets at once

    def world(self) -> World:
        """Return a world with a booking, a car and a gateway, after the earlier fact's effect."""
        world = World(FakeGateway(forgotten=self.forgotten))
        world.park("car_01")
        if self.consumer == "api":
            world.booked()
        if self.before:
            world.deliver(self.consumer, world.envelope(self.before))
        world.gateway.sent = world.external(
            "gateway",
            world.gateway.sent,
            key=lambda *request: request[2],
            lost=GatewayUnavailableError,
        )
        return world

    def run(self, make: Callable[[], World]) -> int:
        """Deliver the event with each fault, each time in a new world."""
        settings: dict[str, Any] = {
            "world": make,
            "without": ["taken over"] if self.forgotten else [],
        }
        if self.consumer == "example":
            return crash_everywhere(example.handler, self.event, **settings)
        return crash_everywhere(
            lambda world: world.process(self.consumer)[self.consumer],
            self.event,
            state=books,
            **settings,
        )


def books(world: World) -> object:
    """Return what must be as it is without a fault.

    Payments at the gateway, cars, bookings and events.
    """
    paid = [(each["status"], each["captures"], each["refunds"]) for each in world.gateway.ledger()]
    bookings = sorted(item["version"] for item in world.items("bookings"))
    return (
        paid,
        world.cars(),
        bookings,
        sorted(world.emitted()),
        world.state("payments"),
        world.state("assignments"),
    )


def heard(fact: Fact) -> dict[str, Any]:
    """Return the event of a fact."""
    return World().envelope(fact)


CHANGE: Final = {"action": "accept", "version": 1}
EACH: Final = {
    "ride-history": Case("ride-history", heard(RIDE.created)),
    "dispatch": Case("dispatch", sqs_event(heard(RIDE.accepted), clock=World().clock)),
    "payment": Case("payment", heard(RIDE.assigned)),
    "api": Case("api", request("POST", "/carrides", BOOKING)),
    "example": Case("example", heard(RIDE.completed)),
}
FURTHER: Final = {
    "dispatch completed": Case(
        "dispatch", sqs_event(heard(RIDE.completed), clock=World().clock), RIDE.accepted
    ),
    "api accept": Case("api", request("PUT", f"/carrides/{World().booked()}", CHANGE)),
} | {
    f"payment {name}{' forgotten' if forgotten else ''}": Case(
        "payment", heard(last), before, forgotten
    )
    for name, last, before in (
        ("assigned", RIDE.assigned, None),
        ("completed", RIDE.completed, RIDE.assigned),
        ("completed first", RIDE.assigned, RIDE.completed),
        ("cancelled", RIDE.cancelled, RIDE.assigned),
        ("cancelled first", RIDE.assigned, RIDE.cancelled),
        ("cancelled late", RIDE.cancelled, RIDE.completed),
    )
    # A payment that is prepared twice, because its key is forgotten, has another id.
    for forgotten in ((0.0,) if name in {"assigned", "completed first"} else (0.0, 1.0))
}


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the table of the example."""
    monkeypatch.setenv("POINTS_TABLE", "points")


@pytest.mark.parametrize("case", (EACH | FURTHER).values(), ids=EACH | FURTHER)
def test_consumers_survive_a_fault_at_every_call(case: Case) -> None:
    """Whatever fails at any call, the event takes effect once, and its key is free."""
    assert case.run(case.world) >= 5


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("kind", [CRASH_BEFORE, CRASH_AFTER])
def test_a_killed_request_leaves_ride_and_event_or_neither(kind: str, at: int) -> None:
    """Whether or not its client sends it again: a booking of version n has n events."""
    for case in (EACH["api"], FURTHER["api accept"]):
        world = case.world()
        world.invoke(
            world.handlers["api"], case.event, fault=Fault(kind, lambda number, _: number == at)
        )
        assert sum(item["version"] for item in world.items("bookings")) == len(world.emitted())
