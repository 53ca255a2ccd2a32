"""Customers of the deployed API: they book rides over HTTP and sometimes repeat a request."""

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from local.local_aws import HOST, EngineError, LocalAws, Stack

_TIMEOUT_SECONDS: Final = 60
_CREATED: Final = 201


def book(cloud: LocalAws, stack: Stack, rides: int) -> Iterator[int]:
    """Book rides and drive them; every fifth one is cancelled. Yield how many are done.

    Every third request is sent twice under its idempotency key, as by a client that lost the first answer.

    Raises:
        EngineError: The API refused a request, or gave a repeated request another answer.
    """
    path = f"/_aws/execute-api/{stack.resources['CarRideApi']}/$default/carrides"
    connection = http.client.HTTPConnection(HOST, cloud.port, timeout=_TIMEOUT_SECONDS)
    try:
        for number in range(1, rides + 1):
            order = {
                "customerID": f"customer_{'abc'[number % 3]}",
                "pickup": f"sector_{number % 9 + 1:02}",
                "destination": f"sector_{(number + 4) % 9 + 1:02}",
                "price": 1000 + 10 * number,
            }
            ride = send(connection, "POST", path, order, key=f"demo-{number}-book", twice=number % 3 == 0)
            for step in ("accept", "cancel") if number % 5 == 0 else ("accept", "start", "complete"):
                change = {"action": step, "version": ride["version"]}
                if step == "cancel":
                    change["reason"] = "changed my mind"
                key = f"demo-{number}-{step}"
                ride = send(connection, "PUT", f"{path}/{ride['orderID']}", change, key=key, twice=number % 3 == 0)
            yield number
    finally:
        connection.close()


def send(
    connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any], *, key: str, twice: bool
) -> dict[str, Any]:
    """Send a request under its key, ``twice`` as if the first answer was lost, and return the answered ride.

    Raises:
        EngineError: The API refused the request, or gave two answers.
    """
    answers = set()
    for _ in range(2 if twice else 1):
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status not in (200, _CREATED):
            raise EngineError(f"{method} {path} was answered with {answer.status}: {content.decode(errors='replace')}")
        answers.add(content)
    if len(answers) > 1:
        raise EngineError(f"{method} {path} had two answers under one idempotency key: {answers}")
    ride: dict[str, Any] = json.loads(answers.pop())
    return ride
