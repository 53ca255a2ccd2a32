"""Has the deployed simulator publish rides, in calls that are short enough to show progress."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ops.stack import OperatorError, StackRef

AT_ONCE: Final = 500
"""Entries that one call publishes."""


class Published(NamedTuple):
    """How many of its entries the simulator has published, and how many test consumers."""

    entries: int
    total: int
    injected: Mapping[str, int]


def simulate(
    stack: StackRef, request: Mapping[str, Any], *, at_once: int = AT_ONCE
) -> Iterator[Published]:
    """Call the deployed simulator until everything is published; yield its progress each time."""
    request = {**request, "limit": at_once}
    injected = Counter[str]()
    while True:
        summary = stack.invoke("CarRideSimulatorFunctionName", request)
        if "error" in summary:
            raise OperatorError(f"the simulator refused: {summary['error']}")
        injected.update(summary["injected"])
        total = summary["total"]
        next_offset = summary["resume"]
        if next_offset is None:
            yield Published(total, total, injected)
            return
        yield Published(next_offset, total, injected)
        request["offset"] = next_offset
        request["time"] = summary["time"]
