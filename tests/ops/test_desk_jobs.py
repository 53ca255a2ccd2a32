"""What the desk says of a job's plan and of its result."""

import json
import os
import sys
from datetime import timedelta
from itertools import permutations, product
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final
from unittest.mock import Mock

import pytest
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import sqs_backends

from carride_idempotency.operators.sending import FIRST_DID_NOT_SUCCEED
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from ops import change_log, plans
from ops.cli.show import plain
from ops.desk import changes
from ops.desk.app import Desk
from ops.desk.jobs import Job, State
from ops.desk.letterbox import Letterbox
from ops.desk.redriven import Back
from ops.desk.told import (
    Bound,
    Ended,
    Progress,
    Step,
    about,
    label_of,
    progress_of,
    result_of,
    scope_of,
    steps_of,
    table_of,
)
from ops.regions import ROOT
from ops.replay import ReplayState
from ops.stack import Kept, OperatorError, StackRef
from tests.carride.rides import Life
from tests.ops.desk_world import (
    BEGIN_MS,
    desk_of,
    event_of,
    get,
    post,
    prints,
    shown_after,
    sleeping,
)
from tests.ops.world import AWAY, NOW, empty_stack, put_record, stack

UUID: Final = "37134231-8c22-525e-93f3-3e3838254b1c"


FAILED_AGAIN: Final = {"type": "CarRideCompleted", "ride": "order_1", "trial": "failed"}


def letter(*, goes: bool, releases: bool = False, why: str = "it runs") -> Any:
    """Return a letter of a plan."""
    return {
        "letter": {"id": UUID, "key": f"payment#{UUID}", "fact": UUID, "type": "CarRideCompleted"}
        | {"ride": "order_1"},
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
        (Bound("payment#37134231…4b1c", "CarRideCompleted of order_1", f"/event/{UUID}"),),
        note="now quarantined, attempt 3; the next delivery runs as attempt 1",
    )
    assert steps[1].ids[0].id == "37134231…4b1c"


def test_a_plan_sends_letters_to_a_consumer_by_its_name() -> None:
    """The name of its function is CloudFormation's; a queue of no consumer has its target's."""
    arn = "arn:aws:lambda:x:1:function:carride-Payment-1X2Y3Z"
    preview = {"target": arn, "letters": [letter(goes=True)]}
    for queue, name in (("PaymentDlq", "payment"), ("ProducerDlq", "carride-Payment-1X2Y3Z")):
        first, _ = steps_of("redrive", preview | {"queue": queue})
        assert first.title.split()[-1] == name


def test_two_letters_of_one_key_release_it_once() -> None:
    """They are of one event, copied or replayed, which the plan says."""
    letters = [letter(goes=True, releases=True)] * 2
    preview = {"queue": "PaymentDlq", "target": "arn:aws:lambda:x:1:function:payment"}
    steps = steps_of("redrive", preview | {"letters": letters})
    assert [step.title for step in steps][:2] == [
        "Release 1 key",
        "Send 2 letters, all of one event, to payment",
    ]
    assert len(steps[0].ids) == 1
    assert about({"letters": letters}) == "CarRideCompleted of order_1"


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_redrive_that_has_ended_shows_its_plan(keys: int, copies: int) -> None:
    """With what became of each step; what is left alone is nothing done.

    Keys are counted as keys, and letters as letters, of which several may have one key.
    """
    letters = []
    for number in range(keys):
        name = f"payment#{number}"
        one = letter(goes=True, releases=True)
        letters += [one | {"letter": one["letter"] | {"key": name, "fact": str(number)}}] * copies
    planned = len(letters)
    letters.append(letter(goes=False))
    steps = steps_of("redrive", {"queue": "q", "target": "t", "letters": letters})
    for released, sent in product(range(keys + 1), range(planned + 1)):
        result = {"planned": planned, "sent": sent, "released": released}
        ended = Ended(has_ended=True, step=None, result=result)
        release, send, delete, leave = progress_of("redrive", steps, ended)
        assert leave.progress == Progress.NONE
        for step, done, total in (
            (release, released, keys),
            (send, sent, planned),
            (delete, sent, planned),
        ):
            assert step.progress == part_done(done, total), step
            tells = done != total
            assert (f"{done} of {total}" in step.note) == tells


