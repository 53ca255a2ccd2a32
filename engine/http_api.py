"""The routes of an HTTP API that a template gives as an OpenAPI document.

Stock MiniStack ignores `Body` of `AWS::ApiGatewayV2::Api`, which is what SAM writes for
`AWS::Serverless::HttpApi`, so that every path answers 404. Here AWS_IAM is the only way to
authorise callers; a document with another one, such as JWT, is refused.
"""

from itertools import chain

from ministack.services import apigateway

from engine.cloudformation import Properties, call, extend

_INTEGRATION = "x-amazon-apigateway-integration"


def _install(api_id: str, properties: Properties) -> None:
    body = properties.get("Body")
    if body is None:
        return
    apigateway._routes[api_id] = {}
    apigateway._integrations[api_id] = {}
    for path, operations in body.get("paths", {}).items():
        for method, operation in operations.items():
            if _INTEGRATION not in operation:
                continue
            integration = _integration(api_id, body, operation[_INTEGRATION])
            security = operation.get("security", body.get("security", []))
            route = {
                "routeKey": _route_key(method, path),
                "target": f"integrations/{integration}",
                "authorizationType": _authorization(body, security),
            }
            call(apigateway._create_route, api_id, route)


def _route_key(method: str, path: str) -> str:
    if path == "/$default":
        return "$default"
    if method == "x-amazon-apigateway-any-method":
        return f"ANY {path}"
    return f"{method.upper()} {path}"


def _integration(api_id: str, body: Properties, integration: Properties) -> str:
    if "$ref" in integration:  # one of those that operations share
        name = integration["$ref"].rpartition("/")[2]
        integration = body["components"][f"{_INTEGRATION}s"][name]
    request = {
        "integrationType": integration.get("type", "aws_proxy").upper(),
        "integrationUri": integration["uri"],
        "payloadFormatVersion": str(integration.get("payloadFormatVersion", "2.0")),
    }
    return str(call(apigateway._create_integration, api_id, request)["integrationId"])


def _authorization(body: Properties, security: list[Properties]) -> str:
    for name in chain.from_iterable(security):
        scheme = body["components"]["securitySchemes"][name]
        if str(scheme.get("x-amazon-apigateway-authtype")).lower() != "awssigv4":
            raise ValueError(f"the engine authorises callers with AWS_IAM only, not with {name}")
    return "AWS_IAM" if security else "NONE"


def apply(_settings: object) -> None:
    """Extend the type."""
    extend("AWS::ApiGatewayV2::Api", _install)
