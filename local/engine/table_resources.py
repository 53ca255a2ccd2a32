"""A table's time to live and its replicas in a template.

AWS: `TimeToLiveSpecification` of `AWS::DynamoDB::Table` and `AWS::DynamoDB::GlobalTable` turns the table's TTL on; a
global table exists in the region of each replica.

Stock MiniStack: drops both, and an update of a global table without a name replaces it by an empty one.

Plugs into CloudFormation's handlers of the two types. The replicas are one and the same table, so a write is seen at
once in every region: there is no lag and there are no conflicts, which is not what AWS does.
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


def _place(name: str, table: Any, properties: Properties, *, former: Properties | None = None) -> None:
    """Let the table be found in every region of its replicas, and no longer in those that it has left."""
    account, home = Scope.current()
    for region in _regions(former or {}) - {home}:
        dynamodb._tables.pop_scoped(account, region, name, None)
        dynamodb._ttl_settings.pop_scoped(account, region, name, None)
    for region in _regions(properties) - {home}:
        dynamodb._tables.set_scoped(account, region, name, table)
        if name in dynamodb._ttl_settings:
            dynamodb._ttl_settings.set_scoped(account, region, name, dynamodb._ttl_settings[name])


def _extend(type_name: str) -> None:
    stock = dict(handlers(type_name))

    def finish(resource: Resource, properties: Properties, former: Properties | None = None) -> Resource:
        name, attributes = resource
        _apply_ttl(name, properties)
        table = dynamodb._tables[name]
        _place(name, table, properties, former=former)
        return name, {**attributes, "TableId": table["TableId"]}

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        return finish(stock["create"](logical_id, properties, stack), properties)

    def update(physical_id: str, old: Properties, new: Properties, stack: str, *more: Any) -> Resource:
        if type_name == _GLOBAL:  # MiniStack would make it a new name, and lose its items
            old, new = ({"TableName": physical_id, **properties} for properties in (old, new))
        return finish(stock["update"](physical_id, old, new, stack, *more), new, old)

    def delete(physical_id: str, properties: Properties) -> None:
        dynamodb._ttl_settings.pop(physical_id, None)
        _place(physical_id, None, {}, former=properties)
        stock["delete"](physical_id, properties)

    handlers(type_name).update(create=create, update=update, delete=delete)


def apply() -> None:
    """Extend both types."""
    _extend("AWS::DynamoDB::Table")
    _extend(_GLOBAL)
