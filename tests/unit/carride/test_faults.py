import tempfile
from pathlib import Path

import pytest

from carride.faults import ATTRIBUTE, SLOW_S, Fault, Faults, SimulatedFaultError
from tests.unit.carride.rides import event


class Body:
    """A process that notes what is done to it."""

    def __init__(self) -> None:
        self.ended = 0
        self.slept = 0.0

    def exit_process(self, code: int) -> None:
        """Count what would have ended the process."""
        assert code != 0
        self.ended += 1

    def sleep(self, seconds: float) -> None:
        """Add up what would have been slept."""
        self.slept += seconds


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A laptop's folder of temporary files, in which no event was seen before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def strike(fault: str | None, attempt: int | None = 1, *, allowed: bool = True) -> Body:
    """Handle an event that asks for a fault, in a new process."""
    body = Body()
    faults = Faults(allowed=allowed, exit_process=body.exit_process, sleep=body.sleep)
    faults.inject_fault(event(extensions={ATTRIBUTE: fault} if fault else {}), attempt)
    return body


def test_a_crash_ends_the_process_at_the_first_attempt_only() -> None:
    """The attempt that takes over from a crashed one goes through."""
    assert strike(Fault.CRASH).ended == 1
    assert strike(Fault.CRASH, attempt=2).ended == 0


def test_a_failure_raises_at_the_first_attempt_only() -> None:
    """The retry of a failed attempt goes through."""
    with pytest.raises(SimulatedFaultError):
        strike(Fault.FAIL)
    strike(Fault.FAIL, attempt=2)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_poison_raises_at_every_attempt(attempt: int) -> None:
    """No retry helps against poison."""
    with pytest.raises(SimulatedFaultError):
        strike(Fault.POISON, attempt)


def test_a_slow_event_takes_long_at_the_first_attempt_only() -> None:
    """A slow event keeps its consumer busy once."""
    assert strike(Fault.SLOW).slept == SLOW_S
    assert strike(Fault.SLOW, attempt=2).slept == 0


def test_where_a_run_knows_no_attempt_the_first_run_counts_as_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves no record in atomic mode: the next one still goes through, and another function dies."""
    assert [strike(Fault.CRASH, attempt=None).ended for _ in range(3)] == [1, 0, 0]
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "another")
    assert [strike(Fault.CRASH, attempt=None).ended for _ in range(2)] == [1, 0]


def test_poison_raises_whether_or_not_a_run_knows_its_attempt() -> None:
    """What always fails needs no memory."""
    for _ in range(2):
        with pytest.raises(SimulatedFaultError):
            strike(Fault.POISON, attempt=None)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("attempt", [1, None])
def test_where_faults_are_refused_nothing_happens(fault: Fault, attempt: int | None, memory: Path) -> None:
    """An event cannot make a consumer fail outside of the stage that allows it, and leaves nothing behind."""
    body = strike(fault, attempt, allowed=False)
    assert (body.ended, body.slept) == (0, 0)
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("fault", [None, "unheard-of"])
def test_an_event_that_asks_for_nothing_known_is_left_alone(fault: str | None) -> None:
    """Other events pass."""
    body = strike(fault)
    assert (body.ended, body.slept) == (0, 0)
