"""Customers of the deployed API: they book rides over HTTP and sometimes repeat a request."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import urllib3

from local.local_aws import EngineError, LocalAws, Stack

_TIMEOUT_SECONDS: Final = 60
_CREATED: Final = 201
_DRIVEN: Final = ("accept", "start", "complete")
_CANCELLED: Final = ("accept", "cancel")


def book(cloud: LocalAws, stack: Stack, rides: int) -> Iterator[int]:
    """Book rides and drive them; every fifth one is cancelled. Yield how many are done.

    Every third request is sent twice under its idempotency key, as by a client that lost the first
    answer.

    Raises:
        EngineError: The API refused a request, or gave a repeated request another answer.
    """
    url = f"{cloud.endpoint_url}/_aws/execute-api/{stack.resources['CarRideApi']}/$default/carrides"
    for number in range(1, rides + 1):
        _book_one(url, number, twice=number % 3 == 0)
        yield number


def _book_one(url: str, number: int, *, twice: bool) -> None:
    """Book a ride and drive it, or cancel it once it is accepted."""
    order = {
        "customerID": f"customer_{'abc'[number % 3]}",
        "pickup": f"sector_{number % 9 + 1:02}",
        "destination": f"sector_{(number + 4) % 9 + 1:02}",
        "price": 1000 + 10 * number,
    }
    ride = _send("POST", url, order, key=f"demo-{number}-book", twice=twice)
    for step in _CANCELLED if number % 5 == 0 else _DRIVEN:
        change = {"action": step, "version": ride["version"]}
        if step == "cancel":
            change["reason"] = "changed my mind"
        path = f"{url}/{ride['orderID']}"
        ride = _send("PUT", path, change, key=f"demo-{number}-{step}", twice=twice)


def _send(
    method: str, url: str, body: Mapping[str, Any], *, key: str, twice: bool
) -> dict[str, Any]:
    """Send a request under its key, ``twice`` as if the first answer was lost; return the ride."""
    content = _answer(method, url, body, key)
    if twice:
        again = _answer(method, url, body, key)
        if again != content:
            raise EngineError(
                f"{method} {url} had two answers under one idempotency key: {content!r}, {again!r}"
            )
    ride: dict[str, Any] = json.loads(content)
    return ride


def _answer(method: str, url: str, body: Mapping[str, Any], key: str) -> bytes:
    """Send a request once, and return the content of its answer."""
    answer = urllib3.request(
        method,
        url,
        json=body,
        headers={"Idempotency-Key": key},
        timeout=_TIMEOUT_SECONDS,
        retries=False,
    )
    if answer.status not in (200, _CREATED):
        why = answer.data.decode(errors="replace")
        raise EngineError(f"{method} {url} was answered with {answer.status}: {why}")
    return answer.data
