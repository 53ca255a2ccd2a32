"""What became of a replay's deliveries stands beside its prediction."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from moto import mock_aws

from ops import change_log
from ops.cli.show import plain
from ops.desk.jobs import Job
from ops.replay import ReplayState, fates
from ops.replay import log as log_of_replays
from ops.replay.log import Prediction, window_differs
from ops.replay.planning import Fate
from ops.stack import OperatorError, StackRef
from tests.ops.desk_world import desk_of, get, prints
from tests.ops.world import NOW, empty_stack

SINCE: Final = NOW - timedelta(hours=1)
CONSUMERS: Final = ("payment", "dispatch")
DELIVERED: Final = [fate for fate in Fate if fate is not Fate.NOT_FOR_IT]
COUNTS: Final = st.dictionaries(st.sampled_from(DELIVERED), st.integers(1, 9))
LOGGED: Final = st.dictionaries(st.sampled_from(CONSUMERS), COUNTS)
PREDICTED: Final = st.dictionaries(
    st.sampled_from(CONSUMERS), st.dictionaries(st.sampled_from(("A", "B")), COUNTS)
)


@example(predicted={"payment": {"A": {Fate.NEW: 1}}}, logged={"dispatch": {Fate.NEW: 1}})
@given(predicted=PREDICTED, logged=LOGGED)
def test_no_delivery_is_left_out_of_a_comparison(predicted: Any, logged: Any) -> None:
    """Both columns add up to what was given, and a difference has a reason."""
    found = fates.compared(NOW, predicted, logged, CONSUMERS)
    assert sum(row.logged for row in found.rows) == sum(
        sum(each.values()) for each in logged.values()
    )
    by_type = [counts for types in predicted.values() for counts in types.values()]
    assert sum(row.predicted or 0 for row in found.rows) == sum(
        sum(each.values()) for each in by_type
    )
    differs = any(row.logged != row.predicted for row in found.rows)
    assert bool(found.why) == differs


@given(logged=LOGGED)
def test_without_a_prediction_nothing_is_said_to_differ(logged: Any) -> None:
    """What was logged stands alone."""
    found = fates.compared(None, {}, logged, CONSUMERS)
    assert all(row.predicted is None and row.logged for row in found.rows)
    assert found.why == []


def log(path: Path, monkeypatch: pytest.MonkeyPatch, ref: StackRef, *results: Any) -> None:
    """Write changes of a stack, the oldest first, each with its age in minutes and result."""
    monkeypatch.setattr(change_log, "CHANGES", path)
    lines = []
    for age, command, result in results:
        told = {"time": datetime.now(UTC) - timedelta(minutes=age), "command": command}
        where = {"stack": ref.name, "region": ref.region}
        lines.append(json.dumps(plain({**told, **where, "result": result})))
    path.write_text("\n".join(lines))


def prediction(until: datetime, new: int) -> Any:
    """Return the result of a prediction."""
    at = {"payment": {"CarRideCompleted": {"new": new}}}
    return {"since": SINCE, "until": until, "events": new, "fates": at, "warnings": []}


def job_of(desk: Any, result: Any, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Job:
    """Return a replay's job that has ended with a result, or its plan."""
    monkeypatch.setattr("ops.desk.jobs._process", prints(plain(result)))
    words = ["replay", "run", "--since=1h"]
    job = Job("replay run", words, desk.feed.stack, plan="0433d0e7", **more)
    job.reader.join()
    monkeypatch.setattr(desk.jobs, "get", {job.id: job}.get)
    return job


@mock_aws
def test_a_plan_uses_the_prediction_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of exactly its window is preferred; another is called another; an old one is none.

    What is predicted anew is exactly the window of the plan.
    """
    desk = desk_of(empty_stack())
    ref = desk.feed.stack
    plan = {"plan": ["replay"], "replay": "r", "since": SINCE, "until": NOW}
    job = job_of(desk, plan, monkeypatch)
    later = NOW + timedelta(seconds=40)
    exact = (20, "carride replay plan", prediction(NOW, 3))
    other = (5, "carride replay plan", prediction(later, 4))
    old = (90, "carride replay plan", prediction(NOW, 5))
    for known, count, is_other in (
        ((exact, other), "3 would run anew", False),
        ((old, other), "4 would run anew", True),
        ((old,), None, False),
    ):
        log(tmp_path / "log", monkeypatch, ref, *known)
        text = get(desk, f"/job/{job.id}").text
        assert ('id="predicted"' in text) == (count is not None)
        assert count is None or count in text
        assert ("another window" in text) == is_other
        for name, time in (("since", SINCE), ("until", NOW)):
            assert f'name="{name}" value="{plain(time)}"' in text.replace("+00:00", "Z")


SENT: Final = {"planned": 3, "sent": 2, "released": 1}
DECIDES: Final[Any] = [
    ("release payment#a", {"done": "release"}),
    ("redrive PaymentDlq --release", SENT),
    ("redrive PaymentDlq", None),
    ("forget payment#a", {"done": "forget"}),
    ("settle payment#a --not-done", {"done": "settle"}),
    ("erase customer_a", {"customer": "customer_a"}),
    ("replay run --since 1h", {"replay": "r"}),
]
"""Changes after which other events may run anew; without a result if one ended early."""
DECIDES_NOTHING: Final[Any] = [
    ("release payment#a", None),
    ("redrive PaymentDlq", {"planned": 3, "sent": 0, "released": 0}),
    ("replay cancel r", {"state": "CANCELLED"}),
    ("fleet --cars 64", {"cars": 64}),
]


@mock_aws
@pytest.mark.parametrize(
    ("change", "decides"),
    [*((each, True) for each in DECIDES), *((each, False) for each in DECIDES_NOTHING)],
)
def test_a_plan_says_that_its_prediction_is_outdated(
    change: tuple[str, Any], decides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If operators have changed this stack since, or while it was made; then it leads to a new one.

    What they did before, or to another stack, was taken into account or says nothing.
    """
    desk = desk_of(empty_stack())
    ref = desk.feed.stack
    plan = {"plan": ["replay"], "replay": "r", "since": SINCE, "until": NOW}
    job = job_of(desk, plan, monkeypatch)
    words, result = change
    made = (20, "carride replay plan", prediction(NOW, 3))
    path = tmp_path / "log"
    for age, is_written_first, is_outdated in (
        (10, False, decides),
        (19, True, decides),
        (30, True, False),
    ):
        line_of = (age, f"carride {words} --yes", result)
        lines = [line_of, made] if is_written_first else [made, line_of]
        log(path, monkeypatch, ref, *lines)
        text = get(desk, f"/job/{job.id}").text
        assert ('id="outdated"' in text) == is_outdated
        assert (
            re.search(r'class="primary" name="verb" value="replay plan"', text) is not None
        ) == (is_outdated)
        assert text.count('class="primary"') == 1
        elsewhere = [
            each if '"fates"' in each else each.replace(ref.region, "another-1")
            for each in path.read_text().splitlines()
        ]
        path.write_text("\n".join(elsewhere))
        text = get(desk, f"/job/{job.id}").text
        assert 'id="predicted"' in text
        assert 'id="outdated"' not in text


