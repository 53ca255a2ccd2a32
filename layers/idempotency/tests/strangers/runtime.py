"""Lambda's runtime in small: calls a module's handler with the event of each line.

The first line that it prints says that the handler is loaded; the others are answers or errors.
``module:app`` is a service, which is asked what the event asks for.
"""

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from carride_idempotency.clock import epoch_ms
from carride_idempotency.testing import lambda_context

TIMEOUT_S = 2.0


def handler_of(name: str) -> Callable[[Any, Any], Any]:
    """Return a module's handler, or what asks its service."""
    module, _, service = name.partition(":")
    loaded = importlib.import_module(module)
    if service:
        return lambda event, _: asyncio.run(ask(getattr(loaded, service), event))
    handler: Callable[[Any, Any], Any] = loaded.handler
    return handler


async def ask(app: Any, event: dict[str, Any]) -> dict[str, Any]:
    """Send a service the request of an event; return its answer."""
    import httpx2  # only such an application's environment has it

    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        content = event["body"].encode()
        headers = event["headers"]
        answer = await client.post(event["rawPath"], content=content, headers=headers)
    return {"statusCode": answer.status_code}


def main(module: str) -> None:
    """Handle events until the input ends."""
    handler = handler_of(module)
    print(json.dumps({"ready": module}), flush=True)
    for line in sys.stdin:
        context = lambda_context(timeout_s=TIMEOUT_S, clock=epoch_ms)
        try:
            said = {"answer": handler(json.loads(line), context)}
        except Exception as error:  # noqa: BLE001 - Lambda reports every error, too
            said = {"error": repr(error)}
        print(json.dumps(said), flush=True)


main(sys.argv[1])
