"""Composite alarms and alarms on metric math in a template.

AWS: `AWS::CloudWatch::CompositeAlarm` is a resource; an `AWS::CloudWatch::Alarm` may have `Metrics` instead of one
metric.

Stock MiniStack: does not know the first and refuses the second.

Plugs into CloudFormation's handlers. Expressions are recorded and not computed: such an alarm stays without data.
"""

from typing import Any

from ministack.services import cloudwatch
from ministack.services.cloudformation import provisioners

from local.engine.cloudformation import Properties, Resource, physical_name, register

_stock_record = provisioners._cw_metric_alarm_record


def _create_composite(logical_id: str, properties: Properties, stack: str) -> Resource:
    name = properties.get("AlarmName") or physical_name(stack, logical_id, 255)
    return _put_composite(name, {}, properties, stack)


def _put_composite(name: str, _old: Properties, properties: Properties, _stack: str) -> Resource:
    status, _, body = cloudwatch._put_composite_alarm({}, {**properties, "AlarmName": name}, False, True)
    if status >= 400:  # noqa: PLR2004 - HTTP
        raise ValueError(body.decode() if isinstance(body, bytes) else body)
    return name, {"Arn": cloudwatch._composite_alarms[name]["AlarmArn"]}


def _delete_composite(physical_id: str, _properties: Properties) -> None:
    cloudwatch._composite_alarms.pop(physical_id, None)


def _record(name: str, properties: Properties) -> dict[str, Any]:
    metrics = properties.get("Metrics")
    if not metrics:
        record: dict[str, Any] = _stock_record(name, properties)
        return record
    # MiniStack evaluates one metric an alarm; a name that nobody publishes leaves this one without data.
    stand_in = {"Namespace": "Engine/MetricMath", "MetricName": name, "Metrics": None}
    return {**_stock_record(name, {**properties, **stand_in}), "Metrics": metrics}


def apply() -> None:
    """Add the composite alarm and let an alarm have metrics."""
    register("AWS::CloudWatch::CompositeAlarm", _create_composite, _delete_composite, _put_composite)
    provisioners._cw_metric_alarm_record = _record
