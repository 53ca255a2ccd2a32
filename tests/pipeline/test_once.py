"""Every ride event takes effect once, by whatever road it comes again."""

import pytest

from tests.pipeline.pipeline import HISTORY, Pipeline

pytestmark = pytest.mark.integration


def test_copies_are_absorbed(pipeline: Pipeline) -> None:
    """Copies, disorder and the older envelope change the deliveries, and none of the effects.

    Neither does a producer that starts over.
    """
    request = {"rides": 20, "seed": 1, "duplicates": 0.5, "outOfOrder": 0.5, "older": 0.3}
    ledger = pipeline.simulate(**request)
    history = ledger.consumers[HISTORY]
    assert ledger.balanced
    assert ledger.dead_lettered == {}
    assert ledger.published > ledger.distinct == history.effects
    assert history.deliveries == ledger.published
    assert history.duplicates_absorbed == ledger.published - ledger.distinct
    rides = pipeline.rides()
    assert len(rides) == 20
    # A sequence is the version of the ride, which the events of dispatch and payment do not change.
    assert all(
        {entry.sequence for entry in ride} == set(range(1, ride[-1].sequence + 1)) for ride in rides
    )
    assert {ride[-1].data["status"] for ride in rides} == {"completed", "cancelled"}
    # The simulator's events, and those of the outbox, name the stack.
    assert {entry.type for ride in rides for entry in ride} >= {"CarRideCreated", "NoCarAvailable"}
    (described,) = pipeline.cloud.client("cloudformation").describe_stacks(
        StackName=pipeline.stack.name
    )["Stacks"]
    assert pipeline.resources() == {(described["StackId"],)}
    again = pipeline.simulate(**request)
    assert (again.balanced, again.distinct) == (True, ledger.distinct)
    assert all(
        account.effects == ledger.consumers[name].effects
        for name, account in again.consumers.items()
    )


@pytest.mark.parametrize(("fault", "outcome"), [("crashes", "takeovers"), ("fails", "retried")])
def test_a_consumer_that_dies_half_way_is_followed_by_one_that_commits(
    pipeline: Pipeline, fault: str, outcome: str
) -> None:
    """An attempt that is killed, or that raises, leaves nothing that a later one cannot take.

    Each fact has one effect.

    Where a consumer claims, the later attempt takes over. Where it does not, a killed attempt
    leaves no trace.
    """
    ledger = pipeline.simulate(rides=10, seed=4, **{fault: 12})
    history = ledger.consumers[HISTORY]
    dispatch = ledger.consumers["dispatch"]
    assert history.effects == ledger.distinct
    assert getattr(history, outcome) == (12 if fault == "fails" else 0)
    assert getattr(dispatch, outcome) > 0
    assert pipeline.killed(HISTORY) == (12 if fault == "crashes" else 0)
    assert ledger.balanced
    assert ledger.dead_lettered == {}
