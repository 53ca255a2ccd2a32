"""The replicas of a global table in a template.

Stock MiniStack drops the replicas of `AWS::DynamoDB::GlobalTable`, replaces a table without a name
by an empty one when it is updated, and imports only plain tables into a stack. A change set
compares all resources, so none can be imported that a condition left out before. Here a write is
seen in every replica at once, which is not what AWS does.
"""

from typing import Any

from ministack.services import dynamodb
from ministack.services.cloudformation import changesets

from engine.cloudformation import Properties, Resource, call, extend, handlers
from engine.scope import Scope

_TYPE = "AWS::DynamoDB::GlobalTable"
_PLAIN = "AWS::DynamoDB::Table"


def _replicate(name: str, properties: Properties) -> None:
    """Give the table a replica in every region that the template names, and in no other."""
    home = Scope.current().region
    replicas = properties.get("Replicas", [])
    wanted = {replica["Region"] for replica in replicas} - {home}
    table = dynamodb._tables[name]
    present = set(dynamodb._replica_group(table)) - {home}
    added = sorted(wanted - present)
    removed = sorted(present - wanted)
    updates = [{"Create": {"RegionName": region}} for region in added]
    updates += [{"Delete": {"RegionName": region}} for region in removed]
    if updates:
        call(dynamodb._update_table, {"TableName": name, "ReplicaUpdates": updates})


def apply(_settings: object) -> None:
    """Extend the type."""
    extend(_TYPE, _replicate)
    stock = dict(handlers(_TYPE))
    stock_resolve = changesets._resolve_props_for_diff

    def update(
        name: str, old: Properties, new: Properties, stack_name: str, *more: Any
    ) -> Resource:
        # With its name the table is kept; MiniStack would make a new name, and lose the items.
        named_old = {"TableName": name, **old}
        named_new = {"TableName": name, **new}
        updated: Resource = stock["update"](name, named_old, named_new, stack_name, *more)
        return updated

    def delete(name: str, properties: Properties) -> None:
        if name in dynamodb._tables:
            _replicate(name, {})
        stock["delete"](name, properties)

    def resolve_active(template: Properties, params: Properties, *names: str) -> Any:
        if template:
            conditions = changesets._evaluate_conditions(template, params)
            resources = template["Resources"].items()
            active = {
                name: each
                for name, each in resources
                if conditions.get(each.get("Condition"), True)
            }
            template = {**template, "Resources": active}
        return stock_resolve(template, params, *names)

    handlers(_TYPE).update(
        {"update": update, "delete": delete, "import": handlers(_PLAIN)["import"]}
    )
    changesets._IMPORT_LOOKUPS[_TYPE] = changesets._IMPORT_LOOKUPS[_PLAIN]
    changesets._resolve_props_for_diff = resolve_active
