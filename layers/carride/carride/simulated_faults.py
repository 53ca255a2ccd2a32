"""The faults that an event can ask for, where faults are injected. Pure."""

from enum import StrEnum
from typing import Final

FAULT_EXTENSION: Final = "simulatedfault"
"""The CloudEvents extension that names a fault to inject into the event's consumers, as in
``crash``, or into one of them, as in ``crash@payment``. Deployed consumers ignore it."""
# The lease of a stalled attempt: enough to reach the end of its handler.
STALLED_LEASE_S: Final = 2.0


class Fault(StrEnum):
    """A fault that an event causes in each of its consumers, where faults are injected."""

    CRASH = "crash"  # the process ends in the first run
    FAIL = "fail"  # the first run raises
    POISON = "poison"  # every run raises
    SLOW = "slow"  # the first run takes longer
    LOSE_ANSWER = "lose-answer"  # the first run commits, and gets no answer to it
    # The first run gets a short lease, and stops before its commit until it has been taken over.
    STALL = "stall"
