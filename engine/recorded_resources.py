"""Types of resources that are recorded only.

These are schemas, log delivery, saved queries, CodeDeploy and composite alarms.

Stock MiniStack refuses a template that has them, or an alarm that watches an expression. Here `Ref`
is the resource's name, or a UUID, and `Fn::GetAtt` of the attributes that templates use works. The
resource does nothing: such an alarm stays without data.
"""

import uuid

from ministack.services.cloudformation import provisioners

from engine.cloudformation import Properties, Resource, physical_name, register
from engine.scope import Scope

_NAMED_BY: dict[str, str | None] = {
    "AWS::EventSchemas::Registry": "RegistryName",
    "AWS::EventSchemas::Schema": "SchemaName",
    "AWS::Events::EventBusPolicy": None,
    "AWS::Logs::DeliverySource": "Name",
    "AWS::Logs::DeliveryDestination": "Name",
    "AWS::Logs::Delivery": None,
    "AWS::Logs::QueryDefinition": None,
    "AWS::CloudWatch::CompositeAlarm": "AlarmName",
    "AWS::CodeDeploy::Application": "ApplicationName",
    "AWS::CodeDeploy::DeploymentGroup": "DeploymentGroupName",
}
"""The property that names a resource, by type."""

_stock_alarm = provisioners._cw_metric_alarm_record


def _record(type_name: str, named_by: str | None) -> None:
    _, service, kind = type_name.split("::")

    def create(logical_id: str, properties: Properties, stack: str) -> Resource:
        return update(new_name(logical_id, properties, stack), {}, properties, stack)

    def new_name(logical_id: str, properties: Properties, stack: str) -> str:
        if named_by is None:
            return str(uuid.uuid4())
        given: str | None = properties.get(named_by)
        return given or physical_name(stack, logical_id, 64)

    def update(name: str, _old: Properties, _new: Properties, _stack: str) -> Resource:
        account, region = Scope.current()
        namespace = service.lower().removeprefix("event")
        arn = f"arn:aws:{namespace}:{region}:{account}:{kind.lower()}:{name}"
        return name, {"Arn": arn, f"{kind}Arn": arn, named_by or "Id": name}

    register(type_name, create, lambda _name, _properties: None, update)


def _alarm(name: str, properties: Properties) -> Properties:
    # MiniStack evaluates one metric an alarm; nobody publishes this one.
    if "Metrics" in properties:
        properties = {
            **properties,
            "Namespace": "Engine/MetricMath",
            "MetricName": name,
            "Metrics": None,
        }
    record: Properties = _stock_alarm(name, properties)
    return record


def apply(_settings: object) -> None:
    """Add the types."""
    for type_name, named_by in _NAMED_BY.items():
        _record(type_name, named_by)
    provisioners._cw_metric_alarm_record = _alarm
