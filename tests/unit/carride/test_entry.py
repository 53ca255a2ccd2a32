from itertools import chain
from typing import Any

import pytest

from carride.entry import MOST_ENTRIES, TOO_LARGE, Entry, pack, xray_header
from tests.unit.carride.fakes import entry_bytes
from tests.unit.carride.rides import NOW, entry, event

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ({"source": "a", "detail_type": "bc", "detail": "{}"}, 14 + 1 + 2 + 2),
        ({"source": "a", "detail_type": "b", "detail": '"é€😀"'}, 14 + 1 + 1 + 2 + 2 + 3 + 4),
        ({"source": "a", "detail_type": "b", "detail": "", "resources": ("arn:1", "arn:22")}, 14 + 1 + 1 + 5 + 6),
    ],
)
def test_an_entry_is_measured_as_documented(parts: dict[str, Any], size: int) -> None:
    """A time counts 14 bytes, every text what it is in UTF-8."""
    assert Entry(time=NOW, **parts).size == size


def test_a_text_that_is_no_utf_8_has_a_size_too() -> None:
    """A lone surrogate, which JSON can carry, does not keep an entry from being measured."""
    assert Entry(source="a", detail_type="b", detail="\ud800", time=NOW).size == 19


def test_an_entry_has_no_time_without_a_zone() -> None:
    """It would be another time on a machine in another zone."""
    with pytest.raises(ValueError, match="no time zone"):
        Entry(source="a", detail="{}", time=NOW.replace(tzinfo=None))


def test_an_entry_asks_for_what_its_event_says() -> None:
    """The request holds source, type, time and detail in the types that PutEvents takes."""
    told = event(traceparent=TRACE)
    request = Entry.of(told).to_request("the-bus")
    assert request["Time"] is told.time
    assert request["Resources"] == []
    assert isinstance(request["Detail"], str)
    assert {request["EventBusName"], request["Source"], request["DetailType"]} == {
        "the-bus",
        told.source,
        "CarRideEvent",
    }
    assert request["TraceHeader"] == "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"


@pytest.mark.parametrize(
    ("traceparent", "header"),
    [
        (TRACE, "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"),
        (TRACE[:-2] + "00", "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=0"),
        ("carRideProcessing", None),
        (None, None),
    ],
)
def test_only_a_valid_trace_becomes_a_trace_header(traceparent: str | None, header: str | None) -> None:
    """EventBridge takes X-Ray's form only; what is no trace is left out."""
    assert xray_header(traceparent) == header


def test_a_trace_that_is_none_does_not_cost_the_event() -> None:
    """An entry whose trace is no trace is sent without a header."""
    assert "TraceHeader" not in Entry(source="a", detail="{}", time=NOW, traceparent="nonsense").to_request("the-bus")


def test_small_entries_fill_their_requests_in_order() -> None:
    """Twenty-five small entries make three requests, in the order in which they came."""
    batches = pack(range(25), lambda _: 1, most=10, below=1000)
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert list(chain(*batches)) == list(range(25))


def test_large_entries_are_combined_so_that_requests_are_few() -> None:
    """Where the order would waste room, a small entry fills up the request of a large one."""
    sizes = [600, 600, 300, 300]
    assert sorted(map(sorted, pack(sizes, int, most=10, below=1000))) == [[300, 600], [300, 600]]


def test_a_request_stays_below_its_limit() -> None:
    """Entries that would reach the limit together are kept apart."""
    assert len(pack([500, 500], int, most=10, below=1000)) == 2
    assert len(pack([500, 499], int, most=10, below=1000)) == 1


def test_nothing_makes_no_request() -> None:
    """Where there is nothing to send, nothing is sent."""
    assert pack([], int, most=10, below=1000) == []


def test_ten_thousand_events_take_a_thousand_requests() -> None:
    """Events of usual size are limited by the number of entries alone."""
    entries = [entry(f"order_{number}") for number in range(10_000)]
    assert len(pack(entries, lambda one: one.size, most=MOST_ENTRIES, below=TOO_LARGE)) == 1_000


def test_the_tests_own_entries_have_the_size_that_they_ask_for() -> None:
    """An entry that is made for its size has it, by both ways to measure one."""
    assert entry(size=5_000).size == entry_bytes(dict(entry(size=5_000).to_request("bus"))) == 5_000
