"""What the desk makes of log lines, without a stack."""

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carride import telemetry
from carride.events import DETAIL_TYPE, RideEvent
from carride.facts import CarRideCompleted
from idempotency import observation
from ops.audit.evidence import CONSUMERS
from ops.audit.reading import Tail
from ops.desk import open_browser
from ops.desk.index import CRASHED, Filter, Index
from ops.desk.pictures import WIDTH, axis
from tests.carride.rides import booked
from tests.carride.rides import event as event_of
from tests.ops.world import stack

PAYMENT = CONSUMERS[2]


def completed(order_id: str) -> RideEvent:
    """Return an event that every consumer takes."""
    return event_of(CarRideCompleted.of(booked(order_id)))


def line(text: str, time_ms: int) -> dict[str, Any]:
    """Return a line of a log."""
    return {"message": text, "timestamp": time_ms, "logStreamName": "stream"}


def published(event: RideEvent, number: int) -> dict[str, Any]:
    """Return the line of an event in the bus's log."""
    content = {"id": f"copy-{number}", "source": event.source, "detail-type": DETAIL_TYPE, "detail": event.to_detail()}
    return line(json.dumps(content), number)


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=6))
def test_every_line_is_read_once(rounds: list[list[int]]) -> None:
    """Lines that appear up to the overlap late are read, and no line is read twice."""
    now, logged, seen = int(time.time() * 1000), list[dict[str, Any]](), list[str]()
    pages = SimpleNamespace(
        paginate=lambda *, startTime, **_: [{"events": [each for each in logged if each["timestamp"] >= startTime]}]  # noqa: N803 - AWS's name
    )
    logs = SimpleNamespace(get_paginator=lambda _: pages)
    began = datetime.now(UTC) - timedelta(seconds=1)
    tail = Tail(stack(lambda *_: logs, BusLogGroupName="group"), "Bus", began, timedelta(milliseconds=5))
    for number, lateness in enumerate(rounds):
        now += 1
        logged += [line(f"{number}/{position}", now - late) for position, late in enumerate(lateness)]
        seen += [each["message"] for each in tail.lines()]
    assert sorted(seen) == sorted(each["message"] for each in logged)


def test_the_index_forgets_the_oldest() -> None:
    """It holds the newest facts only, and nothing of the others."""
    index = Index(CONSUMERS, most=3)
    events = [completed(f"order_{number}") for number in range(5)]
    for number, event in enumerate(events):
        index.add_published(published(event, number))
    kept = [event.idempotencyid for event in events[2:]]
    assert list(index.facts) == kept
    assert index.waiting["ride-history"] == set(kept)
    assert [fact.id for fact in index.page(Filter())[0]] == kept[::-1]


@pytest.mark.parametrize("logged_first", [True, False])
def test_a_crash_is_seen_at_its_event(logged_first: bool) -> None:
    """A retry keeps the request's id, which joins the crash with the takeover, whichever log is read first."""
    event = completed("order_1")
    lines = [line("START RequestId: request", 1), line("Runtime exited with exit status 70", 2)]
    lines += [line("REPORT RequestId: request Duration: 1.5 ms", 3), line("START RequestId: request", 4)]
    told = {"consumer": PAYMENT.name, "outcome": observation.TAKEOVER, "attempt": 2, "delivery": "request"}
    lines += [
        line(json.dumps({"message": telemetry.DELIVERY, "key": f"{PAYMENT.name}#{event.idempotencyid}"} | told), 5)
    ]
    index = Index(CONSUMERS)
    if logged_first:
        index.add_published(published(event, 0))
    for each in lines:
        index.add_line(PAYMENT.name, each)
    if not logged_first:
        index.add_published(published(event, 0))
    runs = index.facts[event.idempotencyid].runs
    assert [run.outcome for run in runs] == [CRASHED, observation.TAKEOVER]
    assert runs[0].duration_ms == 1.5
    assert index.facts[event.idempotencyid].attempts(PAYMENT.name) == runs


@given(st.lists(st.floats(0, 1e9), min_size=1, unique=True))
def test_the_axis_keeps_the_order(times: list[float]) -> None:
    """Long pauses are compressed, and later is never further left."""
    places = [place for _, place in sorted(axis(times).items())]
    assert all(0 <= one <= other <= WIDTH + 1e-6 for one, other in pairwise(places))


@pytest.mark.parametrize(
    ("is_terminal", "display", "opens"), [(True, ":0", True), (True, None, False), (False, ":0", False)]
)
def test_a_browser_opens_on_a_desktop_only(
    is_terminal: bool, display: str | None, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output to a file, or a terminal without a display, opens none."""
    opened: list[str] = []
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display) if display else monkeypatch.delenv("DISPLAY", raising=False)
    open_browser("http://127.0.0.1:8765/")
    assert bool(opened) == opens
