"""Faults on request: an event may ask its consumer to fail, where the stage allows it.

Demos and tests need a consumer that dies half-way, and a consumer cannot be told to by anything but its event. An event
asks by the CloudEvents extension ``simulatedfault``; the template allows it on a laptop only.
"""

import hashlib
import os
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from carride.events import RideEvent

ATTRIBUTE: Final = "simulatedfault"
"""The CloudEvents extension that asks for a fault."""

SLOW_S: Final = 3.0
"""How long a slow consumer takes."""

_EXIT_CODE: Final = 70


class Fault(StrEnum):
    """What an event can ask for."""

    CRASH = "crash"
    """The process ends at once, at the first attempt."""
    FAIL = "fail"
    """The first attempt raises."""
    POISON = "poison"
    """Every attempt raises."""
    SLOW = "slow"
    """The first attempt takes `SLOW_S` longer."""


class SimulatedFaultError(Exception):
    """Raised because the event asked for it."""


class Faults:
    """Does what events ask for, or ignores it.

    Args:
        allowed: whether to do it.
        exit_process: ends the process without any clean-up, with an exit code.
        sleep: waits, in seconds.
    """

    def __init__(
        self,
        *,
        allowed: bool,
        exit_process: Callable[[int], object] = os._exit,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._allowed = allowed
        self._exit_process = exit_process
        self._sleep = sleep

    def inject_fault(self, event: RideEvent, attempt: int | None) -> None:
        """Do what the event asks for. Call it in the middle of the work, where a fault hurts the most.

        Args:
            event: which may ask for a fault.
            attempt: counted from 1; None in atomic mode, where a run does not know it. The first run of the event by
                this function then counts as the first attempt.

        Raises:
            SimulatedFaultError: the event asked for it.
        """
        fault = event.extensions.get(ATTRIBUTE)
        if not self._allowed or fault is None:
            return
        if fault != Fault.POISON and (attempt > 1 if attempt is not None else self._ran_before(event)):
            return
        match fault:
            case Fault.CRASH:
                self._exit_process(_EXIT_CODE)
            case Fault.FAIL | Fault.POISON:
                raise SimulatedFaultError(f"{event.type} of {event.subject} asked for it")
            case Fault.SLOW:
                self._sleep(SLOW_S)

    def _ran_before(self, event: RideEvent) -> bool:
        """Whether this function had the event before. A file remembers it: the process may not live to do so.

        With the event's time, because stacks that follow each other on one laptop may be told the same facts.
        """
        from pathlib import Path  # noqa: PLC0415 - only a laptop comes here
        from tempfile import gettempdir  # noqa: PLC0415 - as above

        where = (os.environ.get("AWS_REGION"), os.environ.get("AWS_LAMBDA_FUNCTION_NAME"))
        which = (event.idempotencyid, event.time.isoformat())
        name = hashlib.blake2b(repr(where + which).encode(), digest_size=16).hexdigest()
        try:
            Path(gettempdir(), f"struck-{name}").touch(exist_ok=False)
        except FileExistsError:
            return True
        return False
