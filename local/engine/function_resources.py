"""A function's reserved concurrency and URL in a template, and its end.

AWS: `ReservedConcurrentExecutions` of `AWS::Lambda::Function` bounds how many of its invocations run at once; 0
switches the function off. A deleted function has no environments left. `FunctionUrl` of `AWS::Lambda::Url` leads to it.

Stock MiniStack: drops the setting from a template. The processes of a function that is deleted with its stack stay. The
URL has AWS's form, which no name server knows here; the engine serves it below ``/_aws/lambda-url/``.

Plugs into CloudFormation's handlers of the types.
"""

import os

from ministack.core import lambda_runtime
from ministack.services import lambda_svc
from ministack.services.cloudformation import provisioners

from local.engine.cloudformation import Properties, extend, handlers
from local.engine.scope import Scope


def _reserve(name: str, properties: Properties) -> None:
    reserved = properties.get("ReservedConcurrentExecutions")
    lambda_svc._functions[name]["concurrency"] = None if reserved is None else int(reserved)


def _attributes(config: Properties) -> Properties:
    name = config["FunctionUrl"].partition("://")[2].partition(".")[0]
    return config | {"FunctionUrl": f"http://127.0.0.1:{os.environ['GATEWAY_PORT']}/_aws/lambda-url/{name}/"}


def apply(_settings: object) -> None:
    """Extend the types."""
    provisioners._lambda_url_attributes = _attributes
    extend("AWS::Lambda::Function", _reserve)
    stock = handlers("AWS::Lambda::Function")["delete"]

    def delete(name: str, properties: Properties) -> None:
        stock(name, properties)
        account, region = Scope.current()
        lambda_runtime.invalidate_worker(name, account=account, region=region)

    handlers("AWS::Lambda::Function")["delete"] = delete
