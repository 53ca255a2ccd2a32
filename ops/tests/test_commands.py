"""The operator's commands: what they show, and how they refuse."""

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final
from unittest.mock import Mock

import pytest
from moto import mock_aws

from ops.audit.evidence import CONSUMERS
from ops.cli import regions
from ops.cli.app import command_line, main
from ops.cli.line import TOPICS
from ops.cli.show import console, show
from ops.dead_letters import name_of, queues_of
from ops.failover import Patience
from ops.replay import ReplayState
from ops.stack import OperatorError, StackRef
from ops.tests.world import AWAY, HOME, NOW, World, empty_stack
from ops.verbs import VERBS, Plan, Session, Verb

ROOT: Final = Path(__file__).parents[2]
MOST_VERBS: Final = 20
UNSHOWN: Final = {
    "desk",
    "drive accept",
    "drive cancel",
    "drive complete",
    "drive start",
    "replay cancel",
    "settle",
}
"""Verbs without an example: they serve, or need a booked ride or a running replay."""
AT_HOME = ("--region", HOME, "--stack", "carride")
RUNNING = {HOME: [], AWAY: [{"ReplayName": "new", "State": "RUNNING"}]}


def run(*arguments: str, **changes: Any) -> int:
    """Run a command on the stacks of a world, and return its status."""
    world = World()
    vars(world).update(changes)
    try:
        main(arguments, world.client)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["replay", "run", "--since", "yesterday"], "'yesterday' is not a time: write 6h, or"),
        (
            ["replay", "run", "--since", "2026-11-21T10:00:00"],
            "has no time zone: write 2026-11-21T10:00:00Z",
        ),
        (["replay", "run", "--since", "1h", "--until", "2h"], "--since has to be before --until"),
        (["replay", "run"], "--since"),
        (
            ["failover", "run", "--runs-end-in", "soon"],
            "'soon' is not a span of time: write 90s, 10m, 6h or 2d",
        ),
        (["release", "dispatch"], "'dispatch' is not a key: begin it with"),
        (["keys", "--status", "gone"], "there is no status GONE: give one of COMPLETED"),
        (
            ["tail", "--type", "Nothing", *AT_HOME],
            "there is no type of event Nothing: give one of CarAssigned",
        ),
        (
            ["tail", "--outcome", "Nothing", *AT_HOME],
            "there is no outcome Nothing: give one of Busy",
        ),
        (["failover", "deploy", "--set", "Stage"], "'Stage' sets no parameter: write NAME=VALUE"),
        (["audit", "--payments", __file__, *AT_HOME], "is not a ledger of the gateway"),
        (
            ["redrive", "Nowhere", *AT_HOME],
            "the stack has no dead-letter queue of Nowhere: write one of ride-history",
        ),
        (["replay", "run", "--since", "1h", "--yse"], "Unknown option"),
        (
            ["keys", "--consumer", "paymnt"],
            "there is no consumer paymnt: give one of ",
        ),
        (["keys", "payment#1", "--corrupt"], "--corrupt reads the whole tables for damaged"),
        (["keys", "--ride", "order_01", "--corrupt"], "give no KEY, --ride or --status"),
        (["keys", "--status", "FAILED", "--corrupt"], "give no KEY, --ride or --status"),
        (["keys", "--limit", "-3"], "-3 is out of range: write a number from 1 to 1,000,"),
        (
            ["redrive", "PaymentDlq", "--limit", "0"],
            "0 is out of range: write a number from 1 to 1,000,",
        ),
        (["desk", "--port", "99999"], "99999 is out of range: write a number from 0 to 65,535"),
        (["drive", "fleet", "--cars", "-5"], "-5 is out of range: write a number from 1 to 1,000,"),
        (
            ["drive", "simulate", "--rides", "-5"],
            "-5 is out of range: write a number from 1 to 1,000,",
        ),
        (
            ["drive", "simulate", "--duplicates", "2"],
            "2.0 is out of range: write a number from 0 to 1",
        ),
        (["verify", "--rides", "-5"], "-5 is out of range: write a number from 0 to 1,000,"),
        (["drive", "book", "--price", "0"], "0 is out of range: write a number from 1 to 1,000,"),
        (["replay", "cancel", *AT_HOME], "no replay runs in us-west-2: there is nothing to cancel"),
        (["nothing"], "there is no command nothing: `./carride --help` lists them"),
        (["replay", "ru"], "there is no command replay ru: did you mean run?"),
        (["redrive"], "NAME is missing: "),
        (["replay", "plan"], "--since is missing: write it like `./carride replay plan --since "),
        (["audit", "--grace", "-5m"], "--grace has no value: write --grace=VALUE"),
        (["letters", "PaymentDlq", "DispatchDlq"], "takes no further word, such as 'DispatchDlq'"),
    ],
)
def test_a_mistake_is_explained(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what to write instead, and the status is 2."""
    assert run(*arguments) == 2
    assert problem in capsys.readouterr().err


@mock_aws
@pytest.mark.parametrize("letters", [{}, {"PaymentDlq": 3}, {"DispatchDlq": 1, "PaymentDlq": 2}])
def test_a_missing_queue_is_answered_with_those_that_there_are(
    letters: dict[str, int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with its number of letters, and the command for the fullest; else their names."""
    ref = empty_stack()
    for queue, count in letters.items():
        for _ in range(count):
            ref.client("sqs").send_message(QueueUrl=ref.outputs[f"{queue}Url"], MessageBody="{}")
    asked = []

    def find(**options: Any) -> StackRef:
        asked.append((options["stack"], options["region"]))
        return ref

    monkeypatch.setattr("ops.cli.mistakes.find", find)
    assert run("redrive", "--stack=carride", "--region", "us-east-1") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert asked == [("carride", "us-east-1")]
    for queue in queues_of(ref):
        count = letters.get(queue, 0)
        name = name_of(queue)
        assert name in said
        assert (f"{name} has {count} letter" in said) or not count
    assert ("`./carride redrive payment`" in said) is bool(letters)

    def nowhere(**_options: Any) -> StackRef:
        raise OperatorError("there is no stack")

    monkeypatch.setattr("ops.cli.mistakes.find", nowhere)
    assert run("redrive") == 2
    assert ", ".join([*(each.name for each in CONSUMERS), "bus"]) in capsys.readouterr().err


def test_the_help_lists_each_command_below_one_heading() -> None:
    """A new verb needs a heading in the table."""
    listed = " ".join(TOPICS.values()).split()
    commands = {name.split()[0] for name in VERBS}
    assert sorted(listed) == sorted({*commands, "--install-completion", "--help"})


def test_a_reader_that_has_gone_is_no_error() -> None:
    """As in `./carride letters --json | head`: no traceback, and the status of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "ops", "plans", "--json"], stdout=writer, stderr=PIPE, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


NUMBERS: Final = {
    "int": ("-1", "-99999999999999999999", "9" * 25, "x", "nan", "inf", ""),
    "float": ("-1", "-0.001", "1" + "0" * 400, "x", "nan", "inf", "-inf", ""),
    "Span": ("-5s", "5", "s", "1.5h", "9" * 30 + "d", "4000d", "nan", "", "5 m", "٣d"),
    "Moment": ("-5s", "5", "9" * 30 + "d", "4000d", "nan", "", "0001-01-01T00:00:00+23:59",
               "9999-12-31T23:59:59-23:59", "٣d", "2026-13-01T00:00:00Z"),
}  # fmt: skip
"""Values that an option of a type cannot have."""


def options_with_numbers() -> Iterator[tuple[str, str, str]]:
    """Yield each verb's options that take a number, a span or a time, with values to refuse."""
    for verb in VERBS.values():
        for name, option in inspect.signature(verb.function).parameters.items():
            kind = re.search(r"\b(Span|Moment|int|float)\b", str(option.annotation))
            if kind is None or "parse=False" in str(option.annotation):
                continue
            for value in NUMBERS[kind[1]]:
                yield verb.name, f"--{name.replace('_', '-')}", value


@pytest.mark.parametrize(("verb", "option", "value"), [*options_with_numbers()])
def test_a_wrong_number_is_refused_in_words(
    verb: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option of every verb: before a stack is asked, with the option's name, and status 2."""
    needed = [
        name if each.kind is each.POSITIONAL_ONLY else f"--{name}=1h"
        for name, each in inspect.signature(VERBS[verb].function).parameters.items()
        if each.default is each.empty and name not in ("session", "stack", option[2:])
    ]
    assert run(*verb.split(), *needed, f"{option}={value}", *AT_HOME) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: Invalid value")
    assert option in said


STANDALONE = dict.fromkeys((HOME, AWAY), "standalone")


@pytest.mark.parametrize(
    "command", [("failover", "run"), ("failover", "drill", "--since", "1h"), ("failover", "back")]
)
@pytest.mark.parametrize("where", [(), AT_HOME], ids=["samconfig.toml", "options"])
def test_two_regions_are_asked_of_a_stack_in_one(
    command: tuple[str, ...], where: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A failover of a standalone stack is refused before --yes."""
    assert run(*command, *where, roles=STANDALONE) == 2
    assert "needs two regions" in capsys.readouterr().err


def test_a_drill_goes_back_with_the_patience_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparing the tables takes as long on the way back."""
    session = Mock(pair=(Mock(), Mock()))
    failover = Mock()
    patience = Patience(catches_up_in=timedelta(hours=2))
    failover.plan.return_value = []
    monkeypatch.setattr(regions, "Failover", lambda *_: failover)
    monkeypatch.setattr(regions, "audit", Mock())
    regions.failover_drill(session, since=NOW, patience=patience).do()
    failover.undo.assert_called_once_with(patience.catches_up_in)


def test_the_state_of_both_regions_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Also when one of them cannot be asked; with --json, standard output has only JSON."""
    assert run("failover", "status", "--json", unreachable={HOME}, replays=RUNNING) == 1
    primary, secondary = json.loads(capsys.readouterr().out)["regions"]
    assert "Could not connect" in primary["problem"]
    assert (secondary["fenced_since"], secondary["replays"]) == (None, ["new"])


@pytest.mark.parametrize(("fenced", "status"), [(set(), 0), ({HOME}, 1), ({AWAY}, 1)])
def test_a_script_is_told_of_a_fence(fenced: set[str], status: int) -> None:
    """`failover status` fails while a region is fenced."""
    assert run("failover", "status", fenced=fenced) == status


@pytest.mark.parametrize(
    ("name", "example"), [(each.name, text) for each in VERBS.values() for text in each.examples]
)
def test_every_example_of_the_help_is_understood(name: str, example: str) -> None:
    """The command line reads it, and every acting verb has one."""
    words = [*name.split(), *shlex.split(example)]
    assert callable(command_line().parse_args(words, exit_on_error=False, print_error=False)[0])


def test_nothing_is_deployed_to_a_fenced_region(capsys: pytest.CaptureFixture[str]) -> None:
    """The command asks before it shows its steps; without a fence it shows them."""
    deploy = ("failover", "deploy")
    assert [run(*deploy), run(*deploy, fenced={HOME})] == [0, 2]
    assert "us-west-2 is fenced since 2026-11-21 12:00:00 UTC" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"unreachable": {HOME}},
            'AWS could not be reached: Could not connect to the endpoint URL: "https://',
        ),
        ({"replays": RUNNING}, "error: us-east-1 has a replay running (new)"),
    ],
    ids=["out of reach", "refused"],
)
def test_a_replay_that_cannot_be_done_is_not_offered(
    changes: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before --yes, without a stack trace."""
    assert run("replay", "run", "--since", "2h", *AT_HOME, **changes) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"running": 0}, "nothing is in flight as far as AWS can tell"),
        ({"running": 1_203}, "1,203 deliveries in flight"),
        ({"running": 1, "waiting": 1}, "1 message in queues of consumers, 1 delivery in flight"),
        ({"logged": NOW}, "consumers logged deliveries until 12:00:00 UTC"),
        ({}, "nothing is in flight as far as AWS can tell"),
        ({"state": "RUNNING"}, "no delivery has been logged lately"),
    ],
)
def test_the_state_of_a_replay_says_what_is_still_delivered(changes: Any, says: str) -> None:
    """EventBridge has handed over all events long before consumers have processed them."""
    ended = ReplayState("one", "COMPLETED", NOW, NOW, NOW, None, 0, "")
    console(printed := StringIO()).print(show(ended._replace(**changes)))
    assert printed.getvalue().strip().endswith(f"; {says}")


