"""The routes of an HTTP API that a template gives as an OpenAPI document.

AWS: `Body` of `AWS::ApiGatewayV2::Api`, which is what SAM writes for `AWS::Serverless::HttpApi`, makes the API's
routes, integrations and authorizers; `security` says how a route authorises its callers.

Stock MiniStack: ignores `Body`, so that every path answers 404.

Plugs into CloudFormation's handlers of the type.
"""

from collections.abc import Callable
from typing import Any

from ministack.services import apigateway

from local.engine.cloudformation import Properties, Resource, call, handlers

_INTEGRATION = "x-amazon-apigateway-integration"
_INTEGRATIONS = "x-amazon-apigateway-integrations"
_AUTHORIZER = "x-amazon-apigateway-authorizer"
_ANY = "x-amazon-apigateway-any-method"
_SIGV4 = ("x-amazon-apigateway-authtype", "awssigv4")


class _Document:
    """The document of one API."""

    def __init__(self, api_id: str, body: Properties) -> None:
        self._api_id = api_id
        self._body = body

    def install(self) -> None:
        """Make the API hold what the document says, and nothing else."""
        for store in (apigateway._routes, apigateway._integrations, apigateway._authorizers):
            store[self._api_id] = {}
        schemes = self._body.get("components", {}).get("securitySchemes", {})
        authorizations = {name: self._authorization(name, scheme) for name, scheme in schemes.items()}
        for path, operations in self._body.get("paths", {}).items():
            for method, operation in operations.items():
                if _INTEGRATION in operation:
                    verb = "ANY" if method == _ANY else method.upper()
                    route = {
                        "routeKey": "$default" if path == "/$default" else f"{verb} {path}",
                        "target": f"integrations/{self._integration(operation[_INTEGRATION])}",
                    }
                    for requirement in operation.get("security", self._body.get("security", [])):
                        for name, scopes in requirement.items():
                            route |= authorizations.get(name, {}) | ({"authorizationScopes": scopes} if scopes else {})
                    self._create(apigateway._create_route, route)

    def _create(self, operation: Callable[[str, Properties], Any], request: Properties) -> Properties:
        return call(lambda data: operation(self._api_id, data), request)

    def _integration(self, integration: Properties) -> str:
        if "$ref" in integration:  # one of those that operations share
            integration = self._body["components"][_INTEGRATIONS][integration["$ref"].rpartition("/")[2]]
        request = {
            "integrationType": integration.get("type", "aws_proxy").upper(),
            "integrationUri": integration["uri"],
            "integrationMethod": integration.get("httpMethod", "POST"),
            "payloadFormatVersion": str(integration.get("payloadFormatVersion", "2.0")),
        }
        identity: str = self._create(apigateway._create_integration, request)["integrationId"]
        return identity

    def _authorization(self, name: str, scheme: Properties) -> Properties:
        """What a route that asks for this scheme is created with."""
        if str(scheme.get(_SIGV4[0], "")).lower() == _SIGV4[1]:
            return {"authorizationType": "AWS_IAM"}
        authorizer = dict(scheme.get(_AUTHORIZER, {}))
        is_jwt = authorizer.pop("type", None) == "jwt"
        source = authorizer.get("identitySource") or []
        request = authorizer | {
            "authorizerType": "JWT" if is_jwt else "REQUEST",
            "name": name,
            "identitySource": [source] if isinstance(source, str) else source,
        }
        made = self._create(apigateway._create_authorizer, request)
        return {"authorizationType": "JWT" if is_jwt else "CUSTOM", "authorizerId": made["authorizerId"]}


def apply() -> None:
    """Extend the type."""
    stock = dict(handlers("AWS::ApiGatewayV2::Api"))

    def with_routes(resource: Resource, properties: Properties) -> Resource:
        if "Body" in properties:
            _Document(resource[0], properties["Body"]).install()
        return resource

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        return with_routes(stock["create"](logical_id, properties, stack), properties)

    def update(physical_id: str, old: Properties, new: Properties, stack: str, *more: Any) -> Resource:
        return with_routes(stock["update"](physical_id, old, new, stack, *more), new)

    handlers("AWS::ApiGatewayV2::Api").update(create=create, update=update)
