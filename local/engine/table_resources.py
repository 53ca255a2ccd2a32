"""The replicas of a global table in a template.

AWS: `AWS::DynamoDB::GlobalTable` exists in the region of each replica.

Stock MiniStack: drops the replicas, and an update of a table without a name replaces it by an empty one.

Plugs into CloudFormation's handlers of the type. A write is seen in every replica at once, which is not what AWS does.
"""

from typing import Any

from ministack.services import dynamodb

from local.engine.cloudformation import Properties, Resource, call, extend, handlers
from local.engine.scope import Scope

_TYPE = "AWS::DynamoDB::GlobalTable"


def _replicate(name: str, properties: Properties) -> None:
    """Give the table a replica in every region that the template names, and in no other."""
    home = {Scope.current().region}
    wanted = {replica["Region"] for replica in properties.get("Replicas", [])} - home
    there = set(dynamodb._replica_group(dynamodb._tables[name])) - home
    updates = [{"Create": {"RegionName": region}} for region in sorted(wanted - there)]
    updates += [{"Delete": {"RegionName": region}} for region in sorted(there - wanted)]
    if updates:
        call(dynamodb._update_table, {"TableName": name, "ReplicaUpdates": updates})


def apply() -> None:
    """Extend the type."""
    extend(_TYPE, _replicate)
    replicated = dict(handlers(_TYPE))

    def update(name: str, old: Properties, new: Properties, stack: str, *more: Any) -> Resource:
        # With its name the table is kept; MiniStack would make a new name, and lose the items.
        old, new = ({"TableName": name, **properties} for properties in (old, new))
        updated: Resource = replicated["update"](name, old, new, stack, *more)
        return updated

    def delete(name: str, properties: Properties) -> None:
        if name in dynamodb._tables:
            _replicate(name, {})
        replicated["delete"](name, properties)

    handlers(_TYPE).update(update=update, delete=delete)
