"""The engine's unfinished work, counted by kind: tests and demos wait until it is zero.

Each plug-in that keeps events registers a count; `apply` adds MiniStack's own work. ``GET /_engine/in-flight`` answers
the counts.
"""

from collections.abc import Callable
from typing import Any

_kinds: dict[str, Callable[[], int]] = {}


def register(kind: str, count: Callable[[], int]) -> None:
    """Add a count of unfinished work, under the name by which it is reported."""
    _kinds[kind] = count


def report() -> dict[str, int]:
    """Count the unfinished work of each kind; if all are zero, nothing happens until the next call.

    Kinds are counted one after the other, and work moves between them meanwhile: a function's write becomes a stream's
    record and then another function's event. So a first look that finds nothing is followed by a second one.
    """
    counts = _look()
    return counts if any(counts.values()) else _look()


def _look() -> dict[str, int]:
    return {kind: count() for kind, count in _kinds.items()}


def apply() -> None:
    """Register MiniStack's own work."""
    from ministack.services import eventbridge, lambda_svc, sqs  # noqa: PLC0415 - the counting is tested without them

    from local.engine import control  # noqa: PLC0415 - as above

    def replays() -> int:
        replays: list[dict[str, Any]] = eventbridge._replays.all_values()
        return sum(replay.get("State") in {"STARTING", "RUNNING"} for replay in replays)

    def mapped_messages() -> int:
        """Count messages in queues that a function polls; others wait for their reader."""
        sources = {esm["EventSourceArn"] for esm in lambda_svc._esms.all_values() if esm.get("Enabled", True)}
        return sum(len(queue["messages"]) for arn in sources if (queue := sqs._queue_by_arn(arn)))

    register("invocations", lambda: lambda_svc.executions_in_flight()[0])
    register("replays", replays)
    register("mapped_messages", mapped_messages)
    control.route("in-flight", lambda _body: report())
