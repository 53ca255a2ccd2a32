"""Types of resources that are recorded only.

AWS: schema registries and schemas, policies of buses, the delivery of a service's own logs, saved queries of CloudWatch
Logs Insights, composite alarms, CodeDeploy's applications and deployment groups are resources; an alarm may watch an
expression.

Stock MiniStack: refuses a template that has them.

Plugs into CloudFormation's handlers, and into `provisioners._cw_metric_alarm_record`. `Ref` and `Fn::GetAtt` of a
recorded resource work. It does nothing: such an alarm stays without data.
"""

import uuid
from typing import Any

from ministack.services.cloudformation import provisioners

from local.engine.cloudformation import Properties, Resource, physical_name, register
from local.engine.scope import Scope

_ARN = "arn:aws:{service}:{region}:{account}:"
_TYPES: dict[str, tuple[str | None, dict[str, str]]] = {
    "AWS::EventSchemas::Registry": (
        "RegistryName",
        {"RegistryName": "{name}", "RegistryArn": f"{_ARN}registry/{{name}}"},
    ),
    "AWS::EventSchemas::Schema": (
        "SchemaName",
        {"SchemaName": "{name}", "SchemaVersion": "1", "SchemaArn": f"{_ARN}schema/{{RegistryName}}/{{name}}"},
    ),
    "AWS::Events::EventBusPolicy": (None, {}),
    "AWS::Logs::DeliverySource": ("Name", {"Arn": f"{_ARN}delivery-source:{{name}}"}),
    "AWS::Logs::DeliveryDestination": ("Name", {"Arn": f"{_ARN}delivery-destination:{{name}}"}),
    "AWS::Logs::Delivery": (None, {"DeliveryId": "{name}", "Arn": f"{_ARN}delivery:{{name}}"}),
    "AWS::Logs::QueryDefinition": (None, {"QueryDefinitionId": "{name}"}),
    "AWS::CloudWatch::CompositeAlarm": ("AlarmName", {"Arn": f"{_ARN}alarm:{{name}}"}),
    "AWS::CodeDeploy::Application": ("ApplicationName", {}),
    "AWS::CodeDeploy::DeploymentGroup": ("DeploymentGroupName", {}),
}
"""By type: the property that names it and that `Ref` returns (none: a UUID), and formats of its attributes."""

_stock_alarm = provisioners._cw_metric_alarm_record


def _record(type_name: str, named_by: str | None, attributes: dict[str, str]) -> None:

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        name = (properties.get(named_by) or physical_name(stack, logical_id, 64)) if named_by else str(uuid.uuid4())
        return update(name, {}, properties, stack)

    def update(name: str, _old: Properties, new: Properties, _stack: str) -> Resource:
        account, region = Scope.current()
        service = type_name.split("::")[1].lower().removeprefix("event")
        known: dict[str, Any] = {**new, "name": name, "service": service, "account": account, "region": region}
        return name, {attribute: form.format_map(known) for attribute, form in attributes.items()}

    register(type_name, create, lambda _name, _properties: None, update)


def _alarm(name: str, properties: Properties) -> dict[str, Any]:
    if "Metrics" in properties:  # MiniStack evaluates one metric an alarm; nobody publishes this one
        properties = {**properties, "Namespace": "Engine/MetricMath", "MetricName": name, "Metrics": None}
    record: dict[str, Any] = _stock_alarm(name, properties)
    return record


def apply(_settings: object) -> None:
    """Add the types."""
    for type_name, (named_by, attributes) in _TYPES.items():
        _record(type_name, named_by, attributes)
    provisioners._cw_metric_alarm_record = _alarm
