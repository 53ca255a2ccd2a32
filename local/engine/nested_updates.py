"""Updates of nested stacks.

AWS: a resource that an update of a nested stack leaves as it is keeps its attributes for `Fn::GetAtt`.

Stock MiniStack: forgets them, so a `Fn::GetAtt` of the resource fails the update.

Plugs into `provisioners._provision_resource` and `provisioners._update_resource`.
"""

from typing import Any

from ministack.services.cloudformation import provisioners

from local.engine.cloudformation import Properties, Resource
from local.engine.scope import Scope

_stock_provision = provisioners._provision_resource
_stock_update = provisioners._update_resource
_attributes: dict[tuple[object, str, str], Properties] = {}
"""The latest attributes of a resource, by account and region, type and physical id."""


def _provision(resource_type: str, *request: Any, **options: Any) -> Resource:
    return _remembered(resource_type, _stock_provision(resource_type, *request, **options))


def _update(resource_type: str, physical_id: str, *request: Any, old_attrs: Properties | None = None) -> Resource:
    known = old_attrs or _attributes.get((Scope.current(), resource_type, physical_id))
    return _remembered(resource_type, _stock_update(resource_type, physical_id, *request, old_attrs=known))


def _remembered(resource_type: str, resource: Resource) -> Resource:
    _attributes[Scope.current(), resource_type, resource[0]] = resource[1]
    return resource


def apply(_settings: object) -> None:
    """Keep the attributes."""
    provisioners._provision_resource = _provision
    provisioners._update_resource = _update
