"""Clocks, which callers pass in."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

type Clock = Callable[[], int]
"""Returns the current time in epoch milliseconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def epoch_ms() -> int:
    """Return the wall clock's time.

    Machines compare leases and windows, so a monotonic clock would not do.
    """
    return time.time_ns() // 1_000_000


def to_ms(moment: datetime) -> int:
    """Return a time in epoch milliseconds, rounded down.

    A naive time is UTC, whatever the process's zone.
    """
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


class Timing(NamedTuple):
    """How time passes, and how pauses differ."""

    clock: Clock = epoch_ms
    sleep: Callable[[float], None] = time.sleep
    """Waits, in seconds."""
    jitter: Callable[[], float] = random.random
    """A number from 0 to 1, for each pause."""


REAL_TIME: Final = Timing()
