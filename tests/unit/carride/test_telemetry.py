import io
import json
from typing import Any, NamedTuple

import pytest

from carride import telemetry


class Observation(NamedTuple):
    """What an idempotent consumer reports."""

    consumer: str = "ride-history"
    outcome: str = "New"
    key: str | None = "ride-history#1"
    attempt: int = 1
    delivery: str | None = "request-1"
    reason: str | None = None


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what the logger writes."""
    stream = io.StringIO()
    handler: Any = telemetry.logger.registered_handler
    monkeypatch.setattr(handler, "stream", stream)
    return stream


def test_a_delivery_makes_one_structured_line(line: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """The line holds the message that the audit looks for, and what became of the delivery."""
    telemetry.observe(Observation(outcome="DeadLettered", attempt=3, reason="CONTRACT"))
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


def test_a_delivery_is_counted_under_its_outcome(line: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """The metric has the outcome as its name and the consumer as its only dimension, so that it costs little."""
    telemetry.observe(Observation(outcome="Duplicate"))
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
    telemetry.observe(Observation())
    assert len(writes) == 2
    assert all(text.endswith("\n") and json.loads(text) for text in writes)
