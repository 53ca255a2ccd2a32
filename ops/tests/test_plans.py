"""What is done is what was shown, or nothing."""

import json
import os
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import time_machine
from botocore.exceptions import EndpointConnectionError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carride_idempotency.operators.plans import PlanFolder, SavedPlan, differences
from carride_idempotency.record import COMPLETED, FAILED
from ops import plans
from ops.cli.app import main
from ops.cli.show import plain
from ops.dead_letters import received_from
from ops.redrive import StackSite, plan_of
from ops.stack import ClientFactory, Kept, StackRef
from ops.tests.test_redrive import DLQ, History, given_up, put, ref
from ops.tests.world import HOME, NOW, World
from ops.verbs import VERBS, Moment, Plan, Session, Verb

__all__ = ["ref"]

AT_HOME: Final = ("--region", HOME, "--stack", "carride")

documents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "x", "y"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def as_json(data: object) -> str:
    return json.dumps(data, sort_keys=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that keeps plans."""
    monkeypatch.setattr(plans, "PLANS", tmp_path / "plans")
    return tmp_path / "plans"


class Changing:
    """A verb that shows what it would do to a state, and notes what it has done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state: Any = None
        self.done: list[Any] = []

        def change(session: Session, *words: str, token: str = "") -> Plan[Any, Any]:
            planned = self.state
            return Plan(
                {"state": planned},
                lambda: self.done.append(planned),
                (session.stack,),
                is_empty=planned == "nothing",
            )

        monkeypatch.setitem(VERBS, "change", Verb("change", change, acts=True))

    def run(self, *arguments: str, clients: ClientFactory | None = None) -> int:
        """Run a command, and return its status."""
        try:
            main(arguments, clients or World().client)
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0


@pytest.fixture
def changing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Changing:
    return Changing(monkeypatch)


@pytest.mark.proof
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(documents, documents)
def test_what_is_done_was_shown_or_nothing_is(changing: Changing, before: Any, after: Any) -> None:
    """Whatever has changed since the preview, nothing else is done, and the error says what."""
    changing.done.clear()
    changing.state = before
    assert changing.run("change", *AT_HOME) == 0
    changing.state = after
    status = changing.run("change", *AT_HOME, "--yes")
    if status == 0:
        assert as_json(changing.done) == as_json([before])
    else:
        assert (status, changing.done) == (2, [])
        assert as_json(before) != as_json(after)


@given(documents, documents)
def test_every_difference_is_told(before: Any, after: Any) -> None:
    """Documents that differ have a difference in words; equal ones have none."""
    assert bool(list(differences(before, after))) == (as_json(before) != as_json(after))


def test_a_difference_names_what_has_changed() -> None:
    """Entries of a list are known by their ids, wherever they stand."""
    before = {"letters": [{"id": "a", "goes": True}, {"id": "b", "goes": True}], "to": "x"}
    after = {"letters": [{"id": "c", "goes": True}, {"id": "a", "goes": False}], "to": "x"}
    assert list(differences(before, after)) == [
        "letters a goes: true is now false",
        "letters b is gone",
        "letters c is new",
    ]


letters = st.dictionaries(
    st.sampled_from(["m-1", "m-2", "m-3", "m-4"]),
    st.fixed_dictionaries(
        {
            "verdict": st.fixed_dictionaries({"goes": st.booleans()}),
            "record": st.sampled_from(["none", "FAILED, attempt 1, owner a"]),
            "event": st.sampled_from(["a", "b"]),
        }
    ),
)


def of_letters(chosen: dict[str, Any]) -> Any:
    """Return the plan of a redrive as it is bound."""
    return {"letters": [{"id": name} | each for name, each in chosen.items()]}


@given(letters, letters)
def test_each_letter_that_has_changed_is_named_and_no_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Whichever stand before and behind it."""
    told = " ".join(differences(of_letters(before), of_letters(after))).split()
    ids = before.keys() | after.keys()
    assert ids & {*told} == {name for name in ids if before.get(name) != after.get(name)}


def test_a_plan_is_carried_out_once(changing: Changing) -> None:
    """Two commands that carry out one plan do it once. The same words plan anew afterwards."""
    assert changing.run("change", "--plan", "0123abcd", *AT_HOME) == 0
    assert changing.run("change", "--plan", "0123abcd", *AT_HOME, "--yes") == 0
    assert changing.run("change", "--plan", "0123abcd", *AT_HOME, "--yes") == 2
    assert len(changing.done) == 1
    assert changing.run("change", *AT_HOME, "--yes") == 0
    assert len(changing.done) == 2


@pytest.mark.parametrize("was_shown", [True, False])
def test_a_plan_that_was_shown_is_not_shown_again(
    changing: Changing, capsys: pytest.CaptureFixture[str], *, was_shown: bool
) -> None:
    """What nobody has seen is shown before it is done."""
    changing.state = "from one to two"
    if was_shown:
        changing.run("change", *AT_HOME)
    capsys.readouterr()
    assert changing.run("change", *AT_HOME, "--yes") == 0
    assert (changing.state in capsys.readouterr().out) is not was_shown
    assert changing.done == [changing.state]


def test_a_plan_belongs_to_its_words_and_its_stack(changing: Changing, folder: Path) -> None:
    """Another command cannot carry it out, and it never reaches another stack."""
    assert changing.run("change", "a", "--plan=0123abcd", *AT_HOME) == 0
    assert changing.run("change", "b", "--plan=0123abcd", *AT_HOME, "--yes") == 2
    keeper = PlanFolder(folder, "./carride")
    (plan,) = keeper.saved()
    keeper.save(plan._replace(places=("carride in another region",)))
    assert changing.run("change", "a", *AT_HOME, "--yes") == 2
    assert changing.done == []


def nobodys(service: str, region: str) -> Any:
    """Return a client where STS does not answer."""
    if service == "sts":
        raise EndpointConnectionError(endpoint_url="https://sts.amazonaws.com")
    return World().client(service, region)


def test_a_plan_is_bound_to_the_account_that_it_was_shown_for(changing: Changing) -> None:
    """A stack of the same name and region in another account, or an unknown one, is left alone."""
    elsewhere = World()
    elsewhere.account = "210987654321"
    assert changing.run("change", *AT_HOME) == 0
    assert changing.run("change", *AT_HOME, "--yes", clients=elsewhere.client) == 2
    assert changing.run("change", *AT_HOME, "--yes", clients=nobodys) == 2
    assert changing.done == []
    assert changing.run("change", *AT_HOME, "--yes") == 0
    assert len(changing.done) == 1


def test_a_plan_of_an_unknown_account_is_not_carried_out(changing: Changing) -> None:
    """It could be anybody's: only a preview that names the account can be carried out."""
    assert changing.run("change", *AT_HOME, clients=nobodys) == 0
    assert changing.run("change", *AT_HOME, "--yes", clients=nobodys) == 2
    assert changing.run("change", *AT_HOME, "--yes") == 2
    assert changing.done == []
    assert changing.run("change", *AT_HOME) == 0
    assert changing.run("change", *AT_HOME, "--yes") == 0
    assert len(changing.done) == 1


def test_an_account_that_nobody_tells_says_nothing_of_a_plan(
    changing: Changing, folder: Path
) -> None:
    """It is not marked as refused: what it has shown may be as it was."""
    assert changing.run("change", *AT_HOME) == 0
    (file,) = folder.glob("*.json")
    assert changing.run("change", *AT_HOME, "--yes", clients=nobodys) == 2
    assert plans.refused_at(file.stem) is None
    assert [each.id for each in plans.saved() if plans.waits(each)] == [file.stem]


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "AWS"])
@pytest.mark.parametrize("is_shown_with", [True, False], ids=["shown with", "shown without"])
def test_a_named_plan_is_carried_out_with_and_without_the_stack_s_options(
    changing: Changing, monkeypatch: pytest.MonkeyPatch, *, is_shown_with: bool, is_local: bool
) -> None:
    """It may have been shown by a command that names stack and endpoint, or by one that does not.

    With the options of another region the plan is refused.
    """
    local = Kept("carride", HOME, "http://127.0.0.1:1", "", "", 0)
    monkeypatch.setattr("ops.finding.kept", lambda: local if is_local else None)
    monkeypatch.setattr("ops.finding.local_clients", lambda _: World().client)
    monkeypatch.setattr("ops.finding.aws_clients", lambda: World().client)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, HOME)

    def run(*more: str, with_options: bool) -> int:
        with monkeypatch.context() as patch:
            if with_options and is_local:
                patch.setenv("AWS_ENDPOINT_URL", local.endpoint)
            options = AT_HOME if with_options else ()
            try:
                main(["change", "a", "--plan=0123abcd", *options, *more])
            except SystemExit as ended:
                return int(ended.code or 0)
        return 0

    assert run(with_options=is_shown_with) == 0
    assert changing.run("change", "a", "--plan=0123abcd", "--region=eu-west-1", "--yes") == 2
    assert changing.done == []
    assert run("--yes", with_options=not is_shown_with) == 0
    assert len(changing.done) == 1


