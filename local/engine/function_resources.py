"""A function's reserved concurrency in a template, and its end.

AWS: `ReservedConcurrentExecutions` of `AWS::Lambda::Function` bounds how many of its invocations run at once; 0
switches the function off. A deleted function has no environments left.

Stock MiniStack: drops the setting from a template. The processes of a function that is deleted with its stack stay.

Plugs into CloudFormation's handlers of the type.
"""

from ministack.core import lambda_runtime
from ministack.services import lambda_svc

from local.engine.cloudformation import Properties, extend, handlers
from local.engine.scope import Scope


def _reserve(name: str, properties: Properties) -> None:
    reserved = properties.get("ReservedConcurrentExecutions")
    lambda_svc._functions[name]["concurrency"] = None if reserved is None else int(reserved)


def apply() -> None:
    """Extend the type."""
    extend("AWS::Lambda::Function", _reserve)
    stock = handlers("AWS::Lambda::Function")["delete"]

    def delete(name: str, properties: Properties) -> None:
        stock(name, properties)
        account, region = Scope.current()
        lambda_runtime.invalidate_worker(name, account=account, region=region)

    handlers("AWS::Lambda::Function")["delete"] = delete