def part_done(done: int, total: int) -> Progress:
    """Return how far something is of which so many parts are done."""
    if done == total:
        return Progress.DONE
    return Progress.PARTLY if done else Progress.NONE


def test_a_release_that_has_ended_shows_what_it_did() -> None:
    """What comes after it is no step of it."""
    record = {"key": f"payment#{UUID}", "status": QUARANTINED, "attempt": 3, "says": "given up"}
    steps = steps_of("release", {"record": record, "then": "redrive its dead letter"})
    ended = Ended(has_ended=True, step=None, result={"done": "release"})
    (step,) = progress_of("release", steps, ended)
    assert (step.title, step.progress) == ("Release 1 key", Progress.DONE)


def test_a_replay_ticks_its_steps_off() -> None:
    """Those before the one that it has told of."""
    steps = steps_of("replay run", {"plan": ["replay", "wait", "audit"]})
    found = progress_of("replay run", steps, Ended(has_ended=False, step=2, result=None))
    assert [step.progress for step in found] == [Progress.DONE, Progress.NOW, Progress.NONE]


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
            {"planned": 3, "sent": 2, "stayed": {"gone": 1}, "gone": 0, "tried": [FAILED_AGAIN]},
            "2 of 3 letters sent; CarRideCompleted of order_1 failed again; 1 stayed: gone.",
        ),
        (
            "redrive",
            {"planned": 1, "sent": 1, "gone": 0, "tried": [FAILED_AGAIN]},
            "CarRideCompleted of order_1 was sent, and failed again.",
        ),
        (
            "redrive",
            {"planned": 9, "sent": 9, "tried": [FAILED_AGAIN | {"trial": "succeeded"}] * 3},
            "9 of 9 letters sent; CarRideCompleted of order_1 and 2 others took effect.",
        ),
        ("release", {}, "The key is released: its next delivery runs as attempt 1."),
        (
            "replay run",
            {"replay": "r", "audit": {"verdict": "balanced"}},
            "The replay has ended. The audit says: balanced.",
        ),
        ("replay cancel", {"state": "CANCELLED"}, "The replay is cancelled."),
        (
            "replay plan",
            {"events": 538, "fates": {"payment": {"CarAssigned": {"recognised": 9, "too old": 2}}}},
            "Of the deliveries of 538 archived events, 0 would run anew, 9 recognised, 2 too old.",
        ),
        ("redrive", None, ""),
    ],
)
def test_a_job_says_its_result_in_a_sentence(verb: str, result: Any, sentence: str) -> None:
    """Not what the command would print."""
    assert result_of(verb, result) == sentence


def test_a_prediction_is_a_table_by_consumer_and_type() -> None:
    """What needs a look comes first; what is only recognised, or not for a consumer, does not."""
    other = {"not for this consumer": 9}
    fates = {
        "dispatch": {"CarReleased": other},
        "payment": {
            "CarAssigned": {"recognised": 1_204},
            "CarRideCompleted": {"new": 2, "recognised": 7},
        },
    }
    assert table_of("replay plan", {"fates": fates}) == (
        ("consumer", "type", "would run anew", "recognised"),
        (("payment", "CarRideCompleted", "2", "7"),),
        (("payment", "CarAssigned", "0", "1,204"),),
    )
    assert table_of("redrive", {"fates": fates}) is None


def test_a_scope_reads_as_words() -> None:
    """Options without their dashes, and ids short."""
    words = ["PaymentDlq", f"--letter={UUID}", "--release", "--since=1h"]
    assert scope_of(words) == "PaymentDlq, letter 37134231…4b1c, releasing keys, since 1h"