def test_a_plan_expires(changing: Changing, folder: Path) -> None:
    """After an hour it is refused, until the same words show a new one; so it is without its id."""
    old = SavedPlan("0123abcd", datetime.now(UTC) - timedelta(minutes=61), ("change", *AT_HOME))
    assert PlanFolder(folder, "./carride").save(old) == "0123abcd"
    assert changing.run("change", *AT_HOME, "--plan=0123abcd", "--yes") == 2
    assert changing.run("change", *AT_HOME, "--yes") == 2
    assert (changing.done, plans.saved()) == ([], [])
    assert changing.run("change", *AT_HOME) == 0
    assert changing.run("change", *AT_HOME, "--yes") == 0
    assert list(folder.iterdir()) == [], "what was shown anew refuses nothing any more"
    assert changing.run("change", *AT_HOME, "--yes") == 0


def test_a_plan_of_yesterday_is_forgotten(changing: Changing, folder: Path) -> None:
    """Its file is deleted, and the same words plan anew."""
    assert changing.run("change", "--plan=0123abcd", *AT_HOME) == 0
    (file,) = folder.iterdir()
    yesterday = (datetime.now(UTC) - timedelta(hours=25)).timestamp()
    os.utime(file, (yesterday, yesterday))
    assert plans.saved() == []
    assert list(folder.iterdir()) == []


