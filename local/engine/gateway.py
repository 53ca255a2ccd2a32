"""The engine's own addresses below MiniStack's.

``GET /_carride/in-flight`` says as JSON what is not done yet, ``GET /_carride/asked`` what roles have asked for;
``POST /_carride/regions`` makes trouble.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ministack import app

from local.engine import authorization, in_flight, regions

PATH = "/_carride/in-flight"

type _Receive = Callable[[], Awaitable[dict[str, Any]]]
type _Send = Callable[[dict[str, Any]], Awaitable[None]]

_stock_app = app.app


async def _app(scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
    if scope["type"] == "http" and scope["path"] == PATH:
        await _answer(send, in_flight.report())
    elif scope["type"] == "http" and scope["path"] == authorization.PATH:
        await _answer(send, authorization.report())
    elif scope["type"] == "http" and scope["path"] == regions.PATH:
        await _answer(send, regions.switch(await _body(receive)))
    else:
        await _stock_app(scope, receive, send)


async def _body(receive: _Receive) -> bytes:
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    return body + bytes(message["body"])


async def _answer(send: _Send, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def apply() -> None:
    """Answer before MiniStack does."""
    app.app = _app
