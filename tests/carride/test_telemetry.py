import io
import json
from pathlib import Path
from typing import Any, Final

import pytest

from carride import telemetry
from carride.events import parse_event
from idempotency.observation import Observation

EVENTS = Path(__file__).parents[2] / "events"


NEW: Final = Observation("ride-history", "New", "ride-history#1", 1, "request-1")


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what the logger writes."""
    stream = io.StringIO()
    handler: Any = telemetry.logger.registered_handler
    monkeypatch.setattr(handler, "stream", stream)
    return stream


def test_a_delivery_makes_one_structured_line(line: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """The line holds the message that the audit looks for, and what became of the delivery."""
    telemetry.observe(NEW._replace(outcome="DeadLettered", attempt=3, reason="CONTRACT"))
    (logged,) = map(json.loads, line.getvalue().splitlines())
    expected = {
        "message": "delivery",
        "consumer": "ride-history",
        "outcome": "DeadLettered",
        "key": "ride-history#1",
        "attempt": 3,
        "delivery": "request-1",
        "reason": "CONTRACT",
    }
    assert expected.items() <= logged.items()


def test_the_line_can_be_found_by_every_id(line: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """The line of a delivery carries the idempotency id by itself, and the correlation id of its event."""
    event = parse_event(json.loads((EVENTS / "ride_history_live.json").read_text()))
    telemetry.observe(NEW._replace(key="ride-history#1#2", labels=telemetry.labels(event)))
    (logged,) = map(json.loads, line.getvalue().splitlines())
    assert logged["idempotencyid"] == "1#2"
    assert logged["correlationid"] == event.correlationid
    assert logged["type"] == "CarRideCreated"


def test_a_producer_counts_what_it_published_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Several metrics of one service share a line; CloudWatch takes each by its name."""
    telemetry.count("carride-simulator", Published=3, Rejected=1)
    (metric,) = map(json.loads, capsys.readouterr().out.splitlines())
    (definition,) = metric["_aws"]["CloudWatchMetrics"]
    assert [each["Name"] for each in definition["Metrics"]] == ["Published", "Rejected"]
    assert (metric["service"], metric["Published"], metric["Rejected"]) == ("carride-simulator", 3, 1)


def test_a_delivery_is_counted_under_its_outcome(line: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """The metric has the outcome as its name and the consumer as its only dimension, so that it costs little."""
    telemetry.observe(NEW._replace(outcome="Duplicate"))
    (metric,) = map(json.loads, capsys.readouterr().out.splitlines())
    (definition,) = metric["_aws"]["CloudWatchMetrics"]
    assert definition["Namespace"] == "CarRide"
    assert definition["Dimensions"] == [["service"]]
    assert definition["Metrics"] == [{"Name": "Duplicate", "Unit": "Count"}]
    assert (metric["service"], metric["Duplicate"]) == ("ride-history", 1)


def test_each_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch observes from several threads: a line is written as a whole, so that no other one comes between."""
    writes: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    handler: Any = telemetry.logger.registered_handler
    monkeypatch.setattr(handler, "stream", stream := Stream())
    monkeypatch.setattr("sys.stdout", stream)
    telemetry.observe(NEW)
    assert len(writes) == 2
    assert all(text.endswith("\n") and json.loads(text) for text in writes)


TRACE = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled={}"


@pytest.mark.parametrize(
    ("header", "traceparent"),
    [
        (TRACE.format(1), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        (TRACE.format(0), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
        (TRACE.format(1) + ";Lineage=1:a87bd80c:0", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("Root=1-4bf92f35-77b34da6a3ce929d0e0e4736", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_the_trace_of_an_invocation_is_written_as_events_have_it(
    header: str | None, traceparent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Lambda says of the trace becomes a W3C trace context; without a trace, or a whole one, there is none."""
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    if header is not None:
        monkeypatch.setenv("_X_AMZN_TRACE_ID", header)
    assert telemetry.current_trace() == traceparent
