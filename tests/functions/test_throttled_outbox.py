"""An outbox without capacity refuses what would write to it: work is late, nothing is lost."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest

from api.simulations import MOST_EVENTS
from carride.facts import Fact
from carride.simulation_spec import LONGEST_LIFE
from carride_idempotency import RetryableError
from carride_idempotency.stores.transport import ServiceError
from carride_idempotency.testing.dynamodb import FakeDynamoDB
from tests.functions.world import TABLES, World
from tests.kit.rides import Life
from tools.costs import bill
from tools.transformed import stack

_TRANSACTION: Final = "TransactWriteItems"


class Capacity:
    """What is left of the outbox's write units; a transaction that needs more is cancelled."""

    def __init__(self, units: float, patch: pytest.MonkeyPatch) -> None:
        self.left = units
        self.refused = 0
        stock: Any = FakeDynamoDB.__call__

        def call(dynamodb: FakeDynamoDB, operation: str, request: Mapping[str, Any]) -> Any:
            if operation == _TRANSACTION:
                self._take(request)
            return stock(dynamodb, operation, request)

        patch.setattr(FakeDynamoDB, "__call__", call)

    def _take(self, request: Mapping[str, Any]) -> None:
        tables = [
            action["TableName"] for each in request["TransactItems"] for action in each.values()
        ]
        units = 2 * tables.count("outbox")
        if units <= self.left:
            self.left -= units
            return
        self.refused += 1
        reasons = [
            {"Code": "ProvisionedThroughputExceeded" if table == "outbox" else "None"}
            for table in tables
        ]
        raise ServiceError(
            "TransactionCanceledException",
            400,
            "Transaction cancelled, please refer cancellation reasons for specific reasons",
            {"CancellationReasons": reasons},
        )


class Case(NamedTuple):
    """An event of which a consumer tells the outbox, and what happened before it."""

    consumer: str
    fact: Fact
    before: Fact | None = None

    def world(self) -> World:
        """Return a world with a free car, after the earlier fact's effect."""
        world = World()
        world.park("car_01")
        if self.before:
            world.deliver(self.consumer, world.envelope(self.before))
        return world

    def deliver(self, world: World, attempt: int = 1) -> str:
        """Deliver the event."""
        return world.deliver(self.consumer, world.envelope(self.fact), attempt=attempt)


LIFE: Final = Life()
CASES: Final = (
    Case("dispatch", LIFE.accepted),
    Case("dispatch", LIFE.completed, LIFE.accepted),
    Case("payment", LIFE.assigned),
    Case("payment", LIFE.completed, LIFE.assigned),
)


def test_a_request_without_capacity_is_told_to_come_again_and_stores_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API answers 503 with Retry-After; the same key then books one ride, and changes it."""
    capacity = Capacity(0, monkeypatch)
    refused = world.book()
    assert (refused.status, refused.problem) == (503, "unavailable")
    assert int(refused.headers["Retry-After"]) > 0
    assert not any(world.items(table) for table in TABLES)
    capacity.left = 4  # the first transaction finds the record of the refusal, and is billed too
    booked = world.book()
    assert booked.status == 201
    order = booked.body["orderID"]
    capacity.left = 0
    refused = world.change(order, "accept", 1)
    assert (refused.status, refused.problem) == (503, "unavailable")
    assert world.items("bookings")[0]["version"] == 1
    capacity.left = 4
    assert world.change(order, "accept", 1).status == 200
    assert world.emitted() == ["CarRideCreated", "CarRideAccepted"]


def _named(case: Case) -> str:
    return f"{case.consumer} {type(case.fact).__name__}"


@pytest.mark.parametrize("case", CASES, ids=_named)
def test_a_delivery_without_capacity_takes_effect_later_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two deliveries are refused, which Lambda's two retries outlast; a third commits."""
    expected = case.world()
    case.deliver(expected)
    world = case.world()
    before = world.emitted()
    capacity = Capacity(0, monkeypatch)
    for attempt in (1, 2):
        with pytest.raises(RetryableError):
            case.deliver(world, attempt)
        assert world.emitted() == before
        world.clock.advance(60 * attempt)  # as Lambda waits
    assert capacity.refused > 2, "the store tries again before it gives up"
    capacity.left = 2
    case.deliver(world, 3)
    case.deliver(world, 4)
    assert world.emitted() == expected.emitted()
    assert world.cars() == expected.cars()
    assert _paid(world) == _paid(expected)
    assert world.given_up() == []


@pytest.mark.parametrize("case", CASES, ids=_named)
def test_a_delivery_that_never_gets_capacity_is_dead_lettered(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third refusal uses up the key's attempts: it is quarantined, and its letter waits."""
    world = case.world()
    Capacity(0, monkeypatch)
    for attempt in (1, 2):
        with pytest.raises(RetryableError):
            case.deliver(world, attempt)
        world.clock.advance(60 * attempt)
    case.deliver(world, 3)
    [letter] = world.given_up()
    assert letter.reason == "QUARANTINED"


def test_the_largest_simulation_of_a_dev_stack_fits_into_the_burst_of_its_outbox() -> None:
    """Its provisioned outbox takes what dispatch and payment tell of all rides at once.

    DynamoDB keeps unused capacity of 300 seconds:
    docs.aws.amazon.com/amazondynamodb/latest/developerguide/burst-adaptive-capacity.html
    """
    rides = MOST_EVENTS["dev"] // LONGEST_LIFE
    of_the_api = 2 * bill.REQUESTS  # a simulated ride is not booked
    units = rides * (bill.TABLES["OutboxTable"].write_units - of_the_api)
    assert units <= 300 * int(stack().parameters["MinCapacity"])


def _paid(world: World) -> list[tuple[Any, ...]]:
    """Return what the gateway did with each payment."""
    return [(each["status"], each["captures"], each["refunds"]) for each in world.gateway.ledger()]
