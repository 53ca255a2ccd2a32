"""The simulation keeps its promises, repeats itself exactly, and notices what it is there to notice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.idempotency.simulation.__main__ import main
from tests.idempotency.simulation.plan import WORLDS, draw
from tests.idempotency.simulation.run import run


@pytest.mark.parametrize("world", WORLDS)
def test_promises_hold_under_any_faults(world: str) -> None:
    """Nothing is lost or takes effect twice, no healthy message is given up, and dead letters give the true reason."""
    for seed in range(100):
        report = run(draw(seed, world))
        assert not report.broken, f'make simulate ARGS="--seed {seed} --world {world}"'


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """The timeline of a seed depends on nothing else, not even on how a process hashes strings."""
    command = [sys.executable, "-m", "tests.idempotency.simulation", "--seed", "5", "--world", "queue", "--timeline"]
    runs = {
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
        ).stdout.partition(b" simulated hours")[0]
        for salt in ("1", "2")
    }
    assert len(runs) == 1
    assert len(runs.pop().splitlines()) > 50


def test_a_broken_promise_is_shrunk_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A fault in the layer is found, shown as a timeline, and found again from the printed plan."""
    monkeypatch.setattr("idempotency.runner.is_takeover", lambda step, me: False)
    assert main(["--stop", "--seeds", "300", "--world", "kinesis"]) == 1
    shown = capsys.readouterr().out
    assert "it is healthy and was given up, QUARANTINED" in shown
    file = tmp_path / "plan"
    file.write_text(shown.partition("\nplan: ")[2].splitlines()[0])

    assert main(["--plan", str(file)]) == 1
    shrunk = capsys.readouterr().out
    assert "it is healthy and was given up, QUARANTINED" in shrunk
    assert 1 <= shrunk.count("\n  Message(") <= shown.count("\n  Message(") // 2
