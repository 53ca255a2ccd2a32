import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from carride import telemetry
from carride.bus_entry import BusEntry
from carride.events import parse_event
from carride_idempotency.observation import Observation
from tests.kit.rides import NOW, event

EVENTS = Path(__file__).parents[2] / "events"
TRACE = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled={}"

NEW: Final = Observation("ride-history", "New", "ride-history#1", 1, "request-1")

type Captured = pytest.CaptureFixture[str]


def lines(capsys: Captured) -> list[dict[str, Any]]:
    """Return what was written since the last time."""
    return [*map(json.loads, capsys.readouterr().out.splitlines())]


def test_a_delivery_makes_one_structured_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line holds the audit's message, the outcome, the ids, and the labels of the event."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", TRACE.format(1))
    event = parse_event(json.loads((EVENTS / "ride_history_live.json").read_text()))
    reason = "CONTRACT: \ud800"  # half of a surrogate pair, which UTF-8 cannot hold
    fields: dict[str, Any] = {
        "outcome": "DeadLettered",
        "attempt": 3,
        "reason": reason,
        "key": "ride-history#1#2",
    }
    telemetry.observe(NEW._replace(labels=telemetry.labels(event), **fields))
    (logged,) = lines(capsys)
    ids = {"delivery": "request-1", "idempotencyid": "1#2", "correlationid": event.correlationid}
    known = {
        "level": "INFO",
        "message": "delivery",
        "service": "ride-history",
        "consumer": "ride-history",
    }
    assert logged.items() >= {**fields, **ids, **known, "xray_trace_id": TRACE[5:40]}.items()
    assert (logged["type"], "labels" in logged) == ("CarRideCreated", False)


@pytest.fixture(params=["INFO", "WARNING"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = telemetry.logger.log_level
    telemetry.logger.setLevel(request.param)
    yield request.param
    telemetry.logger.setLevel(before)


def test_a_delivery_is_counted_under_its_outcome(level: str, capsys: Captured) -> None:
    """The metric has the outcome as its name and the consumer as its only dimension.

    It is written at any level.
    """
    telemetry.observe(NEW._replace(outcome="Duplicate", key=None, delivery=None))
    (metric,) = lines(capsys)
    (definition,) = metric["_aws"]["CloudWatchMetrics"]
    assert definition["Namespace"] == "CarRide"
    assert definition["Dimensions"] == [["service"]]
    assert definition["Metrics"] == [{"Name": "Duplicate", "Unit": "Count"}]
    assert (metric["service"], metric["Duplicate"]) == ("ride-history", 1)
    assert ("message" in metric) is (level == "INFO")
    assert not {"key", "idempotencyid", "delivery", "reason"} & set(metric), (
        "what is unknown is left out"
    )


def test_a_producer_counts_what_it_published_in_one_line(capsys: Captured) -> None:
    """Several metrics of one service share a line; CloudWatch takes each by its name."""
    telemetry.count("carride-simulator", {"Published": 3, "Rejected": 1})
    (metric,) = lines(capsys)
    (definition,) = metric["_aws"]["CloudWatchMetrics"]
    assert [each["Name"] for each in definition["Metrics"]] == ["Published", "Rejected"]
    assert (metric["service"], metric["Published"], metric["Rejected"]) == (
        "carride-simulator",
        3,
        1,
    )


def test_a_warning_counts_in_its_own_line(level: str, capsys: Captured) -> None:
    """What is wrong and how often are one line, with the caller's place and fields."""
    telemetry.count("dispatch", {"EmptyFleet": 2}, "EmptyFleet", warns=True, fields={"ride": "1"})
    (line,) = lines(capsys)
    known = {"level": "WARNING", "message": "EmptyFleet", "ride": "1", "EmptyFleet": 2}
    assert line.items() >= known.items()
    assert line["location"].startswith("test_a_warning_counts_in_its_own_line"), level


def test_threads_of_a_batch_do_not_mix_up_their_lines(level: str, capsys: Captured) -> None:
    """Each delivery's line is whole, and has its own key, service and metric and no other's."""
    deliveries = [
        NEW._replace(
            consumer=f"consumer-{number % 7}", outcome=f"Outcome{number}", key=f"k#{number}"
        )
        for number in range(2_000)
    ]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(telemetry.observe, deliveries))
    found = {}
    for line in lines(capsys):
        (definition,) = line["_aws"]["CloudWatchMetrics"]
        (metric,) = definition["Metrics"]
        outcomes = [name for name in line if name.startswith("Outcome")]
        assert outcomes == [metric["Name"]]
        assert definition["Dimensions"] == [["service"]]
        found[metric["Name"]] = (line["service"], line.get("key"))
    shows_keys = level == "INFO"
    assert found == {
        each.outcome: (each.consumer, each.key if shows_keys else None) for each in deliveries
    }


def test_each_line_is_one_write(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch observes from several threads.

    A line is written as a whole, so that no other one comes between.
    """
    writes: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Stream())
    telemetry.observe(NEW)
    (text,) = writes
    assert text.endswith("\n"), level
    assert json.loads(text)


@pytest.mark.parametrize("text", ["42", '{"level": "ERROR"}', "null"])
def test_a_message_is_text_whatever_it_looks_like(text: str, capsys: Captured) -> None:
    """A message that happens to be JSON stays as it is."""
    telemetry.logger.warning(text, extra={"found": {object}})
    (line,) = lines(capsys)
    assert line["message"] == text
    assert line["timestamp"].endswith("+00:00")


@pytest.mark.parametrize(
    ("header", "traceparent"),
    [
        (TRACE.format(1), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        (TRACE.format(0), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
        (
            TRACE.format(1) + ";Lineage=1:a87bd80c:0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("Root=1-4bf92f35-77b34da6a3ce929d0e0e4736", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_the_trace_of_an_invocation_is_written_as_events_have_it_and_entries_as_x_ray_does(
    header: str | None, traceparent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Lambda says of the trace becomes a W3C trace context, and that a trace header.

    What is invalid is left out.

    EventBridge accepts X-Ray's form only.
    """
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    if header is not None:
        monkeypatch.setenv("_X_AMZN_TRACE_ID", header)
    assert telemetry.current_trace() == traceparent
    request = BusEntry.of(event(traceparent=traceparent or header)).to_request("the-bus")
    assert request.get("TraceHeader") == (traceparent and str(header).partition(";Lineage")[0])
    assert (request["EventBusName"], request["DetailType"], request["Time"]) == (
        "the-bus",
        "CarRideEvent",
        NOW,
    )
