"""Updates of nested stacks.

Stock MiniStack forgets the attributes of a resource that an update of a nested stack leaves as it
is, so that a `Fn::GetAtt` of the resource fails the update.
"""

from typing import Any

from ministack.services.cloudformation import provisioners

from engine.cloudformation import Properties, Resource
from engine.scope import Scope


def apply(_settings: object) -> None:
    """Keep the latest attributes of each resource, by account and region, type and physical id."""
    stock_provision = provisioners._provision_resource
    stock_update = provisioners._update_resource
    attributes: dict[tuple[object, str, str], Properties] = {}

    def remembered(kind: str, resource: Resource) -> Resource:
        attributes[Scope.current(), kind, resource[0]] = resource[1]
        return resource

    def provision_resource(kind: str, *request: Any, **options: Any) -> Resource:
        return remembered(kind, stock_provision(kind, *request, **options))

    def update_resource(
        kind: str, name: str, *request: Any, old_attrs: Properties | None = None
    ) -> Resource:
        known = old_attrs or attributes.get((Scope.current(), kind, name))
        return remembered(kind, stock_update(kind, name, *request, old_attrs=known))

    provisioners._provision_resource = provision_resource
    provisioners._update_resource = update_resource