@mock_aws
def test_what_outdates_a_prediction_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys by whichever command released them, and letters; a newer prediction knows of both."""
    ref = empty_stack()
    made = (20, "carride replay plan", prediction(NOW, 3))
    redriven = (15, "carride redrive PaymentDlq --yes", SENT)
    released = (10, "carride release payment#b --yes", {"done": "release"})
    anew = (5, "carride replay plan", prediction(NOW, 4))
    log(tmp_path / "log", monkeypatch, ref, made, redriven, released, anew)
    newer, older = log_of_replays.predictions(ref)
    assert newer.outdated == ()
    assert sorted(each.split()[:2] for each in older.outdated) == [["2", "keys"], ["2", "letters"]]


@pytest.mark.parametrize(
    ("begins_s", "ends_s", "says"),
    [
        (0, 0, ""),
        (-34, -34, "34 s older"),
        (34, 33, "about 34 s newer"),
        (-60, 30, "which begins 1 min earlier and ends 30 s later"),
        (0, 30, "which ends 30 s later"),
    ],
)
def test_the_window_of_a_prediction_is_told_in_one_clause(
    begins_s: int, ends_s: int, says: str
) -> None:
    """A window that was shifted has one difference, not two."""
    since = SINCE + timedelta(seconds=begins_s)
    until = NOW + timedelta(seconds=ends_s)
    assert window_differs(Prediction(NOW, since, until, 0, {}), SINCE, NOW) == says


@mock_aws
@pytest.mark.parametrize("logged", [3, 1])
def test_both_sides_stand_on_the_pages_of_a_job_and_of_replays(
    logged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prediction and result of each fate, and why they differ if they do."""
    desk = desk_of(empty_stack())
    ref = desk.feed.stack
    known = prediction(NOW, 3)
    found = fates.compared(NOW, known["fates"], {"payment": {Fate.NEW: logged}}, CONSUMERS)
    result = {"replay": "r", "compared": found, "audit": {"verdict": "balanced"}}
    log(tmp_path / "log", monkeypatch, ref, (1, "carride replay run", result))
    assert [*log_of_replays.comparisons(ref)] == ["r"]
    state = ReplayState("r", "COMPLETED", SINCE, NOW, NOW, None, waiting=0, reason="")
    monkeypatch.setattr("ops.replay.status", lambda _: [state])
    job = job_of(desk, result, monkeypatch, previewed={"plan": ["replay"]})
    for path in (f"/job/{job.id}", "/replays"):
        text = get(desk, path).text
        assert 'data-label="predicted" class="num">3<' in text
        shown = "3" if logged == 3 else f"<b>{logged}</b>"
        assert f'data-label="logged" class="num">{shown}<' in text
        for why in found.why:
            assert why in text
    assert bool(found.why) == (logged != 3)


@mock_aws
def test_a_live_update_has_the_replays_and_leaves_the_form_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new replay, its end, and why there is no list: what somebody types stays meanwhile."""
    desk = desk_of(empty_stack())
    running = ReplayState("running.1", "RUNNING", SINCE, NOW, NOW, None, waiting=71, reason="")
    ended = running._replace(state="COMPLETED")

    def not_there(_: StackRef) -> list[ReplayState]:
        raise OperatorError("the archive does not answer")

    cases: list[tuple[list[ReplayState] | None, bool]] = [
        ([], False),
        ([running], True),
        ([ended], False),
        (None, False),
    ]
    for found, can_cancel in cases:
        answers = found is not None
        status = Mock(return_value=found) if answers else not_there
        monkeypatch.setattr("ops.replay.status", status)
        page = get(desk, "/replays")
        parts = json.loads(get(desk, "/replays", accept="application/json").text)
        assert 'name="since"' in page.text
        assert page.status == (200 if answers else 503)
        assert 'name="since"' not in "".join(parts.values())
        assert all(f'id="{name}"' in page.text for name in parts)
        for text in (page.text, parts["newest_replays"]):
            assert ("running.1" in text) == bool(found)
            assert ('value="replay cancel"' in text) == can_cancel
            assert (">71<" in text.replace(" ", "")) == can_cancel
            assert ("the archive does not answer" in text) != answers
