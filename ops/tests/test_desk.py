"""What the desk makes of log lines, without a stack."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest.mock import Mock

import pytest
import time_machine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from carride import telemetry
from carride.events import DETAIL_TYPE, RideEvent
from carride.facts import CarRideCompleted
from carride_idempotency import observation
from ops.audit.evidence import CONSUMERS, DeadLettered
from ops.audit.reading import Tail
from ops.desk import open_browser
from ops.desk.app import Desk
from ops.desk.facts import CRASHED
from ops.desk.feed import ENDED, Feed
from ops.desk.index import Index
from ops.desk.pictures import stacked
from ops.stack import Kept, OperatorError
from ops.tests.desk_world import deliver, desk_of, get, post, publish
from ops.tests.world import NOW, empty_stack, stack
from tests.kit.rides import Life, booked
from tests.kit.rides import event as event_of

PAYMENT = CONSUMERS[2]


def completed(order_id: str) -> RideEvent:
    """Return an event that every consumer takes."""
    return event_of(CarRideCompleted.of(booked(order_id)))


def line(text: str, time_ms: int) -> dict[str, Any]:
    """Return a line of a log."""
    return {"message": text, "timestamp": time_ms, "logStreamName": "stream"}


def published(event: RideEvent, number: int) -> dict[str, Any]:
    """Return the line of an event in the bus's log."""
    content = {
        "id": f"copy-{number}",
        "source": event.source,
        "detail-type": DETAIL_TYPE,
        "detail": event.to_detail(),
    }
    return line(json.dumps(content), number)


