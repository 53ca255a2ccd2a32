"""What the desk says of a job's plan and of its result."""

from typing import Any, Final

import pytest
from moto import mock_aws

from ops import plans
from ops.desk.told import Step, goes_nowhere, result_of, scope_of, steps_of, table_of
from ops.stack import OperatorError
from tests.ops.desk_world import desk_of, get, post
from tests.ops.world import empty_stack

UUID: Final = "37134231-8c22-525e-93f3-3e3838254b1c"


def letter(*, goes: bool, releases: bool = False, why: str = "it runs") -> Any:
    """Return a letter of a plan."""
    return {
        "letter": {"id": UUID, "key": f"payment#{UUID}"},
        "verdict": {"goes": goes, "why": why, "releases": releases},
        "revision": "QUARANTINED, attempt 3, owner one",
    }


def test_the_steps_of_a_redrive_name_what_it_is_bound_to() -> None:
    """Keys and letters by their ids, what stays, and what was not chosen."""
    letters = [letter(goes=True, releases=True), letter(goes=False, why="it would come back")]
    preview = {"queue": "PaymentDlq", "target": "arn:aws:lambda:x:1:function:payment"}
    steps = steps_of("redrive", preview | {"letters": letters, "others": 7})
    assert [step.title for step in steps] == [
        "Release 1 key",
        "Send 1 letter to payment",
        "Delete it from PaymentDlq once its target has accepted it",
        "Leave 1 letter where it is",
        "Leave the other 7 letters of PaymentDlq",
    ]
    assert steps[0] == Step(
        "Release 1 key",
        ("payment#37134231…4b1c",),
        note="now QUARANTINED, attempt 3; the next delivery runs as attempt 1",
    )
    assert steps[1].ids == ("37134231…4b1c",)
    assert not goes_nowhere("redrive", preview | {"letters": letters})
    assert goes_nowhere("redrive", preview | {"letters": letters[1:]})


def test_a_plan_with_many_letters_lists_some() -> None:
    """The others are a number."""
    letters = [letter(goes=True)] * 1_000
    preview = {"queue": "PaymentDlq", "target": "t", "letters": letters, "others": 0}
    step = steps_of("redrive", preview)[0]
    assert (len(step.ids), step.more) == (20, 980)


@pytest.mark.parametrize(
    ("verb", "result", "sentence"),
    [
        (
            "redrive",
            {"planned": 3, "sent": 2, "stayed": {"held": 1}, "gone": 0, "first": {"g": "failed"}},
            "2 of 3 letters sent; 1 stayed: held; the first one failed.",
        ),
        (
            "redrive",
            {"planned": 1, "sent": 1, "gone": 0, "first": {"g": "failed"}},
            "1 of 1 letter sent; it failed.",
        ),
        (
            "redrive",
            {"planned": 9, "sent": 9, "first": {"g": "succeeded", "h": "succeeded"}},
            "9 of 9 letters sent; the first of 2 kinds succeeded.",
        ),
        ("release", {}, "The key is released: its next delivery runs as attempt 1."),
        (
            "replay run",
            {"replay": "r", "audit": {"verdict": "balanced"}},
            "The replay has ended. The audit says: balanced.",
        ),
        ("replay cancel", {"state": "CANCELLED"}, "The replay is cancelled."),
        ("replay plan", {"events": 538}, "A replay would deliver 538 archived events."),
        ("redrive", None, ""),
    ],
)
def test_a_job_says_its_result_in_a_sentence(verb: str, result: Any, sentence: str) -> None:
    """Not what the command would print."""
    assert result_of(verb, result) == sentence


def test_a_prediction_is_a_table_by_consumer_and_type() -> None:
    """With a column for each fate that occurs."""
    fates = {"payment": {"CarAssigned": {"recognised": 1_204}, "CarRideCompleted": {"new": 2}}}
    assert table_of("replay plan", {"fates": fates}) == (
        ("consumer", "type", "new", "recognised"),
        (("payment", "CarAssigned", "0", "1,204"), ("payment", "CarRideCompleted", "2", "0")),
    )
    assert table_of("redrive", {"fates": fates}) is None


def test_a_scope_reads_as_words() -> None:
    """Options without their dashes, and ids short."""
    words = ["PaymentDlq", f"--letter={UUID}", "--release", "--since=1h"]
    assert scope_of(words) == "PaymentDlq, letter 37134231…4b1c, releasing keys, since 1h"


@mock_aws
def test_jobs_lists_plans_of_the_command_line_too(tmp_path: Any, monkeypatch: Any) -> None:
    """Each with the command that carries it out; a discarded one is gone."""
    monkeypatch.setattr(plans, "PLANS", tmp_path)
    with plans.typed(["release", "payment#<b>"]):
        name = plans.save({}, ())
    desk = desk_of(empty_stack())
    text = get(desk, "/jobs").text
    assert "No jobs yet" in text
    assert f"./carride release payment#&lt;b&gt; --plan={name} --yes" in text
    plans.discard(str(name))
    plans.discard("../../etc/passwd")
    assert str(name) not in get(desk, "/jobs").text


@mock_aws
def test_an_unknown_job_is_refused_in_a_sentence() -> None:
    """Its page says so, and its buttons do nothing."""
    desk = desk_of(empty_stack())
    assert "not known here any more" in get(desk, "/job/none").text
    for path in ("/confirm", "/again", "/discard"):
        answer = post(desk, path, job="none", back="/jobs")
        assert (answer.status, answer.headers["location"]) == (303, "/jobs")
        assert "Nothing was done: there is no such job" in get(desk, "/jobs").text
    with pytest.raises(OperatorError):
        desk.jobs.confirm("none")
