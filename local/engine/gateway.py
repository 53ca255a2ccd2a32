"""The engine's own address below MiniStack's: ``GET /_carride/in-flight`` says as JSON what is not done yet."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ministack import app

from local.engine import in_flight

PATH = "/_carride/in-flight"

type _Send = Callable[[dict[str, Any]], Awaitable[None]]

_stock_app = app.app


async def _app(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: _Send) -> None:
    if scope["type"] != "http" or scope["path"] != PATH:
        await _stock_app(scope, receive, send)
        return
    body = json.dumps(in_flight.report()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def apply() -> None:
    """Answer before MiniStack does."""
    app.app = _app
