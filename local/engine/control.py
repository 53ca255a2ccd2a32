"""The engine's control interface: HTTP addresses of its own, in front of MiniStack's. `README.md` lists them."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ministack import app

type Receive = Callable[[], Awaitable[dict[str, Any]]]
type Send = Callable[[dict[str, Any]], Awaitable[None]]

_routes: dict[str, Callable[[bytes], object]] = {}
_stock_app = app.app


def route(path: str, answer: Callable[[bytes], object]) -> None:
    """Add an address below ``/_engine/``.

    Args:
        path: Its last part.
        answer: Called with the request's body; returns a value that JSON can hold. A ValueError is answered with
            status 400 and its text as ``error``.
    """
    _routes[f"/_engine/{path}"] = answer


async def _app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    answer = _routes.get(scope["path"]) if scope["type"] == "http" else None
    if answer is None:
        await _stock_app(scope, receive, send)
        return
    status, content = 200, await _body(receive)
    try:
        found = answer(content)
    except ValueError as error:
        status, found = 400, {"error": str(error)}
    body = json.dumps(found).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def apply() -> None:
    """Answer before MiniStack does."""
    app.app = _app
