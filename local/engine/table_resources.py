"""A table's time to live and its replicas in a template.

AWS: `TimeToLiveSpecification` of `AWS::DynamoDB::Table` and `AWS::DynamoDB::GlobalTable` turns the table's TTL on; a
global table exists in the region of each replica.

Stock MiniStack: drops both, and an update of a global table without a name replaces it by an empty one. It has replicas
from its own operation.

Plugs into CloudFormation's handlers of the two types. A write is seen in every replica at once, which is not what AWS
does.
"""

from typing import Any

from ministack.services import dynamodb

from local.engine.cloudformation import Properties, Resource, call, handlers
from local.engine.scope import Scope

_GLOBAL = "AWS::DynamoDB::GlobalTable"


def _apply_ttl(name: str, properties: Properties) -> None:
    former = dynamodb._ttl_settings.get(name)
    if former is None and "TimeToLiveSpecification" not in properties:
        return
    off = {"AttributeName": (former or {}).get("AttributeName"), "Enabled": False}
    specification = properties.get("TimeToLiveSpecification", off)
    enabled = str(specification["Enabled"]).lower() == "true"
    call(dynamodb._update_ttl, {"TableName": name, "TimeToLiveSpecification": {**specification, "Enabled": enabled}})


def _regions(properties: Properties) -> set[str]:
    return {replica["Region"] for replica in properties.get("Replicas") or []}


def _replicate(name: str, properties: Properties) -> None:
    """Let the table have a replica in every region that the template names, and in no other."""
    home = Scope.current().region
    wanted = _regions(properties) - {home}
    there = set(dynamodb._replica_group(dynamodb._tables[name])) - {home}
    updates = [{"Create": {"RegionName": region}} for region in sorted(wanted - there)]
    updates += [{"Delete": {"RegionName": region}} for region in sorted(there - wanted)]
    if updates:
        call(dynamodb._update_table, {"TableName": name, "ReplicaUpdates": updates})


def _extend(type_name: str) -> None:
    stock = dict(handlers(type_name))

    def finish(resource: Resource, properties: Properties) -> Resource:
        name, attributes = resource
        _apply_ttl(name, properties)
        _replicate(name, properties)
        return name, {**attributes, "TableId": dynamodb._tables[name]["TableId"]}

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        return finish(stock["create"](logical_id, properties, stack), properties)

    def update(physical_id: str, old: Properties, new: Properties, stack: str, *more: Any) -> Resource:
        if type_name == _GLOBAL:  # MiniStack would make it a new name, and lose its items
            old, new = ({"TableName": physical_id, **properties} for properties in (old, new))
        return finish(stock["update"](physical_id, old, new, stack, *more), new)

    def delete(physical_id: str, properties: Properties) -> None:
        dynamodb._ttl_settings.pop(physical_id, None)
        if physical_id in dynamodb._tables:
            _replicate(physical_id, {})
        stock["delete"](physical_id, properties)

    handlers(type_name).update(create=create, update=update, delete=delete)


def apply() -> None:
    """Extend both types."""
    _extend("AWS::DynamoDB::Table")
    _extend(_GLOBAL)
