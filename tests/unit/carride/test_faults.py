import tempfile
from pathlib import Path

import pytest

from carride.faults import ATTRIBUTE, SLOW_S, Fault, Faults, SimulatedFaultError
from tests.unit.carride.rides import event

DONE = {Fault.CRASH: ["exit"], Fault.FAIL: ["raise"], Fault.POISON: ["raise"], Fault.SLOW: [SLOW_S]}
"""What each fault does to the process."""


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A laptop's folder of temporary files, in which no event was seen before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def inject(fault: str | None, attempt: int | None = 1, *, allowed: bool = True) -> list[object]:
    """Handle an event that asks for a fault, in a new process, and return what that did."""
    done: list[object] = []
    faults = Faults(allowed=allowed, exit_process=lambda code: done.append("exit" if code else 0), sleep=done.append)
    try:
        faults.inject_fault(event(extensions={ATTRIBUTE: fault} if fault else {}), attempt)
    except SimulatedFaultError:
        done.append("raise")
    return done


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_meets_the_first_attempt_and_poison_every_one(fault: Fault) -> None:
    """Only poison fails however often it is tried."""
    assert inject(fault) == DONE[fault]
    assert inject(fault, attempt=2) == (DONE[fault] if fault is Fault.POISON else [])


def test_where_a_run_knows_no_attempt_the_first_run_counts_as_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves no record in atomic mode: the next one still goes through, and another function dies."""
    assert [inject(Fault.CRASH, attempt=None) for _ in range(3)] == [["exit"], [], []]
    assert [inject(Fault.POISON, attempt=None) for _ in range(2)] == [["raise"], ["raise"]]
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "another")
    assert [inject(Fault.CRASH, attempt=None) for _ in range(2)] == [["exit"], []]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("attempt", [1, None])
def test_where_faults_are_refused_nothing_happens(fault: Fault, attempt: int | None, memory: Path) -> None:
    """An event cannot make a consumer fail outside of the stage that allows it, and leaves nothing behind."""
    assert inject(fault, attempt, allowed=False) == list(memory.iterdir()) == []


@pytest.mark.parametrize("fault", [None, "unheard-of"])
def test_an_event_that_asks_for_nothing_known_is_left_alone(fault: str | None) -> None:
    """Other events pass."""
    assert inject(fault) == []
