"""The demo as a newcomer runs it: real `sam build`, real `sam deploy`, a process of its own."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.demo import LEDGER
from local.local_aws import ROOT
from ops.stack import Kept

pytestmark = pytest.mark.integration

DEMO = [str(ROOT / ".venv-dev" / "bin" / "python"), "-m", "local.demo"]
SECONDS = 600


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose temporary folder is this test's own, so that leftovers show."""
    return os.environ | {"TMPDIR": str(tmp_path), "CARRIDE_KEPT": str(tmp_path / "stack.json")}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """However the demo ends, it ends the engine, then removes the engine's folder."""
    yield
    assert list(tmp_path.glob("engine-*")) == []


@pytest.mark.thorough
def test_a_run_balances_and_writes_its_ledger(environment: dict[str, str]) -> None:
    """Duplicates, disorder, broken events and crashes end with nothing lost or doubled."""
    command = [
        *DEMO,
        "--rides",
        "20",
        "--bookings",
        "4",
        "--seed",
        "5",
        "--malformed",
        "6",
        "--crashes",
        "1",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ledger = json.loads(LEDGER.read_text(encoding="utf-8"))
    assert (ledger["lost"], ledger["doubled"]) == ([], [])
    assert ledger["duplicates_absorbed"] > 0
    assert ledger["dead_lettered"]["RideHistoryDlq"]["CONTRACT"] == 4


@pytest.mark.thorough
def test_a_kept_demo_is_found_until_it_is_interrupted(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """While it runs, `make invoke` meets its tables and sam its stack.

    Ctrl-C ends all of it, and is not a failure.
    """
    faults = [
        option
        for fault in ("malformed", "late", "crashes", "fails", "poison")
        for option in (f"--{fault}", "0")
    ]
    command = [*DEMO, "--rides", "3", "--bookings", "1", *faults, "--keep", "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break

        def run(*command: str) -> str:
            exports = dict(pair.split("=", 1) for pair in re.findall(r"AWS_\w+=\S+", said))
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment | exports,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            return done.stdout

        local = Kept(**json.loads((tmp_path / "stack.json").read_text()))
        invoked = [
            json.loads(
                run(
                    "make",
                    "invoke",
                    "FUNCTION=RideHistoryFunction",
                    "EVENT=events/ride_history_live.json",
                )
            )
            for _ in range(2)
        ]
        outputs = run(
            ".venv-sam/bin/sam",
            "list",
            "stack-outputs",
            "--stack-name",
            "carride",
            "--output",
            "json",
        )
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=SECONDS)
    assert [answer["outcome"] for answer in invoked] == ["New", "Duplicate"], said
    assert "BookingTableName" in outputs, said
    assert (local.pid, demo.returncode) == (demo.pid, 0), said + rest
    assert not (tmp_path / "stack.json").exists()
