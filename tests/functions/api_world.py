"""Requests to the API as API Gateway sends them, and its answers."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace

from api.service import Settings
from carride.settings import from_environment
from idempotency.testing import http_event

SETTINGS: Final = from_environment(Settings)
DEV: Final = replace(SETTINGS, stage="dev", staff_group="staff")
STAFF: Final = {"jwt": {"claims": {"sub": "c", "cognito:groups": "[riders staff]"}}}
"""The authorizer of a token of the staff of `DEV`."""
RIDE: Final = {"customerID": "customer_a", "pickup": "sector_01", "destination": "sector_03"}
BOOKING: Final = {**RIDE, "passengers": 2, "price": 1250}


def request(
    method: str, path: str, body: object = None, *, authorizer: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Return a request to the API; ``options`` are those of `http_event`."""
    event = http_event(method, path, body, **options)
    known = path in {"/carrides", "/carrides/simulate", "/openapi.json"}
    event["routeKey"] = f"{method} {path if known else '/carrides/{id}'}"
    if not known:
        event["pathParameters"] = {"id": path.removeprefix("/carrides/")}
    if authorizer:
        event["requestContext"]["authorizer"] = dict(authorizer)
    return event


class Answer(NamedTuple):
    """The answer that a client gets."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Read what the function returns to API Gateway."""
        return cls(raw["statusCode"], raw.get("headers", {}), json.loads(raw["body"]))

    def replayed(self) -> "Answer":
        """The answer that a repeated request gets."""
        return self._replace(headers={**self.headers, "Idempotency-Replayed": "true"})

    @property
    def problem(self) -> str:
        """The kind of the problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.body["status"] == self.status
        kind: str = self.body["type"].removeprefix("urn:acr:car-ride:problem:")
        return kind