class PagedLog:
    """A log group whose lines have CloudWatch's ids, on pages of two lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def add(self, time_ms: int) -> None:
        """Log the same words as ever."""
        number = str(len(self.lines))
        self.lines.append(line("the same words", time_ms) | {"eventId": number})

    def get_paginator(self, _: str) -> Any:
        """Return what pages through the lines of a time and of later ones."""
        return SimpleNamespace(paginate=self._pages)

    def _pages(self, *, startTime: int, **_: Any) -> Iterator[Any]:  # noqa: N803 - AWS's name
        found = [each for each in self.lines if each["timestamp"] >= startTime]
        found.sort(key=lambda each: each["timestamp"])
        for first in range(0, len(found), 2):
            yield {"events": found[first : first + 2]}


LATE_MS: Final = 5
pauses_us = st.integers(1, 3_000) | st.integers(119_990_000, 120_010_000)
"""Between two looks: some microseconds, or about as long as a line may take to appear."""


@given(st.lists(st.tuples(pauses_us, st.lists(st.integers(0, LATE_MS), max_size=5)), max_size=8))
@example([(1_000, [0]), (120_000_500, []), (1_000, [])])
def test_every_line_is_read_once(looks: list[tuple[int, list[int]]]) -> None:
    """Lines that appear up to the overlap late are read, and no line is read twice."""
    logs = PagedLog()
    ref = stack(lambda *_: logs, BusLogGroupName="group")
    now = datetime(2026, 11, 22, 9, tzinfo=UTC)
    tail = Tail(ref, "Bus", now - timedelta(seconds=1), timedelta(milliseconds=LATE_MS))
    seen = list[str]()
    for pause_us, lateness in looks:
        now += timedelta(microseconds=pause_us)
        now_ms = (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        for late_ms in lateness:
            logs.add(now_ms - late_ms)
        with time_machine.travel(now, tick=False):
            seen += [each["eventId"] for each in tail.lines()]
    assert sorted(seen) == sorted(each["eventId"] for each in logs.lines)


@given(st.integers(0, 100_000), st.integers(0, 999))
def test_a_look_that_follows_a_quiet_time_reads_no_line_again(after_ms: int, rest_us: int) -> None:
    """Whatever the milliseconds of the line, and the microseconds of the looks."""
    logs = PagedLog()
    ref = stack(lambda *_: logs, BusLogGroupName="group")
    begin = datetime(2026, 11, 22, 9, tzinfo=UTC)
    time_ms = int(begin.timestamp()) * 1000 + after_ms
    logs.add(time_ms)
    tail = Tail(ref, "Bus", begin, timedelta(milliseconds=LATE_MS))
    seen = 0
    later = begin + timedelta(minutes=2, milliseconds=after_ms, microseconds=rest_us)
    for _ in range(3):
        with time_machine.travel(later, tick=False):
            seen += len(list(tail.lines()))
    assert seen == 1


def test_the_index_forgets_the_oldest() -> None:
    """It holds the newest facts only, and nothing of the others."""
    index = Index(CONSUMERS, most=3)
    events = [completed(f"order_{number}") for number in range(5)]
    for number, event in enumerate(events):
        index.add_published(published(event, number))
    kept = [event.idempotencyid for event in events[2:]]
    assert list(index.facts) == kept
    assert index.waiting["ride-history"] == set(kept)


def test_a_ride_that_is_forgotten_is_given_up_no_more() -> None:
    """Its letter waits in its queue, but the index has nothing that it could show of it."""
    index = Index(CONSUMERS, most=1)
    event = completed("order_0")
    index.add_published(published(event, 0))
    index.add_letters([DeadLettered("PaymentDlq", "", "payment", None, event.idempotencyid)])
    assert index.given_up() == ["order_0"]
    index.add_published(published(completed("order_1"), 1))
    assert index.given_up() == []


def test_a_crash_is_seen_at_its_event() -> None:
    """A crashed attempt logs nothing.

    Its takeover's number shows it, whichever log is read first.
    """
    event = completed("order_1")
    lines = list[str]()
    for attempt, outcome in ((1, observation.FAILED), (3, observation.TAKEOVER)):
        key = f"{PAYMENT.name}#{event.idempotencyid}"
        told = {
            "message": telemetry.DELIVERY,
            "consumer": PAYMENT.name,
            "outcome": outcome,
            "attempt": attempt,
        }
        lines += [
            "START RequestId: 1",
            json.dumps(told | {"key": key}),
            f"REPORT RequestId: 1 Duration: {attempt}.5 ms",
        ]
    index = Index(CONSUMERS)
    for time_ms, text in enumerate(lines):
        index.add_line(line(text, time_ms))
    index.add_published(published(event, 0))
    runs = index.facts[event.idempotencyid].attempts(PAYMENT.name)
    assert [(run.outcome, run.attempt) for run in runs] == [
        ("Failed", 1),
        (CRASHED, 2),
        ("Takeover", 3),
    ]
    assert [run.duration_ms for run in runs] == [1.5, 0, 3.5]


def test_a_bug_is_not_taken_for_an_ended_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The page says that something failed, and the log has the traceback; polling goes on."""
    local = Kept("carride", "us-east-1", "http://127.0.0.1:1", "", "", 0)
    ref = stack(Mock())
    ref.local = local
    feed = Feed(ref)
    rounds = iter((KeyError("name"), OperatorError("no answer")))
    monkeypatch.setattr("ops.desk.feed.is_running", lambda _: len(caplog.records) == 0)
    monkeypatch.setattr(feed, "_stopping", Mock(is_set=Mock(side_effect=[False, False, True])))
    said = list[str | None]()
    monkeypatch.setattr(feed._stopping, "wait", lambda _: said.extend(feed.troubles.values()))  # noqa: SLF001
    feed._repeat(Mock(side_effect=rounds), 0)  # noqa: SLF001 - the threads would run on
    assert said == ["carride cannot be asked: 'name'.", ENDED]
    assert "KeyError" in caplog.text


