"""Types of resources whose being there is all that the laptop needs.

AWS: schema registries and schemas, the delivery of a service's own logs, saved queries of CloudWatch Logs Insights,
CodeDeploy's applications and deployment groups are resources. Stock MiniStack refuses a template that has them.

Plugs into CloudFormation's handlers. They are recorded: `Ref` and `Fn::GetAtt` work, and nothing else does.
"""

import uuid
from typing import Any

from local.engine.cloudformation import Properties, Resource, physical_name, register
from local.engine.scope import Scope


def _record(type_name: str, named_by: str | None, **attributes: str) -> None:
    """Register a type.

    Args:
        type_name: As in a template.
        named_by: The property that names it and that `Ref` returns; a type without one gets a UUID.
        **attributes: For `Fn::GetAtt`: a format of ``{name}``, ``{region}``, ``{account}`` and of the properties.
    """

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        name = (properties.get(named_by) or physical_name(stack, logical_id, 64)) if named_by else str(uuid.uuid4())
        return name, fill(name, properties)

    def update(physical_id: str, _old: Properties, new: Properties, _stack: str) -> Resource:
        return physical_id, fill(physical_id, new)

    def fill(name: str, properties: Properties) -> Properties:
        account, region = Scope.current()
        known: dict[str, Any] = {**properties, "name": name, "account": account, "region": region}
        return {attribute: form.format_map(known) for attribute, form in attributes.items()}

    register(type_name, create, lambda _physical_id, _properties: None, update)


def apply() -> None:
    """Add the types."""
    schemas = "arn:aws:schemas:{region}:{account}"
    _record(
        "AWS::EventSchemas::Registry",
        "RegistryName",
        RegistryName="{name}",
        RegistryArn=schemas + ":registry/{name}",
    )
    _record(
        "AWS::EventSchemas::Schema",
        "SchemaName",
        SchemaName="{name}",
        SchemaVersion="1",
        SchemaArn=schemas + ":schema/{RegistryName}/{name}",
    )
    logs = "arn:aws:logs:{region}:{account}"
    _record("AWS::Logs::DeliverySource", "Name", Arn=logs + ":delivery-source:{name}")
    _record("AWS::Logs::DeliveryDestination", "Name", Arn=logs + ":delivery-destination:{name}")
    _record("AWS::Logs::Delivery", None, DeliveryId="{name}", Arn=logs + ":delivery:{name}")
    _record("AWS::Logs::QueryDefinition", None, QueryDefinitionId="{name}")
    _record("AWS::CodeDeploy::Application", "ApplicationName")
    _record("AWS::CodeDeploy::DeploymentGroup", "DeploymentGroupName")
