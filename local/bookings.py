"""Customers of the deployed API: they book rides over HTTP and sometimes repeat a request."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import urllib3

from local.local_aws import EngineError, LocalAws, Stack

_TIMEOUT_SECONDS: Final = 60
_CREATED: Final = 201


def book(cloud: LocalAws, stack: Stack, rides: int) -> Iterator[int]:
    """Book rides and drive them; every fifth one is cancelled. Yield how many are done.

    Every third request is sent twice under its idempotency key, as by a client that lost the first
    answer.

    Raises:
        EngineError: The API refused a request, or gave a repeated request another answer.
    """
    url = f"{cloud.endpoint_url}/_aws/execute-api/{stack.resources['CarRideApi']}/$default/carrides"
    for number in range(1, rides + 1):
        order = {
            "customerID": f"customer_{'abc'[number % 3]}",
            "pickup": f"sector_{number % 9 + 1:02}",
            "destination": f"sector_{(number + 4) % 9 + 1:02}",
            "price": 1000 + 10 * number,
        }
        ride = _send("POST", url, order, key=f"demo-{number}-book", twice=number % 3 == 0)
        for step in ("accept", "cancel") if number % 5 == 0 else ("accept", "start", "complete"):
            change = {"action": step, "version": ride["version"]}
            if step == "cancel":
                change["reason"] = "changed my mind"
            key = f"demo-{number}-{step}"
            ride = _send("PUT", f"{url}/{ride['orderID']}", change, key=key, twice=number % 3 == 0)
        yield number


def _send(
    method: str, url: str, body: Mapping[str, Any], *, key: str, twice: bool
) -> dict[str, Any]:
    """Send a request under its key, ``twice`` as if the first answer was lost, and return the answered ride."""
    answers = set()
    for _ in range(2 if twice else 1):
        headers = {"Idempotency-Key": key}
        answer = urllib3.request(
            method, url, json=body, headers=headers, timeout=_TIMEOUT_SECONDS, retries=False
        )
        if answer.status not in (200, _CREATED):
            raise EngineError(
                f"{method} {url} was answered with {answer.status}: {answer.data.decode(errors='replace')}"
            )
        answers.add(answer.data)
    if len(answers) > 1:
        raise EngineError(f"{method} {url} had two answers under one idempotency key: {answers}")
    ride: dict[str, Any] = json.loads(answers.pop())
    return ride
