"""The API's description, its routes in the template, and its routes in the function are the same."""

import json
from typing import Any, Final

import pytest

from api import openapi
from tests.infrastructure.stack import ROOT, Stack, stack
from tests.unit.functions.api_fixtures import *  # noqa: F403 - the fixtures
from tests.unit.functions.api_world import World, request

DOCUMENT: Final = ROOT / "docs" / "openapi.json"


def routes(deployed: Stack) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the operations of the API in the template, by path and method."""
    [api] = deployed.of_type("AWS::ApiGatewayV2::Api").values()
    return {
        (path, method): operation
        for path, operations in api["Body"]["paths"].items()
        for method, operation in operations.items()
    }


def callers(deployed: Stack) -> list[Any]:
    """Return who may call each operation: the names of the security schemes it asks for."""
    return [
        [list(requirement) for requirement in _listed(deployed.choose(operation["security"]))]
        for operation in routes(deployed).values()
    ]


def _listed(value: object) -> list[dict[str, Any]]:
    assert isinstance(value, list)
    return value


def test_what_is_served_is_what_is_checked_in(world: World) -> None:
    """A client gets the document that is kept in the repository."""
    assert world.send(request("GET", "/openapi.json", key=None)).body == json.loads(DOCUMENT.read_text())


def test_the_template_has_the_routes_of_the_document() -> None:
    """API Gateway lets through what is described, and nothing else."""
    described = {(path, method) for path, methods in openapi.document()["paths"].items() for method in methods}
    assert set(routes(stack())) == described


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


@pytest.mark.parametrize("stage", ["dev", "prod"])
@pytest.mark.parametrize(
    ("parameters", "scheme"),
    [
        ({}, "iam"),
        ({"ApiAuthorization": "iam"}, "iam"),
        ({"ApiAuthorization": "jwt", "JwtIssuer": "https://issuer.example", "JwtAudience": "car-ride"}, "jwt"),
    ],
)
def test_every_route_asks_who_calls(stage: str, parameters: dict[str, str], scheme: str) -> None:
    """Outside of a laptop each operation has the authorizer that was chosen, IAM if none was."""
    deployed = stack(Stage=stage, **parameters)
    assert callers(deployed) == [[[scheme]]] * len(openapi.ROUTES)
    [api] = deployed.of_type("AWS::ApiGatewayV2::Api").values()
    assert scheme in api["Body"]["components"]["securitySchemes"]


def test_a_laptop_asks_nobody() -> None:
    """The local stage is open, whatever else is chosen."""
    assert callers(stack(Stage="local", ApiAuthorization="jwt")) == [[]] * len(openapi.ROUTES)


def test_requests_are_throttled() -> None:
    """The API has a limit of its own, below that of the account."""
    [stage] = stack().of_type("AWS::ApiGatewayV2::Stage").values()
    assert stage["DefaultRouteSettings"]["ThrottlingRateLimit"] > 0
    assert stage["DefaultRouteSettings"]["ThrottlingBurstLimit"] > 0


def test_the_function_publishes_nothing_itself() -> None:
    """State and event are one transaction because the function has no other way of telling: it may not put events."""
    role = stack().of_type("AWS::IAM::Role")["CarRideApiRole"]
    assert "events:" not in json.dumps(role["Policies"])
