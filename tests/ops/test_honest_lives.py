"""The audit of random lives in which nothing was lost.

It finds nothing wrong, whatever went wrong on the way.
"""

import json
import math
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carride.events import RideEvent
from local.simulated_gateway import Troubles
from ops.audit import gateway_payments, judge
from ops.audit.evidence import CONSUMERS, Delivered, Evidence, Published, RideItem
from ops.audit.reading import is_unlisted, published_in, ride_item, rides_of_cars
from tests.carride.properties.test_lives import TROUBLES
from tests.carride.properties.town import Town
from tests.carride.rides import NOW

pytestmark = pytest.mark.proof

TABLES: Final = {"ride-history": "rides", "dispatch": "assignments", "payment": "payments"}
LIVED: Final = [consumer for consumer in CONSUMERS if consumer.name in TABLES]
"""The consumers that a town has: those of a ride, and none that was added for something else."""
LIVES: Final = int(os.environ.get("LIVES", "150"))
"""How many lives are audited."""
YEAR: Final = timedelta(days=365)


def logged(event: RideEvent, time: datetime) -> Published:
    """Return an event as the log of the bus shows it."""
    envelope = {
        "version": "0",
        "id": event.id,
        "source": event.source,
        "detail-type": "CarRideEvent",
        "detail": event.to_detail(),
    }
    line = {"message": json.dumps(envelope), "timestamp": int(time.timestamp() * 1000)}
    found = published_in(line)
    assert found is not None
    return found


def items_of(town: Town) -> Iterator[RideItem]:
    """Yield every ride in the consumers' tables.

    The history's entries are as old as their records.
    """
    committed = {
        record["idempotencyKey"].partition("#")[2]: NOW
        for record in town.items("history")
        if "entry" in record
    }
    for consumer in LIVED:
        for item in town.items(TABLES[consumer.name]):
            yield ride_item(consumer, item, committed if consumer.name == "ride-history" else None)


def evidence_of(town: Town) -> Evidence:
    """Return what an audit of the town would read."""
    records = [*town.items("idempotency"), *town.items("history")]
    cars = town.items("cars")
    deliveries = [
        Delivered(each.consumer, each.outcome, each.key.partition("#")[2], town.now())
        for each in town.observations
        if each.key
    ]
    return Evidence(
        consumers=LIVED,
        published=[logged(event, NOW) for event in town.published.values()],
        deliveries=deliveries,
        items=list(items_of(town)),
        outbox={event.idempotencyid: NOW for event in town.outbox()},
        cars=rides_of_cars(cars),
        unlisted_cars=[car["carID"] for car in cars if is_unlisted(car)],
        fingerprints={
            record["idempotencyKey"]: record["fingerprint"]
            for record in records
            if record.get("status") == "COMPLETED" and "fingerprint" in record
        },
        payments=gateway_payments(town.gateway.ledger()),
        at=town.now() + timedelta(hours=1),
        since=NOW - timedelta(days=14),
    )


@settings(max_examples=LIVES)
@given(
    seed=st.integers(0, 2**32),
    rides=st.sampled_from([1, 3, 4]),
    cars=st.sampled_from([0, 1, 2, 3]),
    troubles=TROUBLES,
    keys_s=st.sampled_from([5.0, math.inf]),
    reconciles=st.booleans(),
)
def test_the_audit_of_an_honest_life_raises_no_alarm(
    seed: int, rides: int, cars: int, troubles: Troubles, *, keys_s: float, reconciles: bool
) -> None:
    """Crashes, copies, takeovers, refusals and reconciled rides are accounted for."""
    lost: Any = 0.0 if reconciles else None
    town = Town(Random(seed), troubles, keys_s=keys_s, lost=lost)  # noqa: S311 - a simulation, not a secret
    for number in range(cars):
        town.park(f"car_{number}", sector=f"sector_{number % 2 * 8 + 1:02d}")
    town.live(rides)
    town.settle()
    report = judge(evidence_of(town), overdue_after=YEAR)
    assert report.verdict == "balanced", report.to_text()
