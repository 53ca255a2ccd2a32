"""The faults that events ask for."""

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from carride.simulation import FAULT_EXTENSION, Fault
from local.faults import SLOW_S, Injector, SimulatedFaultError
from tests.carride.rides import event


@pytest.fixture
def harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the faults instead of injecting them, on a machine where no event ran before."""
    done: list[object] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "_exit", lambda code: done.append("exit" if code else "success"))
    monkeypatch.setattr(time, "sleep", done.append)
    return done


def run(done: list[object], fault: str | None) -> list[object]:
    """Run an event that asks for a fault in a consumer named here, and return the injected faults."""
    done.clear()
    injector, asked = Injector(), {FAULT_EXTENSION: fault} if fault else {}
    try:
        injector.inject(SimpleNamespace(name="here"), event(extensions=asked), SimpleNamespace(owner="unanswered"))
    except SimulatedFaultError:
        done.append("raise")
    return [*done, *injector.unanswered]


@pytest.mark.parametrize(
    ("fault", "first", "later"),
    [
        (Fault.CRASH, ["exit"], []),
        (Fault.FAIL, ["raise"], []),
        (Fault.POISON, ["raise"], ["raise"]),
        (Fault.SLOW, [SLOW_S], []),
        (Fault.LOSE_ANSWER, ["unanswered"], []),
        (f"{Fault.CRASH}@here", ["exit"], []),
        (f"{Fault.CRASH}@elsewhere", [], []),
        ("unheard-of", [], []),
        (None, [], []),
    ],
)
def test_a_fault_meets_the_first_run_and_poison_every_run(
    harm: list[object], monkeypatch: pytest.MonkeyPatch, fault: str | None, first: list[object], later: list[object]
) -> None:
    """Each function meets the fault once, also if its process ended meanwhile."""
    for function in ("one", "another"):
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", function)
        assert [run(harm, fault) for _ in range(3)] == [first, later, later]
