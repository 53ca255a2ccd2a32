"""Time, as the protocol takes it: from outside."""

import time
from collections.abc import Callable

type Clock = Callable[[], int]
"""Answers with the current time in epoch milliseconds."""


def epoch_ms() -> int:
    """Return the wall clock's time; leases and windows are compared between machines, so no monotonic clock serves."""
    return time.time_ns() // 1_000_000