def test_replays_of_the_same_words_are_told_apart_by_their_windows() -> None:
    """The times of the plan stand in the place of a span before now."""
    words = ["--since=20m", "--only=PaymentRule"]
    scopes = set()
    for minutes in (0, 1, 24 * 60):
        until = NOW + timedelta(minutes=minutes)
        shown = plain({"since": until - timedelta(minutes=20), "until": until})
        scopes.add(scope_of(words, shown, BEGIN_MS))
    assert len(scopes) == 3
    for scope in scopes:
        assert "20m" not in scope
        assert "PaymentRule" in scope


def test_a_job_is_called_as_its_button() -> None:
    """A plan and a prediction of a replay are told apart, and so is a replay that runs."""
    assert label_of("replay run", asks=True) == "Replay plan"
    assert label_of("replay run", asks=False) == "Replay"
    assert label_of("replay plan", asks=False) == "Replay prediction"
    assert label_of("redrive", asks=True) == "Redrive plan"


@mock_aws
@pytest.mark.parametrize(
    ("since", "until"), [("abc", ""), ("tomorrow", ""), ("1h", "x"), ("1h", "2h"), ("", "")]
)
def test_a_window_that_is_none_starts_no_job(
    since: str, until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page with the form says which field is wrong, and keeps what was typed."""
    monkeypatch.setattr("ops.replay.status", lambda _: [])  # the stack has no archive
    desk = desk_of(empty_stack())
    form = {"verb": "replay run", "since": since, "until": until, "back": "/replays"}
    answer = post(desk, "/start", **form)
    assert answer.headers["location"] == "/replays"
    assert desk.jobs.newest() == []
    page = shown_after(desk, answer).text
    assert "Nothing was done" in page
    assert f'name="since" value="{since}"' in page
    assert f'name="until" value="{until}"' in page


@mock_aws
def test_jobs_lists_plans_of_the_command_line_too(tmp_path: Any, monkeypatch: Any) -> None:
    """Each with the command that carries it out; a discarded one is gone."""
    monkeypatch.setattr(plans, "PLANS", tmp_path)
    desk = desk_of(empty_stack())
    with plans.typed(["release", "payment#<b>"]):
        name = plans.save({}, [desk.feed.stack])
    with plans.typed(["release", "payment#<b>"]):
        name = plans.save({}, [desk.feed.stack])
    text = get(desk, "/jobs").text
    assert "No jobs yet" in text
    assert "and 1 older preview of the same" in text
    assert text.count("Copy the command") == 1
    assert f"./carride release payment#&lt;b&gt; --plan={name} --yes" in text
    plans.discard(str(name))
    plans.discard("../../etc/passwd")
    assert str(name) not in get(desk, "/jobs").text


@mock_aws
@pytest.mark.parametrize("differs", ["name", "region", "endpoint", "nothing"])
def test_jobs_lists_the_plans_of_its_own_stack_only(
    differs: str, tmp_path: Any, monkeypatch: Any
) -> None:
    """A stack of the same name may run elsewhere, and its plans are none of this desk's."""
    monkeypatch.setattr(plans, "PLANS", tmp_path)
    own = empty_stack()
    other = own.glancing()
    if differs == "name":
        other.name = "another"
    if differs == "region":
        other.region = "eu-west-1"
    if differs == "endpoint":
        other.local = Kept(own.name, own.region, "http://127.0.0.1:1", "", "", 0)
    with plans.typed(["release", "payment#1"]):
        name = plans.save({}, [other])
    assert (str(name) in get(desk_of(own), "/jobs").text) is (differs == "nothing")


def planned_redrive(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return the plan of a redrive of one letter, which the desk has made."""
    preview = {"queue": "PaymentDlq", "target": "payment", "letters": [letter(goes=True)]}
    monkeypatch.setattr("ops.desk.jobs._process", prints(preview))
    job = desk.jobs.get(desk.jobs.start("redrive", {"": "PaymentDlq"}))
    assert job is not None
    job.reader.join()
    return job


@mock_aws
def test_a_plan_that_a_command_has_carried_out_waits_for_nobody(
    tmp_path: Any, monkeypatch: Any
) -> None:
    """Nothing of the desk offers it any more, and a button on an older page does nothing."""
    monkeypatch.setattr(plans, "PLANS", tmp_path / "plans")
    log = tmp_path / "changes.jsonl"
    monkeypatch.setattr(change_log, "CHANGES", log)
    desk = desk_of(empty_stack())
    job = planned_redrive(desk, monkeypatch)
    words = ["redrive", "PaymentDlq"]
    with plans.typed([*words, f"--plan={job.plan}"]):
        plans.save({}, ())
    path = f"/job/{job.id}"
    assert "Run exactly this" in get(desk, path).text
    assert "1 plan waits for you" in get(desk, "/jobs").text
    assert "took" not in get(desk, path).text.partition("<h1>")[2], "nothing was done so far"
    assert desk.badges()["/jobs"].text == "1", "the navigation counts what the page counts"
    with plans.typed([*words, f"--plan={job.plan}", "--yes"]):
        plans.take({}, ())
    for page in ("/jobs", path):
        text = get(desk, page).text
        assert "running on the command line</span>" in text, "the log has it when it has ended"
        assert 'action="/confirm"' not in text
    change = {"time": "2026-11-24T15:15:26+00:00", "command": "carride redrive PaymentDlq"}
    log.write_text(json.dumps(change | {"plan": job.plan}))
    plans.ended(job.plan)
    for button in ("/confirm", "/discard"):
        answer = post(desk, button, job=job.id, back=path)
        told = "Nothing was done: this plan is carried out on the command line"
        assert told in shown_after(desk, answer).text
    assert desk.jobs.newest() == [job]
    for page in ("/jobs", path):
        text = get(desk, page).text
        assert "carried out on the command line</span>" in text
        assert ("15:15:26" in text) is (page == path), "when that was"
        assert "waits for you" not in text
        assert "--yes" not in text
        for button in ("/confirm", "/discard"):
            assert f'action="{button}"' not in text
    assert "/jobs" not in desk.badges()


_CARRIES_OUT: Final = """
import sys
from ops import plans

with plans.typed([*sys.argv[1:], "--yes"]):
    plans.take({}, ())
print("taken", flush=True)
sys.stdin.read()
"""
"""A command that begins to carry a plan out, and never ends by itself."""


@mock_aws
@pytest.mark.parametrize("has_looked", [True, False])
def test_a_plan_whose_command_was_killed_runs_no_more(
    tmp_path: Any, monkeypatch: Any, *, has_looked: bool
) -> None:
    """Whenever the desk looks: it runs as long as its process lives, and is cut off afterwards."""
    monkeypatch.setattr(plans, "PLANS", tmp_path / "plans")
    monkeypatch.setattr(change_log, "CHANGES", tmp_path / "none")
    desk = desk_of(empty_stack())
    job = planned_redrive(desk, monkeypatch)
    words = ["redrive", "PaymentDlq", f"--plan={job.plan}"]
    with plans.typed(words):
        plans.save({}, ())
    path = f"/job/{job.id}"
    if has_looked:
        assert 'action="/confirm"' in get(desk, path).text
    with Popen(
        [sys.executable, "-c", _CARRIES_OUT, *words],
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        env={**os.environ, "CARRIDE_PLANS": str(plans.PLANS), "PYTHONPATH": str(ROOT)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        if has_looked:
            desk.jobs.look()
            assert job.state is State.RUNS_ELSEWHERE
        other.kill()
    for page in ("/jobs", path):
        text = get(desk, page).text
        assert job.state is State.CUT_OFF
        assert 'action="/confirm"' not in text
        assert 'action="/again"' in text
    answer = post(desk, "/confirm", job=job.id, back=path)
    assert "Nothing was done" in shown_after(desk, answer).text
    assert desk.jobs.newest() == [job]


@mock_aws
def test_a_plan_that_a_job_carries_out_leads_to_it(monkeypatch: Any) -> None:
    """An older page of the plan is no dead end."""
    desk = desk_of(empty_stack())
    plan = planned_redrive(desk, monkeypatch)
    name = desk.jobs.confirm(plan.id)
    done = desk.jobs.get(name)
    assert done is not None
    done.reader.join()
    assert f'href="/job/{name}"' in get(desk, f"/job/{plan.id}").text


@mock_aws
def test_an_expired_plan_can_only_be_made_again(tmp_path: Any, monkeypatch: Any) -> None:
    """It waits for nobody, and a button on an older page does nothing."""
    monkeypatch.setattr(plans, "PLANS", tmp_path / "plans")
    monkeypatch.setattr(change_log, "CHANGES", tmp_path / "none")
    desk = desk_of(empty_stack())
    job = planned_redrive(desk, monkeypatch)
    lives = plans.LIVES.total_seconds()
    job.began -= lives - 60
    path = f"/job/{job.id}"
    assert 'action="/confirm"' in get(desk, path).text
    job.began -= 61
    answer = post(desk, "/confirm", job=job.id, back=path)
    assert "Nothing was done" in shown_after(desk, answer).text
    assert desk.jobs.newest() == [job]
    for page in ("/jobs", path):
        text = get(desk, page).text
        assert "expired</span>" in text
        assert "waits for you" not in text
        assert "--yes" not in text
        assert 'action="/confirm"' not in text
        assert 'action="/again"' in text


@mock_aws
def test_plans_that_differ_in_an_equals_sign_are_one(tmp_path: Any, monkeypatch: Any) -> None:
    """The value of an option may follow an equals sign or a space."""
    monkeypatch.setattr(plans, "PLANS", tmp_path)
    desk = desk_of(empty_stack())
    for words in (
        ["redrive", "PaymentDlq", "--limit=5"],
        ["redrive", "PaymentDlq", "--limit", "5"],
    ):
        with plans.typed(words):
            plans.save({}, [desk.feed.stack])
    text = get(desk, "/jobs").text
    assert "and 1 older preview of the same" in text
    assert text.count("Copy the command") == 1


@mock_aws
def test_an_unknown_job_is_refused_in_a_sentence() -> None:
    """Its page says so, and its buttons do nothing."""
    desk = desk_of(empty_stack())
    assert "not known here any more" in get(desk, "/job/none").text
    for path in ("/confirm", "/again", "/discard"):
        answer = post(desk, path, job="none", back="/jobs")
        assert (answer.status, answer.headers["location"]) == (303, "/jobs")
        assert "Nothing was done: there is no such job" in shown_after(desk, answer).text
    with pytest.raises(OperatorError):
        desk.jobs.confirm("none")


def test_what_stayed_beside_a_failure_is_said_once() -> None:
    """The first letter of its group is named already."""
    result = {
        "planned": 2,
        "sent": 1,
        "stayed": {FIRST_DID_NOT_SUCCEED: 1},
        "tried": [FAILED_AGAIN],
    }
    assert result_of("redrive", result).endswith("failed again; 1 stayed: its group waits.")


@pytest.mark.parametrize(
    "trials", [*permutations(("succeeded", "failed", "retried", "unknown"), 2)]
)
@pytest.mark.parametrize("identity", ["key", "fact"])
def test_an_event_of_several_letters_is_named_once(trials: tuple[str, str], identity: str) -> None:
    """However many reasons its letters came back for, and whichever of them was sent first.

    Events whose identity is not known are not taken for one.
    """
    names = {"key": None, "fact": None, identity: f"payment#{UUID}"}
    tried = [{**FAILED_AGAIN, **names, "trial": trial} for trial in trials]
    result = {"planned": 2, "sent": 2, "tried": tried}
    said = result_of("redrive", result)
    assert said.count("CarRideCompleted of order_1") == (set(trials) != {"unknown"})
    assert said == result_of("redrive", result | {"tried": tried[::-1]})
    apart = [{**each, identity: None} for each in tried]
    assert len(changes.by_event(apart)) == 2


def test_a_refusal_says_what_has_changed_and_offers_the_button_only() -> None:
    """Beside "Plan again" no page of the desk advises to type a command."""
    desk = desk_of(stack(Mock()))
    job = Mock(
        id="0123abcd",
        verb="redrive",
        words=["redrive", "PaymentDlq"],
        plan="0123abcd",
        state=State.REFUSED,
        asks=False,
        confirmed=True,
        began=0.0,
        ended=1.0,
        expires=3_600.0,
        status=2,
        result=None,
        previewed={},
        stage=None,
        share=None,
        command="./carride redrive PaymentDlq",
        lines=[
            "carride in us-east-1",
            "error: nothing was done, because this has changed:",
            "  letters a is gone",
            "Run the command without --yes to see what it would do now",
        ],
        says="Run the command without --yes to see what it would do now",
    )
    jobs: Any = desk.jobs
    jobs._jobs[job.id] = job  # noqa: SLF001 - as if it had run
    for path in ("/jobs", "/job/0123abcd"):
        text = get(desk, path).text
        assert "letters a is gone" in text
        assert "Plan again" in text
        assert "without --yes" not in text


def ended_redrive(
    ref: StackRef, key: str, monkeypatch: pytest.MonkeyPatch, letters: int = 1
) -> Job:
    """Return a redrive of an event's letters, on which its consumer has failed meanwhile."""
    tried = [FAILED_AGAIN | {"key": key}] * letters
    result = {"planned": letters, "sent": letters, "gone": 0, "stayed": {}, "tried": tried}
    script = f"print({json.dumps(json.dumps(result))}); raise SystemExit(1)"
    command = [sys.executable, "-c", script]
    monkeypatch.setattr(
        "ops.desk.jobs._process",
        lambda *_: Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True),
    )
    shown = {"letters": [letter(goes=True)] * letters}
    job = Job("redrive", ["redrive", "PaymentDlq"], ref, plan="0433d0e7", previewed=shown)
    job.reader.join()
    return job


@mock_aws
def test_a_redrive_is_called_by_what_the_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter that failed again may have attempts left, and a later one may succeed.

    The record says nothing of a redrive that another one of the same key has followed.
    """
    desk = desk_of(empty_stack())
    ref = desk.feed.stack
    key = f"payment#{UUID}"
    jobs = [ended_redrive(ref, key, monkeypatch)]
    monkeypatch.setattr(desk.jobs, "newest", lambda: jobs)
    monkeypatch.setattr(desk.jobs, "get", {each.id: each for each in jobs}.get)
    for status, word in (
        (None, "sent, failed again"),
        (FAILED, "being retried"),
        (IN_PROGRESS, "being retried"),
        (QUARANTINED, "sent, failed again"),
        (COMPLETED, "took effect"),
    ):
        if status:
            put_record(ref, record(key, status))
        for path in ("/jobs", f"/job/{jobs[0].id}"):
            text = get(desk, path).text
            assert f"{word}</span>" in text, (path, status)
            assert ("is being retried." in text) == (word == "being retried")
    first = jobs[0]
    jobs.insert(0, ended_redrive(ref, key, monkeypatch))
    assert "sent, failed again</span>" in get(desk, f"/job/{first.id}").text
    text = get(desk, "/jobs").text
    assert text.index("took effect</span>") < text.index("sent, failed again</span>")


@mock_aws
@pytest.mark.parametrize("sent", [1, 2, 3])
@pytest.mark.parametrize("before", [0, 2])
def test_letters_that_came_back_are_counted_as_they_are(
    sent: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several letters of one event, some may be back; those that were never sent are not."""
    desk = desk_of(empty_stack())
    ref = desk.feed.stack
    fact = event_of(Life("order_1").completed).idempotencyid
    put_record(ref, record(f"payment#{fact}", QUARANTINED))
    job = ended_redrive(ref, f"payment#{fact}", monkeypatch, sent)
    monkeypatch.setattr(desk.jobs, "newest", lambda: [job])
    monkeypatch.setattr(desk.jobs, "get", {job.id: job}.get)
    for _ in range(before):
        dead_letter(ref)
    queue = sqs_backends[DEFAULT_ACCOUNT_ID][AWAY].queues["PaymentDlq"]
    messages: Any = queue._messages  # noqa: SLF001 - moto has no other way to send one earlier
    for message in messages:
        message.sent_timestamp -= 60_000
    for came in range(sent + 1):
        if came:
            dead_letter(ref)
        monkeypatch.setattr(desk, "letterbox", Letterbox(ref))
        text = get(desk, f"/job/{job.id}").text
        section = text[text.index('id="state"') : text.index("</section>")]
        assert section.count(f'<a href="/event/{fact}">') == 1
        waiting = came + before
        assert ("/letters?event=" in section) == bool(waiting)
        assert (f"Its {waiting} letters" in section) == (waiting > 1)
        assert Back(came, before).says in section


def dead_letter(ref: StackRef) -> None:
    """Put the completion of a ride into the dead-letter queue of payment."""
    event = event_of(Life("order_1").completed)
    said = {"reason": "QUARANTINED", "consumer": "payment", "message": "no"}
    body = said | {"event": {"version": "0", "id": "x", "detail": event.to_detail()}}
    ref.client("sqs").send_message(
        QueueUrl=ref.outputs["PaymentDlqUrl"], MessageBody=json.dumps(body)
    )


def record(key: str, status: str) -> Record:
    """Return a record after its second attempt."""
    return Record(
        key=key,
        status=status,
        owner="one",
        attempt=2,
        lease_ms=None,
        expiry=None,
        fingerprint=None,
        delivery="d",
        region="us-east-1",
        created_ms=BEGIN_MS,
        updated_ms=BEGIN_MS,
        error="",
    )


@mock_aws
@pytest.mark.parametrize(("state", "can_cancel"), [("STARTING", True), ("COMPLETED", False)])
def test_a_replay_shows_its_state_before_its_job_has_said_anything(
    state: str, can_cancel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be cancelled from there; until EventBridge knows it, nothing is said of it."""
    name = "us-east-1.20261122T092605.530950Z"
    known: dict[str, ReplayState] = {}

    def describe(_stack: StackRef, asked: str) -> ReplayState:
        if asked not in known:
            raise OperatorError("no such replay")
        return known[asked]

    monkeypatch.setattr("ops.replay.describe", describe)
    monkeypatch.setattr("ops.desk.jobs._process", sleeping)
    desk = desk_of(empty_stack())
    shown = {"plan": ["replay events with a time from 9 to 10", "wait"], "replay": name}
    words = ["replay", "run", "--since=1h"]
    job = Job("replay run", words, desk.feed.stack, plan="0433d0e7", previewed=shown)
    monkeypatch.setattr(desk.jobs, "get", {job.id: job}.get)
    try:
        assert "The replay" not in get(desk, f"/job/{job.id}").text
        known[name] = ReplayState(name, state, NOW, NOW, NOW, None, waiting=7, reason="")
        text = get(desk, f"/job/{job.id}").text
    finally:
        job.interrupt()
        job.reader.join()
    assert f"<b>{state.lower()}</b>" in text
    assert "7 messages in the queues" in text
    assert ('value="replay cancel"' in text) == can_cancel
    assert "the replay goes on" in text


def test_a_plan_says_a_status_in_words() -> None:
    """As the list of keys does, not in the capitals of the record."""
    record = {"status": "IN_PROGRESS", "attempt": 2, "says": "its lease has ended", "key": "a#b"}
    (first,) = steps_of("release", {"record": record, "then": "the next delivery runs"})
    assert not any(word.isupper() for word in first.note.replace("_", " ").split())


@pytest.mark.parametrize(
    ("since", "until"), [("1h", "2h"), ("1h", "1h"), ("2030-01-01T00:00:00Z", "")]
)
@mock_aws
def test_a_window_that_ends_before_it_begins_is_refused_at_its_field(
    since: str, until: str
) -> None:
    """In the words of the page, which has no options of a command, and nothing is started."""
    desk = desk_of(empty_stack())
    typed = {"verb": "replay run", "since": since, "until": until}
    answer = post(desk, "/start", back="/replays", **typed)
    shown = answer.headers["location"]
    assert shown == "/replays"
    cookie = answer.headers["set-cookie"].partition(";")[0]
    notice = desk._notices.take(cookie.partition("=")[2], "/replays")  # noqa: SLF001
    assert notice is not None
    assert notice.said.is_refusal
    assert ": until:" in notice.said.sentence
    assert "--" not in notice.said.sentence
    assert desk.jobs.newest() == []


@mock_aws
@pytest.mark.parametrize(
    ("verb", "argument", "preview"),
    [
        (
            "redrive",
            "PaymentDlq",
            {"queue": "PaymentDlq", "target": "payment", "letters": [letter(goes=False)]},
        ),
        ("release", "payment#1", {"key": "payment#1"}),
        ("replay cancel", "us-east-1.1", {"plan": ["us-east-1.1 is COMPLETED already"]}),
    ],
)
def test_a_plan_that_changes_nothing_waits_for_nobody(
    verb: str, argument: str, preview: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """Whatever its verb, no page offers it, or counts it; a button on an older page does nothing.

    The command says that it is empty, where it keeps the plan.
    """
    monkeypatch.setattr(plans, "PLANS", tmp_path / "plans")
    starts = prints(preview)

    def planned(typed: list[str], stack: StackRef) -> Popen[str]:
        with plans.typed(typed):
            plans.save({}, [stack], is_empty=True)
        return starts()

    monkeypatch.setattr("ops.desk.jobs._process", planned)
    desk = desk_of(empty_stack())
    job = desk.jobs.get(desk.jobs.start(verb, {"": argument}))
    assert job is not None
    job.reader.join()
    with plans.typed(["redrive", "RideHistoryDlq"]):
        name = plans.save({}, [desk.feed.stack], is_empty=True)
    for page in ("/jobs", f"/job/{job.id}"):
        text = get(desk, page).text
        assert State.NOTHING in text
        assert State.WAITS not in text
        assert 'action="/confirm"' not in text
        assert "--yes" not in text
        assert str(name) not in text
    assert desk.jobs.waiting() == 0
    with pytest.raises(OperatorError):
        desk.jobs.confirm(job.id)


@mock_aws
def test_a_plan_that_was_refused_is_not_offered(tmp_path: Any, monkeypatch: Any) -> None:
    """What it has shown has changed since."""
    monkeypatch.setattr(plans, "PLANS", tmp_path / "plans")
    desk = desk_of(empty_stack())
    words = ["release", "payment#1"]
    with plans.typed(words):
        name = plans.save({"record": 1}, [desk.feed.stack])
    assert str(name) in get(desk, "/jobs").text
    with plans.typed([*words, "--yes"]), pytest.raises(OperatorError):
        plans.take({"record": 2}, [desk.feed.stack])
    assert str(name) not in get(desk, "/jobs").text
