"""The commands' options, reports, words and endings, without an engine."""

import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from local import demo, invoke, story, worst
from local.local_aws import ROOT, EngineError
from ops.audit import Report, judge
from ops.audit.evidence import (
    CONSUMERS,
    NEVER,
    DeadLettered,
    Delivered,
    Effect,
    Evidence,
    Published,
    RideItem,
)
from ops.audit.problems import Broken, Need, Overdue, Problem
from ops.stack import Kept

EVIDENCE = Evidence(CONSUMERS[:1], [Published("event-1", "CarRideCreated", "a")])
ITEM = RideItem("ride-history", "order_01", (Effect("a"),), 1)
BALANCED = judge(EVIDENCE._replace(items=[ITEM]))
LOST = judge(EVIDENCE)
DOUBLED = judge(EVIDENCE._replace(items=[ITEM._replace(total=2)]))
BLIND = judge(EVIDENCE._replace(published=[], items=[ITEM]))
PROBLEM = Problem(Broken.CHARGED_AGAIN, times=2)
WAITS = Overdue((Need(NEVER, None),))
BROKEN = BALANCED._replace(saga=replace(BALANCED.saga, problems={"order_01": [PROBLEM]}))
OVERDUE = BALANCED._replace(saga=replace(BALANCED.saga, overdue={"order_01": WAITS}))


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (BALANCED, 0),
        (LOST, 1),
        (DOUBLED, 1),
        (BLIND, 1),
        (BROKEN, 1),
        (OVERDUE, 1),
        (EngineError("no port"), 2),
    ],
)
def test_the_demo_fails_when_something_does_not_add_up(
    outcome: Report | EngineError,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The status says lost, doubled, unknown, half-done or not run; one line says why."""

    def run(_options: Any) -> Report:
        if isinstance(outcome, EngineError):
            raise outcome
        return outcome

    monkeypatch.setattr(demo, "run_demo", run)
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    ended = 0
    try:
        demo.main()
    except SystemExit as exit_:
        ended = int(exit_.code or 0)
    reason = f"error: {outcome}" if isinstance(outcome, EngineError) else outcome.verdict
    assert (ended, capsys.readouterr().err) == (status, f"{reason}\n" if status else "")


@pytest.mark.enable_socket  # it takes the port that the demo asks for
def test_a_page_whose_port_is_taken_ends_the_demo_before_it_builds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits a minute for that message; without `--keep` there is no page."""
    monkeypatch.setattr(demo, "kept", lambda: None)
    monkeypatch.delattr(demo, "GatewayServer")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        with pytest.raises(EngineError, match=f"port {port} is not free .*: choose another"):
            demo.run_demo(demo.parse(["--keep", "--port", port]))
        with pytest.raises(NameError):
            demo.run_demo(demo.parse(["--port", port]))


def test_the_engine_without_a_template_says_which_one_to_give() -> None:
    """`make engine` alone is a mistake, not a traceback."""
    done = subprocess.run(
        ["/bin/sh", "-c", "make engine ENVIRONMENTS="],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "set TEMPLATE to a SAM template: make engine TEMPLATE=examples/minimal" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_stack_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started while another stack is kept; the message names its process."""
    monkeypatch.setattr(demo, "kept", lambda: Kept("carride", "us-east-1", "", "", "", 4711))
    monkeypatch.delattr(demo, "LocalAws")
    with pytest.raises(EngineError, match="4711"):
        demo.run_demo(demo.parse(["--keep"]))


COMMANDS = {
    "demo": "from local import demo; demo.run_demo = wait; demo.main()",
    "worst": "from local import demo; demo.worst.run = wait; sys.argv += ['--worst']; demo.main()",
    "invoke": "from local import invoke; invoke.choose = wait; "
    "sys.argv += ['Function', 'event.json']; invoke.main()",
}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("demo", signal.SIGINT),
        pytest.param("demo", signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param("worst", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param("invoke", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_a_command_in_the_background_ends_in_order(command: str, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with the shells' status, even if it was started deaf to SIGINT."""
    # A signal just before `signal.pause()` would leave it waiting.
    waits = (
        "import sys, time\n"
        "def wait(*_):\n"
        "    print('waiting', flush=True)\n"
        "    while True: time.sleep(0.1)\n"
    )
    background = 'trap \'\' INT; exec "$0" -c "$1"'
    with subprocess.Popen(
        ["/bin/sh", "-c", background, sys.executable, waits + COMMANDS[command]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()  # it has begun to wait
        child.send_signal(number)
        try:
            assert child.wait(timeout=300) == 130
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("rides", "1", ["0", "many", "1.5"]),
        ("late", "0", ["-1", "x"]),
        ("port", "0", ["-1", "65536"]),
        ("duplicates", "0.25", ["-0.1", "1.1", "nan", "lots"]),
        ("seeds", "3", ["0"]),
    ],
)
def test_a_bad_option_is_refused_before_anything_starts(
    option: str, good: str, bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A count is from 0, a number of rides from 1, a share from 0 to 1.

    The message names the option.
    """
    mode = ["--worst"] if option == "seeds" else []
    assert getattr(demo.parse([*mode, f"--{option}", good]), option) == float(good)
    for text in bad:
        with pytest.raises(SystemExit, match="2"):
            demo.parse([*mode, f"--{option}", text])
        assert f"argument --{option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--worst --keep", "--keep cannot be used with --worst"),
        ("--worst --no-browser", "--no-browser cannot be used with --worst"),
        ("--duplicates 0.3 --worst", "--duplicates cannot be used with --worst"),
        ("--seeds 1", "--seeds needs --worst"),
        ("--first-seed 7 --keep", "--first-seed needs --worst"),
    ],
)
def test_options_that_exclude_each_other_end_the_demo_with_one_line(
    options: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An option that would be ignored is named, even if its value is the default."""
    monkeypatch.setattr(sys, "argv", ["demo", *options.split()])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    with pytest.raises(SystemExit, match="2"):
        demo.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


@pytest.mark.parametrize("wrong", [[], ["seed 8: 1 lost", "seed 9: PaymentTable: changed"]])
def test_the_worst_mix_fails_when_a_seed_does(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each seed from the first one on is tried, and each thing that is wrong is a line."""
    asked = []

    def run(rides: int, seeds: range, _progress: Any) -> list[str]:
        asked.append((rides, list(seeds)))
        return wrong

    monkeypatch.setattr(worst, "run", run)
    monkeypatch.setattr(sys, "argv", ["demo", "--worst", "--seeds", "3", "--first-seed", "7"])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    ended = 0
    try:
        demo.main()
    except SystemExit as exit_:
        ended = int(exit_.code or 0)
    assert asked == [(200, [7, 8, 9])]
    assert (ended, capsys.readouterr().err.splitlines()) == (1 if wrong else 0, wrong)


@pytest.mark.parametrize(
    ("function", "event", "said"),
    [
        ("Nope", "", r"'Nope'.*CarRideSimulatorFunction.*RideHistoryFunction"),
        ("PaymentFunction", "", r"events/\w+\.json"),
        ("PaymentFunction", "events/nope.json", r"events/\w+\.json"),
        ("PaymentFunction", "events", r"events/\w+\.json"),
        ("PaymentFunction", "Makefile", "holds no JSON"),
    ],
)
def test_a_wrong_choice_lists_those_there_are(function: str, event: str, said: str) -> None:
    """One sentence says what can be invoked, and with which samples."""
    with pytest.raises(EngineError, match=said):
        invoke.choose(function, event)


OUTCOMES = {"Duplicate": 3, "Takeover": 2, "Retried": 1, "Failed": 4, "New": 5}
DELIVERIES = [
    Delivered("ride-history", outcome, "a")
    for outcome, number in OUTCOMES.items()
    for _ in range(number)
]
LETTERS = [
    DeadLettered("RideHistoryDlq", reason, "ride-history", "event-1", "a")
    for reason in ("CONTRACT", "Unknown")
]


def test_every_unusual_number_is_explained() -> None:
    """Each number of the ledger that faults cause is there with a reason.

    Zeros and usual numbers are not.
    """
    report = judge(EVIDENCE._replace(items=[ITEM], deliveries=DELIVERIES, dead_letters=LETTERS))
    lines = story.unusual(report)
    assert sorted(number for number, _, _ in lines) == [1, 1, 1, 2, 3, 4]
    assert all(why for _, _, why in lines)
    assert story.unusual(BALANCED) == []
    assert re.findall(r"\d+", story.injected({"copy": 309, "poison": 1, "late": 0})) == ["309", "1"]
    assert re.findall(r"\d+", story.verdict(report, {"copy": 7, "crash": 9})) == [
        "0",
        "0",
        "7",
        "2",
    ]


@pytest.mark.parametrize(
    ("report", "last"),
    [
        (LOST, "event a"),
        (DOUBLED, "ride order_01"),
        (BROKEN, "ride order_01"),
        (OVERDUE, "ride order_01"),
    ],
)
def test_what_is_wrong_is_looked_into(report: Report, last: str) -> None:
    """There is a command for each event or ride that is wrong, and none if all is well."""
    assert f"./carride {last}" in story.commands(report)
    assert story.commands(BALANCED) == []
