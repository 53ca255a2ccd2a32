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


def strike(fault: str | None, attempt: int = 1, *, allowed: bool = True) -> Body:
    """Handle an event that asks for a fault."""
    body = Body()
    faults = Faults(allowed=allowed, exit_process=body.exit_process, sleep=body.sleep)
    faults.strike(event(extensions={ATTRIBUTE: fault} if fault else {}), attempt)
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


@pytest.mark.parametrize("fault", Fault)
def test_where_faults_are_refused_nothing_happens(fault: Fault) -> None:
    """An event cannot make a consumer fail outside of the stage that allows it."""
    body = strike(fault, allowed=False)
    assert (body.ended, body.slept) == (0, 0)


@pytest.mark.parametrize("fault", [None, "unheard-of"])
def test_an_event_that_asks_for_nothing_known_is_left_alone(fault: str | None) -> None:
    """Other events pass."""
    body = strike(fault)
    assert (body.ended, body.slept) == (0, 0)
