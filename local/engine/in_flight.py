"""Whether the engine has work left.

A laptop's tests and demo have to know when every event has reached its end. Each plug-in that keeps events registers a
count here; the gateway adds what MiniStack itself is doing.
"""

from typing import Any

from ministack.core.responses import AccountRegionScopedDict
from ministack.services import eventbridge, lambda_svc, sqs

from local.engine.counting import Counts

_UNFINISHED_REPLAYS = frozenset({"STARTING", "RUNNING"})

_work = Counts()
register = _work.register
report = _work.report


def _replays() -> int:
    return sum(replay.get("State") in _UNFINISHED_REPLAYS for replay in _values(eventbridge._replays))


def _mapped_messages() -> int:
    """Messages in queues that a function polls; others wait for whoever reads them."""
    sources = {esm["EventSourceArn"] for esm in _values(lambda_svc._esms) if esm.get("Enabled", True)}
    return sum(len(queue["messages"]) for arn in sources if (queue := sqs._queue_by_arn(arn)))


def _values(store: AccountRegionScopedDict) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = store.all_values()
    return values


def apply() -> None:
    """Register what MiniStack itself has in hand."""
    register("invocations", lambda: lambda_svc.executions_in_flight()[0])
    register("replays", _replays)
    register("mapped_messages", _mapped_messages)
