"""Clocks, which callers pass in."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

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
