"""Time, as the protocol takes it: from outside."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

type Clock = Callable[[], int]
"""Answers with the current time in epoch milliseconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def epoch_ms() -> int:
    """Return the wall clock's time; leases and windows are compared between machines, so no monotonic clock serves."""
    return time.time_ns() // 1_000_000


def to_ms(moment: datetime) -> int:
    """Return a time in epoch milliseconds, rounded down. A naive one is UTC, whatever zone the process is in."""
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND
