"""Counts of the desk over time."""

import time
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from ops.desk.timeline import ALL, WINDOWS, Timeline, window_of
from ops.desk.words import moment
from ops.tests.desk_world import desk_of, event_of, get, publish
from ops.tests.world import empty_stack
from tests.kit.rides import Life

FEWEST: Final = 12
"""Buckets that the picture of all events has in any case."""
MOST_TICKS: Final = 7
NOW_S: Final = 1_763_899_331
AGES_S: Final = st.lists(st.integers(0, 20 * 86_400), max_size=30)


@given(AGES_S, st.sampled_from([*(each.name for each in WINDOWS), ALL]))
def test_each_event_of_a_window_is_in_its_bucket(ages_s: list[int], name: str) -> None:
    """The oldest bucket is the first; what is older than the window is left out."""
    timeline = Timeline()
    begun_s = NOW_S - max(ages_s, default=0)
    for age_s in sorted(ages_s, reverse=True):
        timeline.add("bus", "distinct", 1000 * (NOW_S - age_s))
    window = window_of(name, 1000 * begun_s, NOW_S)
    shown = [bucket["distinct"] for bucket in timeline.recent("bus", NOW_S, window)]
    expected = [0] * len(shown)
    for age_s in ages_s:
        place = (NOW_S - age_s - window.begin_s(NOW_S)) // window.bucket_s
        if place >= 0:
            expected[place] += 1
    assert shown == expected
    if name == ALL:
        assert sum(shown) == len(ages_s)
        is_long = len(shown) > FEWEST
        assert shown[0] or not is_long or not ages_s
        ticks = (window.end_s(NOW_S) - window.begin_s(NOW_S)) / window.tick_s
        assert ticks <= MOST_TICKS


@mock_aws
@pytest.mark.parametrize(("age_h", "is_said"), [(3, True), (30, False)])
def test_a_range_beyond_the_log_says_since_when_the_log_goes(age_h: int, is_said: bool) -> None:
    """An empty part of the picture is no time without events."""
    desk = desk_of(empty_stack())
    begun_ms = 1000 * (time.time() - 3_600 * age_h)
    publish(desk.feed.index, event_of(Life("order_1").created), begun_ms)
    head = get(desk, "/?range=24h").text.partition("strip-head")[2].partition("each bar")[0]
    assert (f"{moment(begun_ms):%H:%M:%S}" in head) is is_said


@mock_aws
@pytest.mark.parametrize("name", ["5m", "1h", ALL, "none", ""])
def test_flow_shows_the_range_that_is_asked_for(name: str) -> None:
    """An unknown range is the shortest one."""
    desk = desk_of(empty_stack())
    publish(desk.feed.index, event_of(Life("order_1").created), 1000.0 * (NOW_S - 86_400))
    text = get(desk, f"/?range={name}").text
    known = {each.name for each in WINDOWS} | {ALL}
    shown = name if name in known else WINDOWS[0].name
    assert f'id="range-{shown}" aria-current="true"' in text