def test_a_plan_that_somebody_edited_is_not_carried_out(changing: Changing, folder: Path) -> None:
    """Nobody can tell what was shown, so nothing is done, with its id or without."""
    assert changing.run("change", "--plan=0123abcd", *AT_HOME) == 0
    (file,) = folder.iterdir()
    file.write_text(file.read_text().replace("null", "1"))
    changing.state = 1
    assert changing.run("change", "--plan=0123abcd", *AT_HOME, "--yes") == 2
    assert changing.run("change", *AT_HOME, "--yes") == 2
    assert changing.done == []


@pytest.mark.parametrize("name", ["", "../../etc", "0123ABCD", "0123abcde"])
def test_the_id_of_a_plan_is_no_path(changing: Changing, name: str) -> None:
    """Anything but eight digits is refused."""
    assert changing.run("change", *AT_HOME, f"--plan={name}") == 2


def test_no_token_is_written_down(changing: Changing, folder: Path) -> None:
    """A plan has a token's fingerprint: another token is another command."""
    for token in (["--token=secret"], ["--token", "secret"]):
        assert changing.run("change", *AT_HOME, *token) == 0
    assert list(folder.iterdir())
    assert all(b"secret" not in file.read_bytes() for file in folder.iterdir())


def test_times_are_those_of_the_preview(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changing: Changing
) -> None:
    """A span before now means the now of the preview, however late the plan is carried out."""
    seen = list[datetime]()

    def window(session: Session, *, since: Moment) -> Plan[Any, Any]:
        seen.append(since)
        return Plan({"since": since}, lambda: None, (session.stack,))

    monkeypatch.setitem(VERBS, "window", Verb("window", window, acts=True))
    with time_machine.travel(NOW, tick=False) as clock:
        for more in ((), ("--yes",), ("--yes",)):
            assert changing.run("window", "--since=2h", *AT_HOME, *more) == 0
            clock.shift(timedelta(minutes=1))
    shown = NOW - timedelta(hours=2)
    assert seen == [shown, shown, shown + timedelta(minutes=2)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda ref: None, []),
        (lambda ref: put(ref, DLQ, given_up("order_03")), ["letters ID is new"]),
        (
            lambda ref: ref.client("sqs").purge_queue(QueueUrl=ref.outputs[f"{DLQ}Url"]),
            ["letters ID is gone"],
        ),
        (lambda ref: history(ref).record(FAILED, fact_of_letter(ref)), ["letters ID record: …"]),
        (
            lambda ref: history(ref).record(COMPLETED, fact_of_letter(ref)),
            ["letters ID verdict why: …", "letters ID record: …"],
        ),
    ],
    ids=["nothing", "a letter more", "no letter", "it failed once more", "it took effect"],
)
def test_a_redrive_is_bound_to_its_letters_and_records(
    ref: StackRef, change: Callable[[StackRef], object], told: list[str]
) -> None:
    """A letter that came or went, or whose record has changed, is a difference."""
    put(ref, DLQ, given_up("order_01"))
    before = plain(plan_of(StackSite(ref, DLQ)).exact())
    change(ref)
    found = list(differences(before, plain(plan_of(StackSite(ref, DLQ)).exact())))
    assert [
        re.sub(r"letters \S+", "letters ID", re.sub(":.*", ": …", each)) for each in found
    ] == told


