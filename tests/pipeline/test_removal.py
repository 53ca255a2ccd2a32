"""A deleted stack leaves nothing."""

from typing import Final

import jmespath
import pytest

from local.local_aws import LocalAws
from tools.transformed import Stack, stack

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

LISTS: Final[dict[str, tuple[str, str, str]]] = {
    # type: service, operation, path of the names in the answer
    "API": ("apigatewayv2", "get_apis", "Items[].Name"),
    "alarm": ("cloudwatch", "describe_alarms", "MetricAlarms[].AlarmName"),
    "archive": ("events", "list_archives", "Archives[].ArchiveName"),
    "bus": ("events", "list_event_buses", "EventBuses[].Name"),
    "dashboard": ("cloudwatch", "list_dashboards", "DashboardEntries[].DashboardName"),
    "delivery of logs": ("logs", "describe_delivery_sources", "deliverySources[].name"),
    "function": ("lambda", "list_functions", "Functions[].FunctionName"),
    "layer": ("lambda", "list_layers", "Layers[].LayerName"),
    "log group": ("logs", "describe_log_groups", "logGroups[].logGroupName"),
    "mapping": ("lambda", "list_event_source_mappings", "EventSourceMappings[].FunctionArn"),
    "permission to log": ("logs", "describe_resource_policies", "resourcePolicies[].policyName"),
    "pipe": ("pipes", "list_pipes", "Pipes[].Name"),
    "queue": ("sqs", "list_queues", "QueueUrls[]"),
    "role": ("iam", "list_roles", "Roles[].RoleName"),
    "schedule": ("scheduler", "list_schedules", "Schedules[].Name"),
    "table": ("dynamodb", "list_tables", "TableNames[]"),
    "topic": ("sns", "list_topics", "Topics[].TopicArn"),
}
"""How each kind of resource is listed. The engine lists no composite alarms,
schemas, queries and scaled tables."""
COUNTED: Final = {
    "alarm": ("AWS::CloudWatch::Alarm",),
    "function": ("AWS::Lambda::Function",),
    "log group": ("AWS::Logs::LogGroup",),
    "queue": ("AWS::SQS::Queue",),
    "role": ("AWS::IAM::Role",),
    "table": ("AWS::DynamoDB::GlobalTable", "AWS::DynamoDB::Table"),
    "topic": ("AWS::SNS::Topic",),
}
"""By kind, the types that the template has of it: the lists are complete."""
GRADUAL: Final = "Canary10Percent5Minutes"


def inventory(cloud: LocalAws, name: str) -> dict[str, set[str]]:
    """Return the names of the account's resources that are named after a stack, by kind."""
    found = {}
    for kind, (service, operation, path) in LISTS.items():
        client = cloud.client(service)
        if client.can_paginate(operation):
            listed = client.get_paginator(operation).paginate().search(path)
        else:
            listed = jmespath.search(path, getattr(client, operation)())
        names = {each for each in listed or () if each and name in each}
        if names:
            found[kind] = names
    return found


def declared(deployed: Stack, *types: str) -> int:
    """Return how many resources of these types a stack has."""
    return sum(len(deployed.of_type(each)) for each in types)


@pytest.mark.parametrize(
    "chosen",
    [
        {"Stage": "dev"},
        {"Stage": "dev", "DeploymentStrategy": GRADUAL},
        {"Stage": "prod"},
    ],
    ids=["dev", "gradual", "prod"],
)
def test_what_a_deleted_stack_leaves(cloud: LocalAws, name: str, chosen: dict[str, str]) -> None:
    """Nothing. The engine protects no table and no stack: docs/on-an-account.md says who does."""
    cloud.deploy_fast(name, None, **chosen)
    deployed = stack(**chosen)
    before = inventory(cloud, name)
    for kind in COUNTED:
        assert len(before[kind]) == declared(deployed, *COUNTED[kind]), kind
    cloud.delete_stack(name)
    assert inventory(cloud, name) == {}