@pytest.mark.parametrize(
    ("is_terminal", "display", "opens"),
    [(True, ":0", True), (True, None, False), (False, ":0", False)],
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
    monkeypatch.setenv("DISPLAY", display) if display else monkeypatch.delenv(
        "DISPLAY", raising=False
    )
    open_browser("http://127.0.0.1:8765/")
    assert bool(opened) == opens


def test_a_chart_is_stacked_from_the_bottom_up() -> None:
    """Parts stand on each other, the highest bucket fills the room, and nothing is nothing."""
    parts = {"new": {"New"}, "fail": {"Failed"}}
    found = stacked([Counter(), Counter(New=3, Failed=1), Counter(New=1)], parts)
    assert found.peak == 4
    assert [(bar.kind, round(bar.x), round(bar.y), round(bar.height)) for bar in found.bars] == [
        ("new", 33, 42, 58),
        ("fail", 33, 22, 20),
        ("new", 67, 80, 20),
    ]
    assert stacked([Counter()], parts).bars == ()


@mock_aws
def test_flow_counts_what_has_failed_although_no_consumer_fails_now() -> None:
    """Runs that were retried, or events that were given up: not that no consumer fails."""
    desk = desk_of(empty_stack())
    now_ms = time.time() * 1000
    event = completed("order_1")
    publish(desk.feed.index, event, now_ms - 9_000)
    for name in (each.name for each in CONSUMERS):
        deliver(desk.feed.index, event, name, now_ms - 8_000)
    assert "no consumer fails" in get(desk, "/").text
    other = completed("order_2")
    publish(desk.feed.index, other, now_ms - 7_000)
    deliver(desk.feed.index, other, "payment", now_ms - 6_500, observation.FAILED)
    deliver(desk.feed.index, other, "payment", now_ms - 6_000, attempt=2)
    text = get(desk, "/").text
    assert "1 failed run in 5 minutes, none given up" in text
    assert "no consumer fails" not in text
    deliver(desk.feed.index, event, "dispatch", now_ms - 5_000, observation.DEAD_LETTERED)
    text = get(desk, "/").text
    assert "dispatch gave up 1 delivery in 5 minutes" in text
    assert "no consumer fails" not in text


@mock_aws
def test_flow_names_each_consumer_that_gave_up_once() -> None:
    """However many they are, they are one list."""
    desk = desk_of(empty_stack())
    now_ms = time.time() * 1000
    event = completed("order_1")
    publish(desk.feed.index, event, now_ms - 9_000)
    for name in (each.name for each in CONSUMERS):
        deliver(desk.feed.index, event, name, now_ms - 8_000, observation.DEAD_LETTERED)
    head = get(desk, "/").text.partition("<h1>Flow</h1>")[2].partition("</p>")[0]
    assert f"{len(CONSUMERS)} deliveries given up" in head
    assert head.count(" and ") == 1
    assert head.count("given up") + head.count("gave up") == 1
    assert all(head.count(each.name) == 1 for each in CONSUMERS)


class UnderWayNow(NamedTuple):
    """What is under way on a stack."""

    is_event_open: bool = False
    messages: int = 0
    has_replay: bool = False
    work: int = 0


now_under_way: st.SearchStrategy[UnderWayNow] = st.builds(
    UnderWayNow,
    st.booleans(),
    st.sampled_from([0, 525]),
    st.booleans(),
    st.sampled_from([0, 7]),
)


@pytest.fixture
def desk() -> Iterator[Desk]:
    """The desk of a stack without events."""
    with mock_aws():
        yield desk_of(empty_stack())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=32)
@given(now_under_way)
@example(UnderWayNow())
@example(UnderWayNow(messages=525, has_replay=True))
def test_flow_says_that_nothing_is_in_flight_only_if_that_is_so(
    desk: Desk, now: UnderWayNow
) -> None:
    """Not while an event, a message, a replay or the local engine has work, and it says which.

    What a replay brings again was finished before, so no event waits.
    """
    desk.feed.index = Index(desk.feed.consumers)
    now_ms = time.time() * 1000
    event = completed("order_1")
    publish(desk.feed.index, event, now_ms - 9_000)
    for each in CONSUMERS[now.is_event_open :]:
        deliver(desk.feed.index, event, each.name, now_ms - 8_000)
    desk.feed.queues = {"DispatchQueue": now.messages, "PaymentDlq": 1}
    desk.feed.replays = ("us-east-1.1",) if now.has_replay else ()
    desk.feed.work = now.work
    text = get(desk, "/").text
    assert bool(re.search("othing is in flight", text)) == (now == UnderWayNow())
    head = text.partition("<h1>Flow</h1>")[2].partition("</p>")[0]
    assert ("a replay runs" in head) == now.has_replay
    if now.has_replay and now.messages:
        assert f"{now.messages} messages" in head


