"""How the desk writes times, spans, sizes and text of strangers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from moto import mock_aws

from ops.desk import words
from ops.desk.counts import DELIVERIES
from ops.desk.facts import LOST, WAITING
from ops.desk.pictures import LOOKS, look
from ops.tests.desk_world import BEGIN_MS, deliver, desk_of, event_of, get, publish
from ops.tests.world import empty_stack
from ops.text import span
from tests.kit.rides import Life

NOON_MS = 1_763_899_331_391  # 2025-11-23 12:02:11.391 UTC


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (14.4, "14 ms"),
        (2_730, "2.7 s"),
        (35_800, "36 s"),
        (138_000, "2 min 18 s"),
        (120_400, "2 min"),
        (14_040_000, "3 h 54 min"),
        (183_600_000, "2 d 3 h"),
        (-5, "0 ms"),
    ],
)
def test_a_span_has_two_units_at_most(milliseconds: float, text: str) -> None:
    """Short ones have one."""
    assert span(milliseconds) == text


@pytest.mark.parametrize(
    ("ago_ms", "text"),
    [
        (500, "just now"),
        (18_400, "18 s ago"),
        (138_000, "2 min ago"),
        (3_600_000, "11:02:11"),
        (86_400_000, "22 Nov 12:02:11"),
        (-5_000, "12:02:16"),
    ],
)
def test_a_time_is_relative_up_to_an_hour(ago_ms: float, text: str) -> None:
    """Then it is a time of day, with the day if it is another one."""
    assert words.ago_text(NOON_MS - ago_ms, NOON_MS) == text


def test_the_exact_time_is_there_when_one_points_at_it() -> None:
    """In UTC, to the millisecond."""
    assert words.marked(NOON_MS, "<just> now") == (
        '<time datetime="2025-11-23T12:02:11.391+00:00" title="2025-11-23 12:02:11.391 UTC">'
        "&lt;just&gt; now</time>"
    )


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("payment#37134231-8c22-525e-93f3-3e3838254b1c", "payment#37134231…4b1c"),
        ("37134231-8c22-525e-93f3-3e3838254b1c", "37134231…4b1c"),
        ("order_01", "order_01"),
    ],
)
def test_only_uuids_are_shortened(text: str, short: str) -> None:
    """To their first eight characters and their last four."""
    assert words.shortened_id(text) == short


@given(st.text(alphabet=st.characters(exclude_categories=())), st.booleans())
def test_what_a_page_prints_can_be_encoded_and_steers_nothing(text: str, whole: bool) -> None:
    """No control character and no half of a pair is left of it."""
    shown = str(words.finished(words.Whole(text) if whole else text))
    shown.encode()
    assert not any(ord(each) < 32 and each not in "\n\t" for each in shown)


def test_text_has_an_end_unless_it_was_asked_for() -> None:
    """A megabyte is cut, and says how long it is; markup of the desk itself is left alone."""
    text = "x" * 2**20
    assert str(words.finished(text)).endswith("… (1.0 MB)")
    assert words.finished(words.Whole(text)) == text
    own = Markup("<i>{}</i>").format(text)
    assert words.finished(own) == own


def test_each_count_of_deliveries_has_a_look_of_its_own() -> None:
    """Two kinds of outcome never share a colour, and a row has the kind of its number."""
    kinds = [each.kind for each in DELIVERIES]
    assert len(set(kinds)) == len(kinds)
    for each in DELIVERIES:
        assert {look(outcome).kind for outcome in each.outcomes} == {each.kind}


@mock_aws
@pytest.mark.parametrize("outcome", sorted(LOOKS.keys() - {WAITING, LOST}))
def test_the_legend_of_a_ride_names_what_is_drawn_alone(outcome: str) -> None:
    """A delivery of any outcome has a mark, and the legend has that mark and no other."""
    desk = desk_of(empty_stack())
    event = event_of(Life("order_1").created)
    publish(desk.feed.index, event, BEGIN_MS)
    deliver(desk.feed.index, event, "ride-history", BEGIN_MS + 20, outcome)
    text = get(desk, "/ride/order_1?show=all").text
    _, _, legend = text.partition('<ul class="legend">')
    legend, _, _ = legend.partition("</ul>")
    drawn = set(re.findall(r'<rect class="w-bar (\w+)" x', text.replace(legend, "")))
    assert set(re.findall(r'<rect class="w-bar (\w+)"', legend)) == drawn
    assert drawn
