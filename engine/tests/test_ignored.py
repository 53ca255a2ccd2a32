"""What has no effect on the engine is named at deployment, and nothing else is."""

from typing import Any

import pytest

from engine.client import LocalCloud
from engine.ignored import foreign, ignored

TABLE: Any = {"Type": "AWS::DynamoDB::Table", "Properties": {}}
QUEUE: Any = {"Type": "AWS::SQS::Queue"}
STREAM: Any = {"Type": "AWS::Kinesis::Stream", "Properties": {"ShardCount": 1}}
EXPIRES: Any = {"TimeToLiveSpecification": {"AttributeName": "expiry", "Enabled": True}}
CLUSTER: Any = {"SelfManagedEventSource": {"Endpoints": {"KafkaBootstrapServers": ["b:9092"]}}}

WITHOUT_TRANSFORM = """
Resources:
  Queue: {Type: AWS::SQS::Queue}
  Bus:
    Type: AWS::Events::EventBus
    Properties: {Name: !GetAtt Queue.QueueName, LogConfig: {Level: INFO}}
"""


def named(type_name: str, properties: Any, **others: Any) -> list[str]:
    """Return what is named of a resource: its properties, or nothing for the whole resource."""
    resources = {"It": {"Type": type_name, "Properties": properties}, **others}
    return [each.property for each in ignored({"Resources": resources}) if each.resource == "It"]


def mapping(source: Any, **properties: Any) -> list[str]:
    """Return what is named of a mapping that reads this source."""
    reads = {"EventSourceArn": {"Fn::GetAtt": ["Source", "Arn"]}} if source else CLUSTER
    return named("AWS::Lambda::EventSourceMapping", {**reads, **properties}, Source=source or QUEUE)


@pytest.mark.parametrize(
    ("type_name", "properties", "expected"),
    [
        ("AWS::DynamoDB::Table", EXPIRES, ["TimeToLiveSpecification"]),
        ("AWS::DynamoDB::Table", {"TimeToLiveSpecification": {"Enabled": False}}, []),
        ("AWS::Lambda::Function", {"DurableConfig": {"Enabled": True}}, ["DurableConfig"]),
        ("AWS::Scheduler::Schedule", {"FlexibleTimeWindow": {"Mode": "OFF"}}, []),
        ("AWS::Scheduler::Schedule", {"ScheduleExpressionTimezone": "UTC"}, []),
        (
            "AWS::Scheduler::Schedule",
            {"ScheduleExpressionTimezone": "Europe/Berlin"},
            ["ScheduleExpressionTimezone"],
        ),
        ("AWS::SQS::Queue", {"RedrivePolicy": {}}, []),
    ],
)
def test_a_property_without_effect_is_named(
    type_name: str, properties: Any, expected: list[str]
) -> None:
    """A value that asks for nothing is not."""
    assert named(type_name, properties) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["arm64"], ["Architectures"]),
        (["x86_64"], []),
        ([{"Ref": "Architecture"}], ["Architectures"]),
        ([{"Ref": "Unknown"}], []),
        ([{"Fn::If": ["IsArm", "arm64", "x86_64"]}], []),
        ({"Fn::If": ["IsArm", ["arm64"], ["x86_64"]]}, []),
        ({"Ref": "Architectures"}, []),
        (None, []),
    ],
)
def test_a_function_for_another_processor_is_named(asked: Any, expected: list[str]) -> None:
    """Its compiled packages cannot be imported; whatever the template does not say is no fault."""
    properties = {} if asked is None else {"Architectures": asked}
    template = {"Resources": {"It": {"Type": "AWS::Lambda::Function", "Properties": properties}}}
    found = foreign(template, {"Architecture": "arm64"}, "x86_64")
    assert [each.property for each in found] == expected


@pytest.mark.parametrize(
    ("source", "properties", "expected"),
    [
        (QUEUE, {"FunctionResponseTypes": ["ReportBatchItemFailures"]}, []),
        (TABLE, {"MaximumRetryAttempts": -1}, []),
        (TABLE, {"MaximumRetryAttempts": 1}, ["MaximumRetryAttempts"]),
        (TABLE, {"DestinationConfig": {}}, ["DestinationConfig"]),
        (TABLE, {"DestinationConfig": {}, "MaximumRecordAgeInSeconds": 60}, []),
        (STREAM, {"MaximumRecordAgeInSeconds": 60}, ["MaximumRecordAgeInSeconds"]),
        (None, {}, [""]),
    ],
)
def test_a_mapping_is_judged_by_its_source(
    source: Any, properties: Any, expected: list[str]
) -> None:
    """Queues are polled as on AWS, streams until they succeed, brokers never."""
    assert mapping(source, **properties) == expected


def test_a_source_of_another_stack_is_judged_by_its_arn() -> None:
    """An ARN names the service."""
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/rides"
    properties = {"EventSourceArn": arn, "MaximumRecordAgeInSeconds": 60}
    found = named("AWS::Lambda::EventSourceMapping", properties)
    assert found == ["MaximumRecordAgeInSeconds"]


@pytest.mark.integration
@pytest.mark.parametrize("transform", ["", "Transform: AWS::Serverless-2016-10-31"])
def test_what_a_deployed_template_asks_in_vain_is_named(
    engine: LocalCloud, name: str, transform: str
) -> None:
    """A template without a transform is answered as it was sent, with YAML's short forms."""
    cloudformation = engine.client("cloudformation")
    body = f"{transform}{WITHOUT_TRANSFORM}"
    capabilities = ["CAPABILITY_AUTO_EXPAND"]
    cloudformation.create_stack(StackName=name, TemplateBody=body, Capabilities=capabilities)
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 2400}
    )
    answer = cloudformation.get_template(StackName=name, TemplateStage="Processed")
    found = list(map(str, ignored(answer["TemplateBody"])))
    assert found == ["Bus.LogConfig: the bus writes no log"]
