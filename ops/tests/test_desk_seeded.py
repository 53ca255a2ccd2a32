"""The synthetic rides that the desk is looked at with: histories that the product can produce."""

import time
from collections import defaultdict
from itertools import pairwise

import pytest
from moto import mock_aws

from carride_idempotency import observation
from ops import records, replay
from ops.audit.evidence import DISPATCH
from ops.desk.facts import Fact
from ops.tests.desk_seeded import Seeded
from ops.tests.desk_world import get

pytestmark = pytest.mark.proof  # some seconds


def the(facts: list[Fact], kind: str) -> Fact | None:
    """Return the event of a type, if the ride has it."""
    return next((fact for fact in facts if fact.type == kind), None)


@pytest.mark.parametrize("count", [0, 1, 6_000])
def test_a_seeded_world_contradicts_itself_nowhere(count: int) -> None:
    """The audit finds what was planted, and nothing else: letters, and events without a ride."""
    with mock_aws():
        seeded = Seeded(count, "127.0.0.1:1")
        report = seeded.desk.feed.report
        letters = records.explained(seeded.stack)
        replays = replay.status(seeded.stack)
        kept = [*records.StackRecords(seeded.stack).at([each.key for each in letters])]
    assert report is not None
    assert report.saga.problems == {}
    assert report.ledger.balanced
    broken = sum(fact.ride is None for fact in seeded.desk.feed.index.facts.values())
    assert report.ledger.waiting == len(letters) + broken
    assert replays == []
    for fact in seeded.desk.feed.index.facts.values():
        if fact.ride is None:
            (run,) = fact.runs
            assert (run.outcome, run.attempt) == (observation.DEAD_LETTERED, 0)
            assert [*fact.letters] == [run.consumer]
    given_up = [
        run
        for fact in seeded.desk.feed.index.facts.values()
        for run in fact.runs
        if run.outcome == observation.DEAD_LETTERED
    ]
    assert report.ledger.waiting == len(given_up)
    assert len({record.owner for record in kept}) == len(kept)
    for record in kept:
        consumer, _, name = record.key.partition("#")
        runs = seeded.desk.feed.index.facts[name].attempts(consumer)
        assert [run.attempt for run in runs if run.reason] == [1, 2, 3]
        assert (record.delivery, record.error) == (runs[-1].delivery, runs[-1].reason)
        assert record.updated_ms == runs[-1].ended_ms


def test_the_items_of_a_seeded_world_are_read_as_those_of_the_product() -> None:
    """What the tables hold about a ride is the evidence that the world was audited by."""
    with mock_aws():
        seeded = Seeded(400, "127.0.0.1:1")
        rides = [*seeded.desk.feed.index.rides]
        found = [
            item
            for ride in rides
            for item in records.ride_items(records.tables_of(seeded.stack, ride))
        ]
        pages = [get(seeded.desk, f"/ride/{ride}", host="127.0.0.1:1") for ride in rides[:3]]
    assert {page.status for page in pages} == {200}
    known = seeded.desk.feed.index.facts
    for item in found:
        assert item.total == len(item.effects) > 0
        for effect in item.effects:
            assert effect.named is not None
            assert known[effect.fact].type == effect.named.type
            assert known[effect.fact].ride == item.order_id


def test_a_car_of_a_seeded_world_has_one_ride_at_a_time() -> None:
    """From its assignment until dispatch releases it; and no ride of the city goes unserved."""
    with mock_aws():
        seeded = Seeded(6_000, "127.0.0.1:1")
    index = seeded.desk.feed.index
    held = defaultdict[str, list[tuple[float, float]]](list)
    for name in index.rides:
        facts = index.of_ride(name)
        if the(facts, "NoCarAvailable"):
            assert "airport" in facts[0].body
        assigned = the(facts, "CarAssigned")
        if assigned is None:
            continue
        released = the(facts, "CarReleased")
        until_ms = released.time_ms if released else time.time() * 1_000 + 1
        (car,) = {each.id for fact in facts for each in fact.named if each.kind == "car"}
        held[car].append((assigned.time_ms, until_ms))
    assert any(len(times) > 1 for times in held.values())
    for times in held.values():
        for (_, until_ms), (since_ms, _) in pairwise(sorted(times)):
            assert until_ms <= since_ms
    for fact in index.facts.values():
        for run in fact.runs:
            if run.consumer == DISPATCH and run.reason:
                assert "another ride" not in run.reason
