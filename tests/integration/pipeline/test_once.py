"""Every ride event takes effect once, by whatever road it comes again."""

import pytest

from tests.integration.pipeline.pipeline import Pipeline


def test_copies_are_absorbed(pipeline: Pipeline) -> None:
    """Copies, disorder and the older envelope change what is delivered, and nothing of what takes effect."""
    ledger = pipeline.simulate(rides=20, seed=1, duplicates=0.5, outOfOrder=0.5, older=0.3)
    assert ledger.balanced
    assert ledger.published > ledger.distinct == ledger.effects
    assert ledger.deliveries == ledger.published
    assert ledger.duplicates_absorbed == ledger.published - ledger.distinct
    assert ledger.dead_lettered == {}
    rides = pipeline.rides()
    assert len(rides) == 20
    assert all(ride.missing == () and ride.status in {"completed", "cancelled"} for ride in rides)


def test_the_same_simulation_again_has_no_effects(pipeline: Pipeline) -> None:
    """A producer that starts over tells the same facts: there are more deliveries, and no more effects."""
    first = pipeline.simulate(rides=5, seed=2)
    again = pipeline.simulate(rides=5, seed=2)
    assert again.deliveries == 2 * first.deliveries
    assert again.distinct == again.effects == first.effects
    assert again.balanced


def test_a_replay_of_the_archive_has_no_effects(pipeline: Pipeline) -> None:
    """Every archived event is delivered once more, and none takes effect once more."""
    first = pipeline.simulate(rides=5, seed=3)
    pipeline.replay("everything")
    again = pipeline.ledger()
    assert again.replayed == first.published
    assert again.published == first.published
    assert again.deliveries == 2 * first.deliveries
    assert again.effects == first.effects
    assert again.balanced


@pytest.mark.parametrize(("fault", "outcome"), [("crashes", "takeovers"), ("fails", "retried")])
def test_a_consumer_that_dies_half_way_is_taken_over(pipeline: Pipeline, fault: str, outcome: str) -> None:
    """An attempt that is killed, or that raises, is followed by one that commits; each fact has one effect."""
    ledger = pipeline.simulate(rides=4, seed=4, **{fault: 3})
    assert getattr(ledger, outcome) == 3
    assert ledger.effects == ledger.distinct
    assert ledger.balanced
    assert ledger.dead_lettered == {}


def test_copies_of_an_event_that_kills_its_consumer_take_effect_once(pipeline: Pipeline) -> None:
    """Where every event has a copy and some kill the consumer, a copy neither steals nor repeats the effect."""
    ledger = pipeline.simulate(rides=4, seed=5, duplicates=1.0, crashes=4)
    assert ledger.effects == ledger.distinct
    assert ledger.balanced
