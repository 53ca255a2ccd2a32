"""Faults of one event in one consumer: each does its harm once, and nothing is lost or doubled."""

import time
from typing import Final

import pytest

from carride.events import RideEvent
from carride.simulation import FAULT_EXTENSION
from idempotency import observation
from local.demo import stack_ref
from ops.audit import CONSUMERS, read
from tests.engine.support import until
from tests.functions.saga import event_of
from tests.pipeline.saga.town import Town

NAMES: Final = [each.name for each in CONSUMERS]
ATOMIC: Final = "ride-history"
"""The consumer without claims: a killed attempt leaves no trace, and the first commit wins."""


def faulty(town: Town, consumer: str, fault: str) -> RideEvent:
    """Return a new event that meets a fault in a consumer. No car is taken by it."""
    ride = town.ride()
    fact = ride.assigned if consumer == "payment" else ride.completed
    return event_of(fact, extensions={FAULT_EXTENSION: f"{fault}@{consumer}"})


def deliver(town: Town, event: RideEvent) -> None:
    """Publish an event and wait until nothing is in flight."""
    town.put(event.to_detail())
    town.settle()


def check(town: Town, consumer: str, event: RideEvent) -> list[str]:
    """Expect one effect of an event, and return the outcomes that its consumer has logged but waiting ones, sorted."""
    ledger = town.ledger()
    assert (ledger.lost, ledger.doubled, ledger.dead_lettered) == (0, 0, {})
    assert len([each for each in town.gateway.ledger() if each["reference"] == event.subject]) == (
        consumer == "payment"
    )
    found = read(stack_ref(town.cloud, town.stack))
    assert [each.total for each in found.items if (each.consumer, each.order_id) == (consumer, event.subject)] == [1]
    ours = (consumer, event.idempotencyid)
    return sorted(each.outcome for each in found.deliveries if (each.consumer, each.fact) == ours)


@pytest.mark.parametrize("consumer", NAMES)
@pytest.mark.parametrize("fault", ["crash", "lose-answer"])
def test_an_event_survives_a_crash_or_a_lost_answer(town: Town, consumer: str, fault: str) -> None:
    """Lambda's retry takes over, or finds that it is done; later deliveries are duplicates and meet no fault."""
    event, killed = faulty(town, consumer, fault), town.killed(consumer)
    deliver(town, event)
    deliver(town, event)
    committed = observation.NEW if consumer == ATOMIC else observation.TAKEOVER
    outcomes = [observation.DUPLICATE, committed if fault == "crash" else observation.DUPLICATE]
    seen = check(town, consumer, event)
    assert [each for each in seen if each not in {observation.FAILED, observation.BUSY}] == sorted(outcomes)
    assert (observation.FAILED in seen) == (fault == "lose-answer")
    assert town.killed(consumer) - killed == (fault == "crash")


@pytest.mark.parametrize("consumer", NAMES)
def test_a_stalled_attempt_is_taken_over_and_its_late_commit_refused(town: Town, consumer: str) -> None:
    """Another delivery takes over when the lease has ended; the frozen attempt then changes nothing."""
    event = faulty(town, consumer, "stall")
    key = {"idempotencyKey": {"S": f"{consumer}#{event.idempotencyid}"}}

    def lease_ended() -> bool:
        answer = town.cloud.client("dynamodb").get_item(TableName=town.stack.outputs["IdempotencyTableName"], Key=key)
        return "Item" in answer and float(answer["Item"]["leaseExpiry"]["N"]) + 1000 < time.time() * 1000

    town.put(event.to_detail())
    assert consumer == ATOMIC or until(lease_ended)
    deliver(town, event)
    late = (
        [observation.NEW, observation.DUPLICATE]
        if consumer == ATOMIC
        else [observation.TAKEOVER, observation.LOST_LEASE]
    )
    assert check(town, consumer, event) == sorted(late)
    deliver(town, event)
    assert check(town, consumer, event) == sorted([*late, observation.DUPLICATE])