def test_the_only_replay_is_cancelled_without_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Of several, one has to be named."""
    two = {HOME: [{"ReplayName": name, "State": "RUNNING"} for name in ("new", "old")]}
    assert run("replay", "cancel", *AT_HOME, replays=RUNNING | {HOME: RUNNING[AWAY]}) == 0
    assert "cancel new, which has replayed events" in capsys.readouterr().out
    assert run("replay", "cancel", *AT_HOME, replays=RUNNING | two) == 2
    assert "2 replays run: give the name of one: new, old" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seen", "status"), [([0, 0], 130), ([0, 1], 1), ([1, 0], 130), ([], 130)], ids=str
)
def test_what_watches_ends_with_its_last_result_or_as_interrupted(
    seen: list[int], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that stops `audit --watch` learns whether something is wrong."""

    def watch(session: Session) -> Iterator[int]:
        yield from seen
        raise KeyboardInterrupt

    monkeypatch.setitem(VERBS, "watch", Verb("watch", watch, status=lambda found: found))
    assert run("watch", *AT_HOME) == status


@pytest.mark.parametrize(
    ("error", "status", "written"),
    [
        (None, 0, {"result": {"changed": 1}}),
        (OperatorError("it is too late"), 2, {"error": "it is too late"}),
        (KeyboardInterrupt(), 130, {"error": "KeyboardInterrupt"}),
    ],
    ids=["done", "refused", "interrupted"],
)
@mock_aws
def test_each_change_leaves_a_line(
    error: BaseException | None,
    status: int,
    written: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says who did what to which stack, and what came of it; a dry run leaves none."""

    def do() -> Any:
        if error is not None:
            raise error
        return {"changed": 1}

    def change(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["ops", "change", *words])
        return run("change", *AT_HOME, *words)

    changes = tmp_path / ".carride" / "changes.jsonl"
    monkeypatch.setattr("ops.change_log.CHANGES", changes)

    def verb(session: Session, what: str, /) -> Plan[Any, Any]:
        return Plan({"what": what}, do, (session.stack,))

    monkeypatch.setitem(VERBS, "change", Verb("change", verb, acts=True))
    assert change("it") == 0
    assert not changes.exists()
    assert [change("it's", "--yes"), change("that", "--yes")] == [status, status]
    lines = [json.loads(line) for line in changes.read_text().splitlines()]
    assert all(line.pop("time") and line.pop("who").startswith("arn:aws:") for line in lines)
    rest = {"stack": "carride", "region": HOME, "plan": None, **written}
    assert lines == [
        {**rest, "command": f"carride change {word} --yes", "exact": {"what": what}}
        for word, what in (("'it'\"'\"'s'", "it's"), ("that", "that"))
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_while_it_starts_shows_no_stack_trace(
    number: signal.Signals,
) -> None:
    """Importing takes a second: whoever presses Ctrl-C then gets a line, and status 130."""
    starts = (
        "import os, runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'ops.cli.app': os.kill(os.getpid(), NUMBER)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('ops', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", starts.replace("NUMBER", str(int(number)))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted; run it again to continue\n"


def test_an_error_without_aws_names_the_local_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a region, or if nothing answers, a reader learns what runs without an account."""
    wanted = "`make demo ARGS=--keep` runs a local stack, which needs no account"
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    assert run("audit") == 2
    assert f"no region is configured: give --region, {wanted}" in re.sub(
        r"or set .*?; ", "", capsys.readouterr().err
    )
    assert run("audit", *AT_HOME, unreachable={HOME}) == 2
    assert wanted in capsys.readouterr().err


def test_at_most_twenty_verbs_stand_at_the_top() -> None:
    """Parts of one verb share its name."""
    assert len({name.partition(" ")[0] for name in VERBS}) <= MOST_VERBS


def test_every_verb_has_an_example() -> None:
    """A new verb needs one in ops/docs/operations.md."""
    page = (ROOT / "ops" / "docs" / "operations.md").read_text(encoding="utf-8")
    shown = [f"{command} " for command in re.findall(r"^\$ \./carride (.*)$", page, re.MULTILINE)]
    without = {name for name in VERBS if not any(each.startswith(f"{name} ") for each in shown)}
    assert without == UNSHOWN
