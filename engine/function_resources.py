"""A function's reserved concurrency and URL in a template, and its end.

Stock MiniStack drops `ReservedConcurrentExecutions` from a template, where 0 switches a function
off on AWS, and keeps the processes of a function that is deleted with its stack. `FunctionUrl` has
AWS's form, which no name server knows here; the engine serves it below ``/_aws/lambda-url/``.
"""

from ministack.core import lambda_runtime
from ministack.services import lambda_svc
from ministack.services.cloudformation import provisioners

from engine.cloudformation import Properties, extend, handlers
from engine.process import HOST
from engine.scope import Scope
from engine.settings import Settings


def _reserve(name: str, properties: Properties) -> None:
    reserved = properties.get("ReservedConcurrentExecutions")
    lambda_svc._functions[name]["concurrency"] = None if reserved is None else int(reserved)


def apply(settings: Settings) -> None:
    """Extend the types."""
    stock = handlers("AWS::Lambda::Function")["delete"]

    def delete(name: str, properties: Properties) -> None:
        stock(name, properties)
        account, region = Scope.current()
        lambda_runtime.invalidate_worker(name, account=account, region=region)

    def url_attributes(config: Properties) -> Properties:
        name = config["FunctionUrl"].partition("://")[2].partition(".")[0]
        return config | {"FunctionUrl": f"http://{HOST}:{settings.port}/_aws/lambda-url/{name}/"}

    extend("AWS::Lambda::Function", _reserve)
    handlers("AWS::Lambda::Function")["delete"] = delete
    provisioners._lambda_url_attributes = url_attributes
