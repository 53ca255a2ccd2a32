"""Time, as the protocol takes it: from outside."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

type Clock = Callable[[], int]
"""Answers with the current time in epoch milliseconds."""


def epoch_ms() -> int:
    """Return the wall clock's time; leases and windows are compared between machines, so no monotonic clock serves."""
    return time.time_ns() // 1_000_000


def to_ms(time: datetime) -> int:
    """Return a point in time as epoch milliseconds; one without a time zone is taken for UTC, never for local time."""
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)
