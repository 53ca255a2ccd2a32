"""What the engine ignores of a deployed template: named at deployment, so that nobody waits for it.

The entries were read off MiniStack 1.5.33 and the plug-ins, or tried.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from samtranslator.yaml_helper import yaml_parse

type Properties = Mapping[str, Any]

_MAPPING: Final = "AWS::Lambda::EventSourceMapping"
_STREAM: Final = "a failed batch of a stream comes again, whole, until it succeeds"


class Ignored(NamedTuple):
    """A property, or a whole resource, that has no effect here."""

    resource: str
    """The logical id."""
    property: str
    """Empty for a whole resource."""
    why: str

    def __str__(self) -> str:
        named = f"{self.resource}.{self.property}" if self.property else self.resource
        return f"{named}: {self.why}"


_PROPERTIES: Final[Mapping[str, Mapping[str, str]]] = {
    "AWS::DynamoDB::GlobalTable": {"TimeToLiveSpecification": "no item expires"},
    "AWS::DynamoDB::Table": {"TimeToLiveSpecification": "no item expires"},
    "AWS::Events::EventBus": {
        "LogConfig": "the bus writes no log",
        "Policy": "who may put events is decided by roles alone",
    },
    "AWS::Lambda::Function": {
        "DeadLetterConfig": "set OnFailure in EventInvokeConfig",
        "DurableConfig": "the function runs without durable execution",
        "FileSystemConfigs": "no file system is mounted",
        "VpcConfig": "the function runs in this machine's network",
    },
    "AWS::Scheduler::Schedule": {
        "FlexibleTimeWindow": "it runs at its time",
        "ScheduleExpressionTimezone": "its times are in UTC",
    },
}
"""By type: properties that are accepted, and what holds instead."""
_OF_STREAMS: Final = {
    "BisectBatchOnFunctionError": _STREAM,
    "FunctionResponseTypes": "records that a batch of a stream reports as failed do not come again",
    "MaximumRetryAttempts": _STREAM,
    "ParallelizationFactor": "a shard has one reader",
    "TumblingWindowInSeconds": "batches carry no state",
}
_DEFAULTS: Final[Mapping[str, object]] = {
    "FlexibleTimeWindow": {"Mode": "OFF"},
    "MaximumRetryAttempts": -1,
    "ScheduleExpressionTimezone": "UTC",
    "TimeToLiveSpecification": {"Enabled": False},
}
"""Values that ask for nothing."""
_POLLED: Final = ("sqs", "kinesis", "dynamodb")


def ignored(answer: Mapping[str, Any] | str) -> Iterator[Ignored]:
    """Yield what has no effect of a template, as GetTemplate answers it.

    SAM has transformed it. Without a transform it is the text that was sent.
    """
    template: Mapping[str, Any] = yaml_parse(answer) if isinstance(answer, str) else answer
    for logical_id, resource in template.get("Resources", {}).items():
        properties: Properties = resource.get("Properties") or {}
        type_name: str = resource["Type"]
        reasons = dict(_PROPERTIES.get(type_name, {}))
        if type_name == _MAPPING:
            source = _source_of(properties, template)
            if source not in _POLLED:
                yield Ignored(logical_id, "", "this source is not polled")
                continue
            if source != "sqs":
                reasons |= _of_stream(source, properties)
        for name, why in reasons.items():
            if name in properties and properties[name] != _DEFAULTS.get(name):
                yield Ignored(logical_id, name, why)


def foreign(
    answer: Mapping[str, Any] | str, parameters: Mapping[str, str], machine: str
) -> Iterator[Ignored]:
    """Yield the functions that are built for another processor than ``machine``, arm64 or x86_64.

    Compiled packages of theirs, such as those of a layer, cannot be imported here.
    """
    template: Mapping[str, Any] = yaml_parse(answer) if isinstance(answer, str) else answer
    for logical_id, resource in template.get("Resources", {}).items():
        if resource["Type"] != "AWS::Lambda::Function":
            continue
        named = resource.get("Properties", {}).get("Architectures")
        for wanted in named if isinstance(named, list) else ():
            name = parameters.get(wanted.get("Ref", "")) if isinstance(wanted, Mapping) else wanted
            if name not in {machine, None}:
                why = f"this machine is {machine}, and cannot import what is compiled for {name}"
                yield Ignored(logical_id, "Architectures", why)


def _of_stream(source: str, properties: Properties) -> dict[str, str]:
    """Return what a mapping of a stream ignores; a table's gives up records by their age only."""
    reasons = dict(_OF_STREAMS)
    if source == "kinesis":
        reasons["MaximumRecordAgeInSeconds"] = _STREAM
    if source == "kinesis" or "MaximumRecordAgeInSeconds" not in properties:
        reasons["DestinationConfig"] = _STREAM
    return reasons


def _source_of(mapping: Properties, template: Mapping[str, Any]) -> str:
    """Return the service that a mapping reads, by its ARN or the resource that it names.

    A source that the template takes from elsewhere is believed to be polled.
    """
    arn = mapping.get("EventSourceArn")
    if arn is None:
        return "elsewhere"  # a Kafka cluster of one's own
    if isinstance(arn, str):
        return arn.split(":")[2]
    named = arn.get("Fn::GetAtt") or [arn.get("Ref")]
    logical_id = named.split(".")[0] if isinstance(named, str) else named[0]
    resource = template["Resources"].get(logical_id)
    if resource is None:
        return "sqs"
    return str(resource["Type"].split("::")[1].lower())
