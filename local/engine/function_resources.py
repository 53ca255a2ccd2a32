"""A function's reserved concurrency in a template, and its end.

AWS: `ReservedConcurrentExecutions` of `AWS::Lambda::Function` bounds how many of its invocations run at once; 0
switches the function off. A deleted function has no environments left.

Stock MiniStack: knows the setting from its own operation and drops it from a template. The processes of a function that
goes with its stack stay.

Plugs into CloudFormation's handlers of the type.
"""

from typing import Any

from ministack.core import lambda_runtime
from ministack.core.responses import get_account_id, get_region
from ministack.services import lambda_svc

from local.engine.cloudformation import Properties, Resource, handlers


def _reserve(resource: Resource, properties: Properties) -> Resource:
    reserved = properties.get("ReservedConcurrentExecutions")
    lambda_svc._functions[resource[0]]["concurrency"] = None if reserved is None else int(reserved)
    return resource


def apply() -> None:
    """Extend the type."""
    stock = dict(handlers("AWS::Lambda::Function"))

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        return _reserve(stock["create"](logical_id, properties, stack), properties)

    def update(physical_id: str, old: Properties, new: Properties, stack: str, *more: Any) -> Resource:
        return _reserve(stock["update"](physical_id, old, new, stack, *more), new)

    def delete(physical_id: str, properties: Properties) -> None:
        stock["delete"](physical_id, properties)
        lambda_runtime.invalidate_worker(physical_id, account=get_account_id(), region=get_region())

    handlers("AWS::Lambda::Function").update(create=create, update=update, delete=delete)
