"""What became of a replay's deliveries stands beside its prediction."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from moto import mock_aws

from ops import change_log
from ops.cli.show import plain
from ops.replay import fates
from ops.replay import log as log_of_replays
from ops.replay.log import Prediction, window_differs
from ops.replay.planning import Fate
from ops.stack import StackRef
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


SENT: Final = {"planned": 3, "sent": 2, "released": 1}


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
