"""The engine's control interface: HTTP addresses of its own, in front of MiniStack's.

`README.md` lists them.
"""

import json
from collections.abc import Callable
from typing import Any

from ministack import app
from ministack.services import eventbridge, lambda_svc, sqs

_routes: dict[str, Callable[[Any], object]] = {}
_work: dict[str, Callable[[], int]] = {}
_stock_app = app.app


def route(path: str, answer: Callable[[Any], object]) -> None:
    """Add an address below ``/_engine/``.

    ``answer`` takes the request's JSON, or ``{}``, and returns the answer's.
    """
    _routes[f"/_engine/{path}"] = answer


def count_work(kind: str, count: Callable[[], int]) -> None:
    """Add a count of unfinished work, under the name by which it is reported."""
    _work[kind] = count


def _in_flight(_body: object) -> dict[str, int]:
    """Count the unfinished work of each kind; if all are zero, nothing happens until the next call.

    Work moves between the kinds while they are counted: a function's write becomes a stream's
    record and then another function's event. So a first look that finds nothing is followed by a
    second one.
    """
    counts = {kind: count() for kind, count in _work.items()}
    return counts if any(counts.values()) else {kind: count() for kind, count in _work.items()}


def _replays() -> int:
    return sum(
        replay.get("State") in {"STARTING", "RUNNING"}
        for replay in eventbridge._replays.all_values()
    )


def _mapped_messages() -> int:
    """Count messages in queues that a function polls; others wait for their reader."""
    mappings = lambda_svc._esms.all_values()
    sources = {mapping["EventSourceArn"] for mapping in mappings if mapping.get("Enabled", True)}
    queues = filter(None, map(sqs._queue_by_arn, sources))
    return sum(len(queue["messages"]) for queue in queues)


async def _app(
    scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]
) -> None:
    answer = _routes.get(scope.get("path", ""))
    if answer is None:
        await _stock_app(scope, receive, send)
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    content = json.dumps(answer(json.loads(body or b"{}"))).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def apply() -> None:
    """Answer before MiniStack does, and count its own work."""
    app.app = _app
    route("in-flight", _in_flight)
    count_work("invocations", lambda: lambda_svc.executions_in_flight()[0])
    count_work("replays", _replays)
    count_work("mapped_messages", _mapped_messages)
