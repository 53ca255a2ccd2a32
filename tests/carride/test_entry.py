from typing import Any

import pytest

from carride.entry import BusEntry, xray_header
from tests.carride.rides import NOW, event

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ({"source": "a", "detail_type": "bc", "detail": "{}"}, 14 + 1 + 2 + 2),
        ({"source": "a", "detail_type": "b", "detail": '"é€😀"'}, 14 + 1 + 1 + 2 + 2 + 3 + 4),
        ({"source": "a", "detail_type": "b", "detail": "", "resources": ("arn:1", "arn:22")}, 14 + 1 + 1 + 5 + 6),
        ({"source": "a", "detail_type": "b", "detail": "\ud800"}, 14 + 1 + 1 + 3),
    ],
)
def test_an_entry_is_measured_as_documented(parts: dict[str, Any], size: int) -> None:
    """A time counts 14 bytes, every text its length in UTF-8, a lone surrogate, which JSON can hold, included."""
    assert BusEntry(time=NOW, **parts).size == size


def test_an_entry_has_no_time_without_a_zone() -> None:
    """A time without a zone is refused: it would depend on the machine."""
    with pytest.raises(ValueError, match="no time zone"):
        BusEntry(source="a", detail="{}", time=NOW.replace(tzinfo=None))


def test_an_entry_asks_for_what_its_event_says() -> None:
    """The request holds source, type, time and detail in the types that PutEvents takes."""
    emitted = event(traceparent=TRACE)
    request = BusEntry.of(emitted).to_request("the-bus")
    assert request["Time"] is emitted.time
    assert request["Resources"] == []
    assert isinstance(request["Detail"], str)
    texts = (request["EventBusName"], request["Source"], request["DetailType"])
    assert texts == ("the-bus", emitted.source, "CarRideEvent")
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
    """A valid trace is converted to X-Ray's form, which EventBridge requires; an invalid one is left out."""
    assert xray_header(traceparent) == header
