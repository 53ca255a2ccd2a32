"""What `make demo` and `make invoke` say and how they end, without an engine."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local import chaos, demo, invoke
from local.local_aws import ROOT, EngineError
from ops.audit import Report, judge
from ops.audit.evidence import CONSUMERS, Effect, Evidence, Published, RideItem

EVIDENCE = Evidence(CONSUMERS[:1], [Published("event-1", "CarRideCreated", "a")])
ITEM = RideItem("ride-history", "order_01", (Effect("a"),), 1)
BALANCED = judge(EVIDENCE._replace(items=[ITEM]))
LOST = judge(EVIDENCE)
DOUBLED = judge(EVIDENCE._replace(items=[ITEM._replace(total=2)]))
BLIND = judge(EVIDENCE._replace(published=[], items=[ITEM]))
BROKEN = BALANCED._replace(saga=replace(BALANCED.saga, problems={"order_01": ["has two cars"]}))
OVERDUE = BALANCED._replace(saga=replace(BALANCED.saga, overdue={"order_01": "since then"}))


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the commands as if without arguments, and leave the process's signals alone."""
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr("signal.signal", lambda number, handler: None)


def end(monkeypatch: pytest.MonkeyPatch, run: Any) -> int:
    """Return the status with which the demo ends when its run does this."""
    monkeypatch.setattr(demo, "run", run)
    try:
        demo.main()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


@pytest.mark.parametrize(
    ("report", "status"), [(BALANCED, 0), (LOST, 1), (DOUBLED, 1), (BLIND, 1), (BROKEN, 1), (OVERDUE, 1)]
)
def test_the_demo_fails_when_something_does_not_add_up(
    report: Report, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever scripts the demo learns from its status whether something is lost, doubled, unknown or half-done."""
    assert end(monkeypatch, lambda options: report) == status
    assert capsys.readouterr().err == ("" if status == 0 else f"{report.verdict}\n")


def test_what_cannot_be_run_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure of the cloud's AWS is told without a stack trace."""

    def run(options: Any) -> Any:
        raise EngineError("port 4566 of 127.0.0.1 cannot be used: choose another one.")

    assert end(monkeypatch, run) == 2
    assert capsys.readouterr().err == "error: port 4566 of 127.0.0.1 cannot be used: choose another one.\n"


COMMANDS = {
    "demo": "from local import demo; demo.run = wait; demo.main()",
    "chaos": "from local import chaos; chaos.run = wait; chaos.main()",
    "invoke": "from local import invoke; invoke.invoke = invoke.checked_function = invoke.read_event = wait;"
    "sys.argv += ['Function', 'event.json']; invoke.main()",
    "gateway": "from local import simulated_gateway; simulated_gateway.main()",
}


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *(("demo", number) for number in (signal.SIGINT, signal.SIGTERM)),
        ("chaos", signal.SIGINT),
        ("invoke", signal.SIGTERM),
        ("gateway", signal.SIGINT),
    ],
)
def test_a_command_in_the_background_ends_in_order(command: str, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with the status that shells expect, though it was started with SIGINT ignored."""
    waits = "import signal, sys\ndef wait(*_): print('waiting', flush=True); signal.pause()\n"
    background = 'trap \'\' INT; exec "$0" -c "$1"'
    with subprocess.Popen(
        ["/bin/sh", "-c", background, sys.executable, waits + COMMANDS[command]], cwd=ROOT, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()  # it has begun to wait
        child.send_signal(number)
        try:
            assert child.wait(timeout=30) == (0 if command == "gateway" else 130)
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("parse", "words"),
    [
        (demo.parse, ["--rides", "0"]),
        (demo.parse, ["--duplicates", "1.5"]),
        (chaos.parse, ["--seeds", "many"]),
        (chaos.parse, ["--gateway", "lots"]),
    ],
)
def test_a_bad_option_is_refused_before_anything_starts(
    parse: Callable[[list[str]], object], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line is checked at once, not after a deployment; the message names the option."""
    with pytest.raises(SystemExit) as left:
        parse(words)
    assert left.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_the_options_are_the_simulators_request() -> None:
    """What the command line asks for is what the simulator is asked."""
    options = demo.parse(["--rides", "7", "--duplicates", "0.5", "--seed", "3", "--malformed", "0", "--crashes", "9"])
    request = demo.specification(options)
    assert (request["rides"], request["duplicates"], request["seed"]) == (7, 0.5, 3)
    assert (request["malformed"], request["crashes"]) == (0, 9)


def test_the_ledger_is_written_as_json(tmp_path: Path) -> None:
    """Other programs read the ledger from a file."""
    path = tmp_path / ".demo" / "ledger.json"
    demo.write(BALANCED, path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["balanced"], written["saga"]["sound"]) == (True, True)


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
    with pytest.raises(invoke.UnknownChoiceError, match=said):  # noqa: PT012 - whichever of the two it is
        invoke.checked_function(function)
        invoke.read_event(event)
