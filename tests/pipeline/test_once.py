"""Every ride event takes effect once, by whatever road it comes again."""

from datetime import UTC, datetime, timedelta

import pytest

from local.demo import stack_ref
from ops import replay
from tests.pipeline.pipeline import HISTORY, Pipeline


def test_copies_are_absorbed(pipeline: Pipeline) -> None:
    """Copies, disorder and the older envelope change what is delivered, and nothing of what takes effect."""
    ledger = pipeline.simulate(rides=20, seed=1, duplicates=0.5, outOfOrder=0.5, older=0.3)
    history = ledger.consumers[HISTORY]
    assert ledger.balanced
    assert ledger.dead_lettered == {}
    assert ledger.published > ledger.distinct == history.effects
    assert history.deliveries == ledger.published
    assert history.duplicates_absorbed == ledger.published - ledger.distinct
    rides = pipeline.rides()
    assert len(rides) == 20
    # A sequence is the version of the ride, which the events of dispatch and payment do not change.
    assert all({entry.sequence for entry in ride} == set(range(1, ride[-1].sequence + 1)) for ride in rides)
    assert {ride[-1].data["status"] for ride in rides} == {"completed", "cancelled"}
    # The simulator's events, and those of the outbox, name the stack.
    assert {entry.type for ride in rides for entry in ride} >= {"CarRideCreated", "NoCarAvailable"}
    (described,) = pipeline.cloud.client("cloudformation").describe_stacks(StackName=pipeline.stack.name)["Stacks"]
    assert pipeline.resources() == {(described["StackId"],)}


def test_the_same_simulation_again_has_no_effects(pipeline: Pipeline) -> None:
    """A producer that starts over tells the same facts: there are more deliveries, and no more effects."""
    first = pipeline.simulate(rides=5, seed=2)
    again = pipeline.simulate(rides=5, seed=2)
    assert again.balanced
    assert again.distinct == first.distinct
    for name, account in again.consumers.items():
        assert account.effects == first.consumers[name].effects == account.distinct
        assert account.deliveries > first.consumers[name].deliveries


def test_a_replay_of_the_archive_has_no_effects(pipeline: Pipeline) -> None:
    """Every archived event is delivered once more, and none takes effect once more."""
    first = pipeline.simulate(rides=5, seed=3)
    stack, now = stack_ref(pipeline.cloud, pipeline.stack), datetime.now(UTC)
    window = (now - timedelta(hours=1), now + timedelta(hours=1))
    replay.start(stack, replay.name_for(stack.region, now), *window, [])
    again = pipeline.ledger()
    assert again.balanced
    assert again.published == again.replayed == first.published
    for name, account in again.consumers.items():
        assert account.effects == first.consumers[name].effects == account.distinct
        assert account.deliveries >= first.consumers[name].deliveries + account.distinct


@pytest.mark.parametrize(("fault", "outcome"), [("crashes", "takeovers"), ("fails", "retried")])
def test_a_consumer_that_dies_half_way_is_followed_by_one_that_commits(
    pipeline: Pipeline, fault: str, outcome: str
) -> None:
    """An attempt that is killed, or that raises, leaves nothing that a later one cannot take; each fact has one effect.

    Where a consumer claims, the later attempt takes over. Where it does not, a killed attempt leaves no trace.
    """
    ledger = pipeline.simulate(rides=10, seed=4, **{fault: 12})
    history, dispatch = ledger.consumers[HISTORY], ledger.consumers["dispatch"]
    assert history.effects == ledger.distinct
    assert getattr(history, outcome) == (12 if fault == "fails" else 0)
    assert getattr(dispatch, outcome) > 0
    assert pipeline.killed(HISTORY) == (12 if fault == "crashes" else 0)
    assert ledger.balanced
    assert ledger.dead_lettered == {}