def history(ref: StackRef) -> History:
    function = ref.client("lambda")
    assert isinstance(function, History)
    return function


def fact_of_letter(ref: StackRef) -> str:
    """Return the idempotency id of the only letter."""
    (found,) = received_from(ref, DLQ)
    assert found.letter.fact is not None
    return found.letter.fact


def listed(changing: Changing, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the states of the plans that are listed, by their ids."""
    capsys.readouterr()
    assert changing.run("plans", "--json") == 0
    return {each["id"]: each["state"] for each in json.loads(capsys.readouterr().out)}


def test_a_plan_that_changes_nothing_waits_for_nobody_and_still_binds(
    changing: Changing, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not listed, and `--yes` does not do what there is to do since."""
    changing.state = "nothing"
    assert changing.run("change", "--plan=0123abcd", *AT_HOME) == 0
    assert listed(changing, capsys) == {}
    changing.state = "something"
    assert changing.run("change", *AT_HOME, "--yes") == 2
    assert changing.done == []
    assert listed(changing, capsys) == {}


def test_a_refused_plan_is_told_from_one_that_waits(
    changing: Changing, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is marked until it is carried out, as it was shown, or shown anew."""
    changing.state = "before"
    assert changing.run("change", "a", "--plan=0123abcd", *AT_HOME) == 0
    assert changing.run("change", "b", "--plan=89abcdef", *AT_HOME) == 0
    waits = listed(changing, capsys)
    assert waits["0123abcd"] == waits["89abcdef"]
    changing.state = "after"
    assert changing.run("change", "a", *AT_HOME, "--yes") == 2
    refused = listed(changing, capsys)
    assert refused["89abcdef"] == waits["89abcdef"]
    assert refused["0123abcd"] != waits["0123abcd"]
    assert changing.run("change", "a", "--plan=0123abcd", *AT_HOME) == 0
    assert listed(changing, capsys) == waits
    assert changing.run("change", "a", *AT_HOME, "--yes") == 0
    assert listed(changing, capsys).keys() == {"89abcdef"}


def test_a_plan_is_shown_as_its_verb_has_shown_it(
    changing: Changing, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what carries it out; no line is filled up with blanks."""
    changing.state = "x" * 50
    assert changing.run("change", "a word", "--plan=0123abcd", *AT_HOME) == 0
    preview = capsys.readouterr().out.splitlines()[1]
    assert changing.run("plans", "0123abcd") == 0
    lines = capsys.readouterr().out.splitlines()
    assert preview in lines
    command = shlex.join(["./carride", "change", "a word", *AT_HOME])
    assert any(line.endswith(f"{command} --plan=0123abcd --yes") for line in lines)
    assert [line for line in lines if line != line.rstrip()] == []
