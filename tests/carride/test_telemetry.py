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
    """The line holds the message that the audit looks for, the outcome, the ids, and the labels of the event."""
    event = parse_event(json.loads((EVENTS / "ride_history_live.json").read_text()))
    fields: dict[str, Any] = {"outcome": "DeadLettered", "attempt": 3, "reason": "CONTRACT", "key": "ride-history#1#2"}
    telemetry.observe(NEW._replace(labels=telemetry.labels(event), **fields))
    (logged,) = map(json.loads, line.getvalue().splitlines())
    ids = {"delivery": "request-1", "idempotencyid": "1#2", "correlationid": event.correlationid}
    assert logged.items() >= {**fields, **ids, "message": "delivery", "consumer": "ride-history"}.items()
    assert (logged["type"], "labels" in logged) == ("CarRideCreated", False)


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