def test_flow_leads_to_what_was_injected_last_for_as_long_as_it_runs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the toast is gone, and in another window."""
    sent = list[Any]()
    monkeypatch.setattr("ops.desk.faults.send", lambda _, detail: sent.append(detail))
    desk.feed.stack.local = Kept("carride", "us-east-1", "", "", "", 0)
    event = completed("order_1")
    now_ms = time.time() * 1000
    publish(desk.feed.index, event, now_ms - 9_000)
    for each in CONSUMERS:
        deliver(desk.feed.index, event, each.name, now_ms - 8_000)
    link = f'href="/event/{event.idempotencyid}"'
    assert link not in get(desk, "/").text
    post(desk, "/inject", fault="copies", back="/")
    assert len(sent) == 50
    for _ in range(2):
        assert link in get(desk, "/").text


def test_the_feed_learns_of_replays_that_a_command_has_started(desk: Desk) -> None:
    """EventBridge lists them until it has handed them over; predictions are none."""
    found = [("us-east-1.1", "RUNNING"), ("us-east-1.2", "COMPLETED"), ("plan.1", "RUNNING")]
    replays = [{"ReplayName": name, "State": state} for name, state in found]
    client = desk.feed.stack.client("events")
    client.list_replays = lambda **_: {"Replays": replays}
    assert desk.feed.replays is None
    desk.feed._count_queues()  # noqa: SLF001 - as its thread does
    assert desk.feed.replays == ("us-east-1.1",)


@mock_aws
def test_flow_gives_no_event_up_twice() -> None:
    """A refused delivery is no second one that gave the event up, in no number of the page."""
    desk = desk_of(empty_stack())
    now_ms = time.time() * 1000
    event = completed("order_1")
    publish(desk.feed.index, event, now_ms - 9_000)
    deliver(desk.feed.index, event, "payment", now_ms - 8_000, observation.DEAD_LETTERED)
    for _ in range(2):
        deliver(desk.feed.index, event, "payment", now_ms - 8_000, observation.QUARANTINED)
    text = get(desk, "/").text
    assert "payment gave up 1 delivery in 5 minutes" in text
    assert re.findall(r"(\d+) given up", text) == ["1"]
    assert re.findall(r"(\d+) refused", text) == ["2"]
    (consumer,) = [each for each in CONSUMERS if each.name == "payment"]
    (fact,) = desk.feed.index.facts.values()
    assert fact.outcome(consumer) == observation.DEAD_LETTERED
    fact.runs.reverse()  # as from another stream of the log
    assert fact.outcome(consumer) == observation.DEAD_LETTERED


@mock_aws
def test_flow_lists_the_rides_that_are_open_or_given_up() -> None:
    """Given up first, twenty of all; one that has ended is not among them, in whatever order."""
    desk = desk_of(empty_stack())
    index = desk.feed.index
    now_ms = time.time() * 1000
    for number in range(30):
        publish(index, event_of(Life(f"order_{number:02}").created), now_ms - 9_000 + number)
    ended = Life("order_03")
    for fact in (ended.cancelled, ended.started):
        publish(index, event_of(fact), now_ms - 5_000)
    stuck = completed("order_29")
    publish(index, stuck, now_ms - 5_000)
    index.add_letters([DeadLettered("PaymentDlq", "", "payment", None, stuck.idempotencyid)])
    table = get(desk, "/").text.partition("Rides with dead letters")[2]
    rides = re.findall(r'href="/ride/(\w+)"', table)
    assert rides[:2] == ["order_29", "order_00"]
    assert len(rides) == 20
    assert "order_03" not in rides
    assert "9 more rides" in table


@mock_aws
@time_machine.travel(NOW, tick=False)
def test_flow_says_what_fails_and_what_does_not() -> None:
    """The sentence has the consumer, the newest error and who is spared; the title is short."""
    desk = desk_of(empty_stack())
    empty = get(desk, "/").text
    assert "No events yet" in empty
    assert "./carride drive simulate --rides 100" in empty
    assert "--yes" not in empty
    now_ms = time.time() * 1000
    for number in range(4):
        event = completed(f"order_{number}")
        publish(desk.feed.index, event, now_ms - 9_000)
        deliver(
            desk.feed.index,
            event,
            "payment",
            now_ms - 8_000 + number,
            observation.FAILED,
            reason="no <answer>",
        )
    text = get(desk, "/").text
    assert "payment has failed for 8.0 s: none of 4 deliveries took effect" in text
    assert "no &lt;answer&gt;" in text
    spared = [each.name for each in CONSUMERS if each.name != "payment"]
    assert f"{' and '.join(spared)} are not affected." in text
    assert "<title>payment fails · Flow · CarRide desk</title>" in text
    assert 'class="s-band"' in text


@mock_aws
def test_a_consumer_that_gave_everything_up_is_not_said_to_be_spared() -> None:
    """It has shown no effect since, while another one fails now."""
    desk = desk_of(empty_stack())
    now_ms = time.time() * 1000
    events = [completed(f"order_{number}") for number in range(4)]
    for consumer, at_ms, outcomes in (
        ("payment", now_ms - 20 * 60_000, (observation.FAILED, observation.DEAD_LETTERED)),
        ("ride-history", now_ms - 8_000, (observation.FAILED,)),
    ):
        for outcome in outcomes:
            for event in events:
                publish(desk.feed.index, event, at_ms - 1)
                deliver(desk.feed.index, event, consumer, at_ms, outcome)
    text = get(desk, "/").text
    assert "ride-history has failed" in text
    (spared,) = re.findall(r"([\w ,-]+) (?:is|are) not affected\.", text)
    assert "dispatch" in spared
    assert "payment" not in spared


@mock_aws
def test_flow_does_not_say_that_all_is_well_before_a_consumer_that_gave_up_works_again() -> None:
    """However long ago that was: only an effect ends it."""
    desk = desk_of(empty_stack())
    at_ms = time.time() * 1000 - 20 * 60_000
    events = [completed(f"order_{number}") for number in range(4)]
    for outcome in (observation.FAILED, observation.DEAD_LETTERED):
        for event in events:
            publish(desk.feed.index, event, at_ms - 1)
            deliver(desk.feed.index, event, "payment", at_ms, outcome)
    head = get(desk, "/").text.partition("<h1>Flow</h1>")[2].partition("</p>")[0]
    assert "nothing has taken effect at payment since" in head
    assert "no consumer fails" not in head
    deliver(desk.feed.index, completed("order_9"), "payment", at_ms + 9_000)
    assert "no consumer fails" in get(desk, "/").text


@mock_aws
def test_an_outage_is_drawn_if_it_is_as_long_as_a_bar() -> None:
    """A second of failures is no band in the picture of a day; their bar shows the failures."""
    desk = desk_of(empty_stack())
    now_ms = time.time() * 1000
    for number in range(4):
        event = completed(f"order_{number}")
        at_ms = now_ms - 200_000 + 5_000 * number
        publish(desk.feed.index, event, at_ms)
        deliver(desk.feed.index, event, "payment", at_ms, observation.FAILED)
    later = now_ms - 180_000
    deliver(desk.feed.index, completed("order_0"), "payment", later, attempt=2)
    assert 'class="s-band"' in get(desk, "/?range=5m").text
    assert 'class="s-band"' not in get(desk, "/?range=24h").text
    assert "each bar 5 s" in get(desk, "/?range=5m").text
    everything = get(desk, "/?range=all").text
    assert "the last" not in everything.partition("strip-head")[2].partition("each bar")[0]
