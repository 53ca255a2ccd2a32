"""Customers of the deployed API: they book rides over HTTP, and send a request again when they feel like it."""

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from local.local_aws import HOST, LocalAws, EngineError, Stack

_TIMEOUT_SECONDS: Final = 60
_STEPS: Final = ("accept", "start", "complete")
"""What becomes of a ride after it is booked; every fifth one is cancelled instead of started."""
_CREATED: Final = 201


def book(cloud: LocalAws, stack: Stack, rides: int) -> Iterator[int]:
    """Book rides and drive them; yield how many are done.

    Every third request is sent twice under its idempotency key, as by a client that has not heard the first answer.

    Raises:
        EngineError: the API refused what it should do, or answered a repeated request with something else.
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
            steps = (_STEPS[0], "cancel") if number % 5 == 0 else _STEPS
            for step in steps:
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
    """Send a request under its key, ``twice`` where the first answer is taken for lost, and return the answered ride.

    Raises:
        EngineError: the API refused it, or gave two answers.
    """
    answers = []
    for _ in range(2 if twice else 1):
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status not in (200, _CREATED):
            raise EngineError(f"{method} {path} was answered with {answer.status}: {content.decode(errors='replace')}")
        answers.append(content)
    if len(set(answers)) > 1:
        raise EngineError(f"{method} {path} was answered in two ways under one idempotency key: {answers}")
    ride: dict[str, Any] = json.loads(answers[0])
    return ride
