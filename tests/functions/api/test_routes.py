"""The routes of the API in the template are those of its table."""

from typing import Any, Final

import pytest

from api.routes import DESCRIPTION, ROUTES
from tools.transformed import Stack, stack

pytestmark = pytest.mark.integration

TOKENS: Final = {
    "JwtIssuer": "https://issuer.example",
    "JwtAudience": "car-ride",
}


def schemes(deployed: Stack) -> dict[str, list[str]]:
    """Return the security schemes of each of the template's operations, by its route's key."""
    [api] = deployed.of_type("AWS::ApiGatewayV2::Api").values()
    found: dict[str, list[str]] = {}
    for path, operations in api["Body"]["paths"].items():
        for method, operation in operations.items():
            required: Any = operation["security"]
            key = f"{method.upper()} {path}"
            found[key] = [scheme for requirement in required for scheme in requirement]
            assert set(found[key]) <= api["Body"]["components"]["securitySchemes"].keys()
    return found


@pytest.mark.parametrize(
    ("parameters", "callers"),
    [
        ({"Stage": "dev"}, ["iam"]),
        ({"Stage": "prod", "JwtIssuer": "", "JwtAudience": ""}, ["iam"]),
        ({"Stage": "dev", **TOKENS}, ["jwt"]),
        ({"Stage": "prod", **TOKENS}, ["jwt"]),
        ({"Stage": "local", **TOKENS}, []),
    ],
)
def test_the_template_has_the_routes_of_the_table_and_each_asks_who_calls(
    parameters: dict[str, str], callers: list[str]
) -> None:
    """API Gateway routes what the function answers, with an authorizer except in `local`."""
    assert schemes(stack(**parameters)) == dict.fromkeys([*ROUTES, DESCRIPTION], callers)


def test_requests_are_throttled() -> None:
    """The API has a request limit."""
    [stage] = stack().of_type("AWS::ApiGatewayV2::Stage").values()
    settings = stage["DefaultRouteSettings"]
    assert settings["ThrottlingRateLimit"] == settings["ThrottlingBurstLimit"] == {"Ref": "ApiRate"}
