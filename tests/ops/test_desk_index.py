"""Lists of many failures."""

from moto import mock_aws

from tests.carride.rides import Life
from tests.ops.desk_bench import judged
from tests.ops.desk_world import BEGIN_MS, desk_of, event_of, get, publish
from tests.ops.world import empty_stack


def test_rides_and_events_with_the_same_failure_are_folded() -> None:
    """The ledger names a few of each failure and counts the others, the most frequent first."""
    with mock_aws():
        desk = desk_of(empty_stack())
        for number in range(30):
            publish(desk.feed.index, event_of(Life(f"order_{number}").assigned), BEGIN_MS + number)
        judged(desk)
        text = get(desk, "/ledger").text
    assert text.count("broken</span> <small>and 29 more rides alike") == 1
    assert text.count(">ride-history: lost ") == 5
    assert "and 25 more: ride-history: lost" in text
