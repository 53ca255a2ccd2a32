"""The API's description, its samples, its routes in the template and its routes in the function agree."""

import json
import re
from typing import Any, Final

import pytest

from api import openapi
from tests.functions.api_fixtures import *  # noqa: F403 - the fixtures
from tests.functions.api_world import World, request
from tests.template.stack import ROOT, Stack, stack

DOCUMENT: Final = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
TOKENS: Final = {"ApiAuthorization": "jwt", "JwtIssuer": "https://issuer.example", "JwtAudience": "car-ride"}
SAMPLES: Final = ROOT / "events" / "carride_api"
ROWS: Final = re.findall(
    r"^\| `(\w+\.json)` \| (\d{3}) \| (?:`([\w-]+)`)?(?:, field `([\w-]+)`)?",
    (SAMPLES / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def schemes(deployed: Stack) -> dict[tuple[str, str], list[str]]:
    """Return who may call each operation of the template, by path and method: names of security schemes."""
    [api] = deployed.of_type("AWS::ApiGatewayV2::Api").values()
    found: dict[tuple[str, str], list[str]] = {}
    for path, operations in api["Body"]["paths"].items():
        for method, operation in operations.items():
            required: Any = operation["security"]
            found[path, method] = [scheme for requirement in required for scheme in requirement]
            assert set(found[path, method]) <= api["Body"]["components"]["securitySchemes"].keys()
    return found


def test_what_is_checked_in_is_served(world: World) -> None:
    """A client gets the document that is in the repository."""
    assert world.send(request("GET", "/openapi.json", key=None)).body == json.loads(DOCUMENT)


@pytest.mark.parametrize("route", openapi.ROUTES, ids=lambda route: route.operation_id)
def test_every_route_is_served_as_described(world: World, route: openapi.Route) -> None:
    """The function knows each operation: even an empty request gets a status that the document announces."""
    path = route.path.replace("{id}", "order_01")
    answer = world.send(request(route.method.upper(), path, b"", key=None))
    document = openapi.document()
    announced = document["paths"][route.path][route.method]["responses"][str(answer.status)]
    if answer.status != 200:
        name = announced["$ref"].removeprefix("#/components/responses/")
        assert answer.problem in document["components"]["responses"][name]["description"]


@pytest.mark.parametrize(
    ("parameters", "callers"),
    [
        ({"Stage": "dev"}, ["iam"]),
        ({"Stage": "prod", "ApiAuthorization": "iam"}, ["iam"]),
        ({"Stage": "dev", **TOKENS}, ["jwt"]),
        ({"Stage": "prod", **TOKENS}, ["jwt"]),
        ({"Stage": "local", **TOKENS}, []),
    ],
)
def test_every_route_of_the_document_asks_who_calls(parameters: dict[str, str], callers: list[str]) -> None:
    """API Gateway routes what is described, and asks with the authorizer that was chosen, outside of a laptop."""
    assert schemes(stack(**parameters)) == {(route.path, route.method): callers for route in openapi.ROUTES}


def test_requests_are_throttled() -> None:
    """The API has a limit of its own, below that of the account."""
    [stage] = stack().of_type("AWS::ApiGatewayV2::Stage").values()
    settings = stage["DefaultRouteSettings"]
    assert settings["ThrottlingRateLimit"] > 0 < settings["ThrottlingBurstLimit"]


def test_every_sample_is_answered_as_its_row_says(world: World) -> None:
    """Sent in the order of the README, each request has the status, the problem and the field that stand there."""
    assert sorted(row[0] for row in ROWS) == sorted(path.name for path in SAMPLES.glob("*.json"))
    for name, status, problem, field in ROWS:
        answer = world.send(json.loads((SAMPLES / name).read_text(encoding="utf-8")))
        assert (name, answer.status) == (name, int(status))
        assert not problem or (name, answer.problem) == (name, problem)
        assert not field or (name, answer.body["field"]) == (name, field)
    assert [ride["status"] for ride in world.items("bookings")] == ["cancelled"]
