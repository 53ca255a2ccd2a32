"""How a plug-in adds a resource type to MiniStack's CloudFormation, or extends one.

MiniStack keeps a handler for each type: `create(logical_id, properties, stack)` returns the
physical id and the attributes for `Fn::GetAtt`, `update(physical_id, old, new, stack)` likewise,
`delete(physical_id, properties)` nothing.
"""

import json
from collections.abc import Callable
from typing import Any

from ministack.services.cloudformation import provisioners

type Properties = dict[str, Any]
type Resource = tuple[str, Properties]
type Create = Callable[[str, Properties, str], Resource]
type Update = Callable[[str, Properties, Properties, str], Resource]
type Delete = Callable[[str, Properties], object]


def handlers(type_name: str) -> dict[str, Callable[..., Any]]:
    """Return MiniStack's handlers of a type, to be read or replaced."""
    found: dict[str, Callable[..., Any]] = provisioners._RESOURCE_HANDLERS.setdefault(type_name, {})
    return found


def register(type_name: str, create: Create, delete: Delete, update: Update | None = None) -> None:
    """Add a type. Without ``update``, an update deletes and creates.

    The resource may be gone when it is deleted.
    """

    def replace(physical_id: str, old: Properties, new: Properties, stack: str) -> Resource:
        delete(physical_id, old)
        return create(physical_id, new, stack)

    handlers(type_name).update(create=create, update=update or replace, delete=delete)


def extend(type_name: str, finish: Callable[[str, Properties], None]) -> None:
    """Call ``finish(physical_id, properties)`` after each creation and update of a stock type."""
    stock = dict(handlers(type_name))

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        resource: Resource = stock["create"](logical_id, properties, stack)
        finish(resource[0], properties)
        return resource

    def update(
        physical_id: str, old: Properties, new: Properties, stack: str, *more: Any
    ) -> Resource:
        resource: Resource = stock["update"](physical_id, old, new, stack, *more)
        finish(resource[0], new)
        return resource

    handlers(type_name).update(create=create, update=update)


def name_what_is_missing() -> None:
    """Have a handler that misses a property say so; MiniStack's reason is the bare name."""
    for type_name, of_type in provisioners._RESOURCE_HANDLERS.items():
        for step in ("create", "update"):
            if step in of_type:
                of_type[step] = _naming(type_name, of_type[step])


def _naming(type_name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    def named(*arguments: Any) -> Any:
        try:
            return handler(*arguments)
        except KeyError as error:
            raise ValueError(
                f"the engine needs {error} to make an {type_name}: add it to the resource, or "
                "leave the resource out by a condition"
            ) from error

    return named


def physical_name(stack: str, logical_id: str, length: int) -> str:
    """Return the name that CloudFormation gives a resource without one in the template."""
    return str(provisioners._physical_name(stack, logical_id, max_len=length))


def call(operation: Callable[..., Any], *request: Any) -> Properties:
    """Call one of MiniStack's operations as its own client would.

    Raise ValueError with the reason if it refuses.
    """
    status, _, body = operation(*request)
    answer: Properties = json.loads(body or b"{}")
    if status >= 400:  # noqa: PLR2004 - HTTP
        raise ValueError(answer.get("message") or answer.get("Message") or body)
    return answer
