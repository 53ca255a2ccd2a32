from collections.abc import Callable
from typing import Any

import pytest

from local.local_aws import Laptop, LaptopError, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import Resource, attribute, bus, function, needless

ALARM: Resource = {
    "Type": "AWS::CloudWatch::Alarm",
    "Properties": {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 0,
        "EvaluationPeriods": 1,
    },
}


def metric(identity: str) -> Resource:
    """A metric that an expression uses."""
    name = {"Namespace": "CarRide", "MetricName": identity}
    return {"Id": identity, "ReturnData": False, "MetricStat": {"Metric": name, "Period": 60, "Stat": "Sum"}}


def endpoint_bus(region: str) -> Resource:
    """One of a global endpoint's two buses."""
    return {"EventBusArn": {"Fn::Sub": f"arn:aws:events:{region}:${{AWS::AccountId}}:event-bus/rides"}}


type Seen = Callable[[Laptop, Stack], Any]

# What a template may hold, what shows that it is there, and the module that teaches MiniStack the type.
CASES: dict[str, tuple[dict[str, Resource], Seen, str]] = {
    "archive": (
        {
            "Bus": bus(),
            "Archive": {
                "Type": "AWS::Events::Archive",
                "Properties": {
                    "SourceArn": attribute("Bus"),
                    "RetentionDays": "3",
                    "EventPattern": {"source": ["test"]},
                },
            },
        },
        lambda laptop, stack: (
            laptop.client("events").describe_archive(ArchiveName=stack.resources["Archive"])["RetentionDays"] == 3
        ),
        "event_resources",
    ),
    "bus-policy": (
        {
            "Bus": bus(),
            "Policy": {
                "Type": "AWS::Events::EventBusPolicy",
                "Properties": {
                    "EventBusName": {"Ref": "Bus"},
                    "StatementId": "Producers",
                    "Statement": {
                        "Effect": "Allow",
                        "Principal": {"AWS": {"Ref": "AWS::AccountId"}},
                        "Action": "events:PutEvents",
                        "Resource": attribute("Bus"),
                    },
                },
            },
        },
        lambda laptop, stack: (
            "Producers" in laptop.client("events").describe_event_bus(Name=stack.resources["Bus"])["Policy"]
        ),
        "event_resources",
    ),
    "endpoint": (
        {
            "Endpoint": {
                "Type": "AWS::Events::Endpoint",
                "Properties": {
                    "Name": "rides",
                    "EventBuses": [endpoint_bus("us-east-1"), endpoint_bus("us-west-2")],
                    "RoutingConfig": {
                        "FailoverConfig": {
                            "Primary": {"HealthCheck": "arn:aws:route53:::healthcheck/1"},
                            "Secondary": {"Route": "us-west-2"},
                        }
                    },
                },
            }
        },
        lambda laptop, stack: laptop.client("events").describe_endpoint(Name="rides")["State"] == "ACTIVE",
        "event_resources",
    ),
    "health-check": (
        {
            "HealthCheck": {
                "Type": "AWS::Route53::HealthCheck",
                "Properties": {"HealthCheckConfig": {"Type": "CLOUDWATCH_METRIC"}},
            }
        },
        lambda laptop, stack: laptop.client("route53").get_health_check(HealthCheckId=stack.resources["HealthCheck"]),
        "global_endpoints",
    ),
    "log-delivery": (
        {
            "Bus": bus(),
            "Group": {"Type": "AWS::Logs::LogGroup"},
            "Source": {
                "Type": "AWS::Logs::DeliverySource",
                "Properties": {"Name": "rides", "ResourceArn": attribute("Bus"), "LogType": "ERROR_LOGS"},
            },
            "Destination": {
                "Type": "AWS::Logs::DeliveryDestination",
                "Properties": {"Name": "rides", "DestinationResourceArn": attribute("Group")},
            },
            "Delivery": {
                "Type": "AWS::Logs::Delivery",
                "Properties": {
                    "DeliverySourceName": {"Ref": "Source"},
                    "DeliveryDestinationArn": attribute("Destination"),
                },
            },
        },
        lambda laptop, stack: (
            laptop.client("logs").describe_deliveries()["deliveries"][0]["deliverySourceName"] == "rides"
        ),
        "log_delivery_resources",
    ),
    "composite-alarm": (
        {
            "Alarm": ALARM,
            "Any": {
                "Type": "AWS::CloudWatch::CompositeAlarm",
                "Properties": {"AlarmRule": {"Fn::Sub": 'ALARM("${Alarm}")'}},
            },
        },
        lambda laptop, stack: laptop.client("cloudwatch").describe_alarms(
            AlarmNames=[stack.resources["Any"]], AlarmTypes=["CompositeAlarm"]
        )["CompositeAlarms"],
        "alarm_resources",
    ),
    "metric-math": (
        {
            "Alarm": {
                "Type": "AWS::CloudWatch::Alarm",
                "Properties": {
                    "Metrics": [metric("failed"), metric("all"), {"Id": "share", "Expression": "failed / all"}],
                    "ComparisonOperator": "GreaterThanThreshold",
                    "Threshold": 0.1,
                    "EvaluationPeriods": 1,
                },
            }
        },
        lambda laptop, stack: laptop.client("cloudwatch").describe_alarms(AlarmNames=[stack.resources["Alarm"]])[
            "MetricAlarms"
        ],
        "alarm_resources",
    ),
    "recorded": (
        {
            "Registry": {"Type": "AWS::EventSchemas::Registry", "Properties": {"RegistryName": "rides"}},
            "Schema": {
                "Type": "AWS::EventSchemas::Schema",
                "Properties": {
                    "RegistryName": attribute("Registry", "RegistryName"),
                    "SchemaName": "ride",
                    "Type": "JSONSchemaDraft4",
                    "Content": "{}",
                },
            },
            "Query": {
                "Type": "AWS::Logs::QueryDefinition",
                "Properties": {"Name": "all", "QueryString": "fields @message"},
            },
            "Cache": {
                "Type": "AWS::ElastiCache::ServerlessCache",
                "Properties": {"ServerlessCacheName": "records", "Engine": "valkey"},
            },
            "CacheSaysWhereItIs": {
                "Type": "AWS::SQS::Queue",
                "Properties": {"QueueName": {"Fn::Sub": "${Cache}-${Cache.Endpoint.Port}"}},
            },
            "Application": {"Type": "AWS::CodeDeploy::Application", "Properties": {"ComputePlatform": "Lambda"}},
            "Group": {
                "Type": "AWS::CodeDeploy::DeploymentGroup",
                "Properties": {
                    "ApplicationName": {"Ref": "Application"},
                    "ServiceRoleArn": attribute("Schema", "SchemaArn"),
                },
            },
        },
        lambda laptop, stack: stack.resources["Schema"] == "ride",
        "recorded_resources",
    ),
    "reserved-concurrency": (
        {"Function": function("pass", ReservedConcurrentExecutions=1)},
        lambda laptop, stack: (
            laptop.client("lambda")
            .get_function_concurrency(FunctionName=stack.resources["Function"])
            .get("ReservedConcurrentExecutions")
        ),
        "function_resources",
    ),
    "bus-log-config": (
        {"Bus": {"Type": "AWS::Events::EventBus", "Properties": {"Name": "logged", "LogConfig": {"Level": "ERROR"}}}},
        lambda laptop, stack: laptop.client("events").describe_event_bus(Name="logged").get("LogConfig"),
        "event_resources",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_template_may_hold_it(engine: Laptop, deploy: Deploy, case: str) -> None:
    """A stack with such resources is created, updated with a change, and deleted."""
    resources, seen, _ = CASES[case]
    assert seen(engine, deploy(engine, **resources))
    stack = deploy(engine, **resources, More={"Type": "AWS::SQS::Queue"})
    assert seen(engine, stack)
    engine.delete_stack(stack.name)


@pytest.mark.parametrize("case", CASES)
def test_stock_does_not(stock: Laptop, deploy: Deploy, case: str) -> None:
    """Canary: the plug-in is needed while MiniStack refuses or drops one of these resources."""
    resources, seen, module = CASES[case]
    try:
        there = seen(stock, deploy(stock, **resources))
    except LaptopError:
        return
    if there:
        needless(f"{case} in templates", module)


def table(kind: str, **properties: Any) -> Resource:
    """A table with one key."""
    return {
        "Type": f"AWS::DynamoDB::{kind}",
        "Properties": {
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
            **properties,
        },
    }


TTL = {"TimeToLiveSpecification": {"AttributeName": "expires", "Enabled": True}}
HOME = {"Region": {"Ref": "AWS::Region"}}


def time_to_live(laptop: Laptop, stack: Stack, region: str | None = None) -> Any:
    """The TTL of the stack's table."""
    client = laptop.client("dynamodb", region=region)
    return client.describe_time_to_live(TableName=stack.resources["Table"])["TimeToLiveDescription"]


@pytest.mark.parametrize(
    ("kind", "more"), [("Table", {}), ("GlobalTable", {"Replicas": [HOME]})], ids=["table", "global"]
)
def test_a_table_has_the_templates_time_to_live(
    engine: Laptop, deploy: Deploy, kind: str, more: dict[str, Any]
) -> None:
    """The template turns a table's TTL on and off, and an update keeps the items."""
    stack = deploy(engine, Table=table(kind, **more, **TTL))
    assert time_to_live(engine, stack) == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
    name = stack.resources["Table"]
    engine.client("dynamodb").put_item(TableName=name, Item={"key": {"S": "kept"}})
    stack = deploy(engine, Table=table(kind, **more))
    assert stack.resources["Table"] == name
    assert time_to_live(engine, stack)["TimeToLiveStatus"] == "DISABLED"
    assert engine.client("dynamodb").scan(TableName=name)["Count"] == 1


def test_a_global_table_is_in_every_region_of_its_replicas(engine: Laptop, deploy: Deploy) -> None:
    """What is written in one replica's region is read in the other's; a replica that is removed is gone there."""
    away = {"Region": "us-west-2"}
    stack = deploy(engine, Table=table("GlobalTable", Replicas=[HOME, away], **TTL))
    name = stack.resources["Table"]
    west = engine.client("dynamodb", region="us-west-2")
    west.put_item(TableName=name, Item={"key": {"S": "far"}})
    assert engine.client("dynamodb").scan(TableName=name)["Count"] == 1
    assert time_to_live(engine, stack, "us-west-2")["TimeToLiveStatus"] == "ENABLED"
    deploy(engine, Table=table("GlobalTable", Replicas=[HOME], **TTL))
    assert name not in west.list_tables()["TableNames"]
    engine.delete_stack(stack.name)
    assert name not in engine.client("dynamodb").list_tables()["TableNames"]


def test_stock_drops_a_tables_time_to_live(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack drops a template's TTL or its replicas."""
    stack = deploy(stock, Table=table("GlobalTable", Replicas=[HOME, {"Region": "us-west-2"}], **TTL))
    west = stock.client("dynamodb", region="us-west-2").list_tables()["TableNames"]
    if time_to_live(stock, stack)["TimeToLiveStatus"] == "ENABLED" and stack.resources["Table"] in west:
        needless("TTL and replicas of tables in templates", "table_resources")
