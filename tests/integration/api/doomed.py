"""A process of the API that ends at a given step of a request, as a killed one does: no clean-up, no last word.

A step is a moment just before or just after a round trip to DynamoDB; nothing else that the function does outlives it.
Run with the step and the request's method, path, key and body; with a step that is never reached it prints the status.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from api.service import Settings
from carride.clients import dynamodb_client
from carride.settings import from_environment
from carride_api import make_handler
from idempotency.clock import epoch_ms
from idempotency.stores.transport import Transport, botocore_transport
from idempotency.testing import Invocation

KILLED: Final = 9


class Steps:
    """Counts the steps of a request, and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._taken = 0

    def take(self, **_: Any) -> None:
        """Take a step; the last one is never finished."""
        self._taken += 1
        if self._taken == self._last:
            os._exit(KILLED)


class Watched:
    """A transport whose every request is a step, and its answer another."""

    def __init__(self, transport: Transport, steps: Steps) -> None:
        self.longest_try_s = transport.longest_try_s
        self._transport = transport
        self._steps = steps

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Send one request."""
        self._steps.take()
        answer = self._transport(operation, request)
        self._steps.take()
        return answer


def main(last: str, method: str, path: str, key: str, body: str) -> None:
    """Serve one request, as far as the last step lets it."""
    steps = Steps(int(last))
    reads = dynamodb_client()
    reads.meta.events.register("before-call.dynamodb", steps.take)
    reads.meta.events.register("after-call.dynamodb", steps.take)
    handler = make_handler(from_environment(Settings), dynamodb=reads, transport=Watched(botocore_transport(), steps))
    request = {
        "version": "2.0",
        "routeKey": "POST /carrides" if method == "POST" else "PUT /carrides/{id}",
        "rawPath": path,
        "rawQueryString": "",
        "pathParameters": {"id": path.rpartition("/")[2]},
        "headers": {"content-type": "application/json", "idempotency-key": key},
        "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
        "body": body,
        "isBase64Encoded": False,
    }
    print(handler(request, Invocation(epoch_ms))["statusCode"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
