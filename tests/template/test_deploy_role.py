"""CloudFormation's role may create, change and delete the stack, and nothing that it keeps."""

import json
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

import cfnlint
import pytest
from samtranslator.yaml_helper import yaml_parse

from tests.template.stack import every_choice
from tools.transformed import ROOT, Stack, stack

pytestmark = pytest.mark.integration

_SCHEMAS: Final = Path(cfnlint.__file__).parent / "data" / "schemas"
_OTHERS: Final = (
    # Other services than the bus whose logs can be delivered.
    "workmail:AllowVendedLogDeliveryForResource",
    # Options of these types that the template does not use: networks, file systems, streams, other
    # targets of logs, resource policies of tables, boundaries of users, code signing, provisioned
    # concurrency of others.
    *("autoloop:*", "codewhisperer:*", "ec2:*", "elasticfilesystem:*", "firehose:*", "kinesis:*"),
    "route53-recovery*:*",
    *(
        "s3files:*",
        "workmail:*",
        "s3:*BucketPolicy",
        "s3:REST*",
        "dynamodb:*Kinesis*",
        "dynamodb:*ResourcePolicy",
    ),
    *(
        "iam:*UserPolicy",
        "iam:*GroupPolicy",
        "iam:*UserPermissionsBoundary",
        "iam:DeleteRolePermissionsBoundary",  # a role of the stack always has one
        "lambda:AssociateRuntimeAlias",
        "lambda:PassCapacity*",
    ),
    *(
        "logs:*DataProtection*",
        "logs:*IndexPolic*",
        "logs:PutBearer*",
        "logs:PutLogGroupDeletion*",
        "sns:PutData*",
    ),
    *(
        "codedeploy:RegisterOnPremisesInstance",
        "cloudwatch:PutMetricData",
        "logs:DeleteDeliveryDestinationPolicy",
        "events:PutPermission",  # the bus has no policy
    ),
    # What fills a replica, allowed with two regions.
    *(
        "dynamodb:BatchWriteItem",
        "dynamodb:*Item",
        "dynamodb:Query",
        "dynamodb:Scan",
        "dynamodb:*ssociate*",
    ),
    # What imports a table from files.
    *("dynamodb:ImportTable", "logs:PutLogEvents", "s3:GetObjectMetadata", "s3:ListBucket"),
)
_DATA: Final = [
    *(
        "dynamodb:GetItem",
        "dynamodb:Scan",
        "events:PutEvents",
        "lambda:InvokeFunction",
        "logs:FilterLogEvents",
    ),
    *(
        "logs:GetLogEvents",
        "sns:Publish",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
        "sts:AssumeRole",
        "iam:CreateUser",
    ),
]


_VALUES: Final = {
    "AWS::Partition": "aws",
    "AWS::AccountId": "123456789012",
    "ApplicationStackName": "carride",
}
_HERE: Final = "us-east-1:123456789012"
_EVENTS: Final = f"arn:aws:events:{_HERE}"
_DEPLOY: Final = f"arn:aws:codedeploy:{_HERE}"
_LOGS: Final = f"arn:aws:logs:{_HERE}"
_NAMED: Final = {
    "AWS::ApiGatewayV2::Stage": "arn:aws:apigateway:us-east-1::/apis/a1b2c3/stages/$default",
    "AWS::CloudWatch::Alarm": f"arn:aws:cloudwatch:{_HERE}:alarm:carride-OverdueAlarm",
    "AWS::CloudWatch::CompositeAlarm": f"arn:aws:cloudwatch:{_HERE}:alarm:carride-LostAlarm",
    "AWS::CloudWatch::Dashboard": "arn:aws:cloudwatch::123456789012:dashboard/carride-us-east-1",
    "AWS::CodeDeploy::Application": f"{_DEPLOY}:application:"
    "carride-ServerlessDeploymentApplication-1A",
    "AWS::Events::EventBus": f"{_EVENTS}:event-bus/carride-bus",
    "AWS::Events::Rule": f"{_EVENTS}:rule/carride-bus/carride-PaymentRule-1A",
    "AWS::Events::Archive": f"{_EVENTS}:archive/carride-archive",
    "AWS::Logs::Delivery": f"{_LOGS}:delivery:a1B2c3",
    "AWS::Logs::DeliverySource": f"{_LOGS}:delivery-source:carride-bus-errors",
    "AWS::Logs::DeliveryDestination": f"{_LOGS}:delivery-destination:carride-bus-errors",
    "AWS::Pipes::Pipe": f"arn:aws:pipes:{_HERE}:pipe/carride-outbox",
    "AWS::Scheduler::Schedule": f"arn:aws:scheduler:{_HERE}:schedule/default/carride-reconciler",
    "AWS::SNS::Topic": f"arn:aws:sns:{_HERE}:carride-PartnersTopic-1A",
    "AWS::SQS::Queue": f"arn:aws:sqs:{_HERE}:carride-PaymentDlq-1A",
}
"""A resource of each type whose ARN has a name, as CloudFormation or the template names it."""


NAMES: Final = {
    "AWS::CloudWatch::Alarm": "AlarmName",
    "AWS::CloudWatch::CompositeAlarm": "AlarmName",
    "AWS::CloudWatch::Dashboard": "DashboardName",
    "AWS::Events::Archive": "ArchiveName",
    "AWS::Events::EventBus": "Name",
    "AWS::Pipes::Pipe": "Name",
    "AWS::Scheduler::Schedule": "Name",
}
"""By type, the property that names a resource: permissions name resources of these types."""


def allowed() -> list[tuple[str, object]]:
    """Return each allowed pattern of actions, with its resource."""
    template = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())
    (policy,) = template["Resources"]["ExecutionRole"]["Properties"]["Policies"]
    return [
        (action, statement["Resource"])
        for statement in policy["PolicyDocument"]["Statement"]
        if "Fn::If" not in statement  # for two regions only
        for action in (
            [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        )
    ]


def handled(kind: str) -> list[str]:
    """Return the actions with which CloudFormation handles a type, by AWS's own list."""
    files = json.loads((_SCHEMAS / "providers" / "us-east-1.json").read_text())
    schema = json.loads((_SCHEMAS / "resources" / f"{files[kind]}.json").read_text())
    actions = {
        action for handler in schema["handlers"].values() for action in handler["permissions"]
    }
    return sorted(
        each for each in actions if not any(fnmatchcase(each, other) for other in _OTHERS)
    )


@cache
def needed() -> frozenset[str]:
    """Return the actions with which CloudFormation handles the types of the stack."""
    types = {
        resource["Type"]
        for choice in every_choice()
        for resource in stack(**choice).resources.values()
    }
    files = json.loads((_SCHEMAS / "providers" / "us-east-1.json").read_text())
    schemas: list[dict[str, Any]] = [
        json.loads((_SCHEMAS / "resources" / f"{files[each]}.json").read_text())
        for each in types
        if each in files
    ]
    return frozenset(
        action.replace("s3:getObject", "s3:GetObject")
        for schema in schemas
        for handler in schema.get("handlers", {}).values()
        for action in handler["permissions"]
        if not any(fnmatchcase(action, other) for other in _OTHERS)
    )


def test_every_type_of_the_stack_can_be_handled() -> None:
    """AWS's own list of actions is allowed, for each type that any parameters create."""
    patterns = [pattern for pattern, _ in allowed()]
    assert (
        sorted(
            each for each in needed() if not any(fnmatchcase(each, pattern) for pattern in patterns)
        )
        == []
    )


def patterns_of(resource: Any) -> list[str]:
    """Return the patterns of ARNs of a statement, for an application named `carride`."""
    found = []
    for each in resource if isinstance(resource, list) else [resource]:
        text = str(each["Fn::Sub"] if isinstance(each, dict) else each)
        for name, value in _VALUES.items():
            text = text.replace(f"${{{name}}}", value)
        found.append(text)
    return found


def reaches(action: str, arn: str) -> bool:
    """Whether the role of CloudFormation is allowed an action on a resource."""
    return any(
        fnmatchcase(action, pattern) and any(fnmatchcase(arn, each) for each in patterns_of(where))
        for pattern, where in allowed()
    )


@pytest.mark.parametrize(("kind", "arn"), _NAMED.items())
def test_every_action_reaches_the_resource_that_it_handles(kind: str, arn: str) -> None:
    """Each action of a type is allowed on a resource with the name that the stack gives."""
    service = arn.split(":")[2]
    own = [each for each in handled(kind) if each.startswith(f"{service}:")]
    assert own
    assert [each for each in own if not reaches(each, arn)] == []


@pytest.mark.parametrize(
    ("action", "arn"),
    [
        # docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-bus-logs.html
        ("events:AllowVendedLogDeliveryForResource", f"{_EVENTS}:event-bus/carride-bus"),
        (
            "codedeploy:GetDeploymentConfig",
            f"{_DEPLOY}:deploymentconfig:CodeDeployDefault.LambdaAllAtOnce",
        ),
    ],
)
def test_actions_on_resources_of_others_reach_them(action: str, arn: str) -> None:
    """A log delivery needs its bus, a gradual deployment the strategy that AWS owns."""
    assert reaches(action, arn)


def test_the_template_names_what_permissions_name(deployed: Stack) -> None:
    """Each name begins with the stack's and occurs once; CloudFormation generates none."""
    found = [
        resource["Properties"].get(NAMES[resource["Type"]], {}).get("Fn::Sub", name)
        for name, resource in deployed.resources.items()
        if resource["Type"] in NAMES
    ]
    assert [each for each in found if not each.startswith("${AWS::StackName}-")] == []
    assert len(set(found)) == len(found)


def test_own_roles_are_out_of_reach() -> None:
    """Neither role may change itself or the other, or hand one to a service that runs its code."""
    template = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())
    own = template["Resources"]["OwnRolesPolicy"]["Properties"]
    change, hand_over = own["PolicyDocument"]["Statement"]
    both = [{"Fn::GetAtt": ["DeployRole", "Arn"]}, {"Fn::GetAtt": ["ExecutionRole", "Arn"]}]
    assert own["Roles"] == [{"Ref": "DeployRole"}, {"Ref": "ExecutionRole"}]
    assert change["Effect"] == hand_over["Effect"] == "Deny"
    assert change["Resource"] == hand_over["Resource"] == both
    assert change["NotAction"] == ["iam:Get*", "iam:List*", "iam:PassRole"]
    assert hand_over["Condition"] == {
        "StringNotEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}
    }


def test_only_the_managed_policy_of_codedeploy_can_be_attached() -> None:
    """Attaching any other policy, such as AdministratorAccess, is not allowed."""
    template = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())
    (policy,) = template["Resources"]["ExecutionRole"]["Properties"]["Policies"]
    attaching = [
        each
        for each in policy["PolicyDocument"]["Statement"]
        if any(
            fnmatchcase("iam:AttachRolePolicy", str(action)) for action in each.get("Action", [])
        )
    ]
    [statement] = attaching
    arn = statement["Condition"]["ArnEquals"]["iam:PolicyARN"]["Fn::Sub"]
    assert arn.endswith(":policy/service-role/AWSCodeDeployRoleForLambda")
    attached = stack(DeploymentStrategy="Canary10Percent5Minutes").resources["CodeDeployRole"]
    managed = attached["Properties"]["ManagedPolicyArns"]
    assert [each["Fn::Sub"].rpartition("/")[2] for each in managed] == [arn.rpartition("/")[2]]


def test_nothing_is_allowed_that_no_type_needs() -> None:
    """Each pattern serves an action of some type, the transform or the nested stacks."""
    own = ("cloudformation:*", "s3:Get*", "events:AllowVendedLogDeliveryForResource")
    idle = [
        pattern
        for pattern, _ in allowed()
        if not any(fnmatchcase(each, pattern) for each in needed())
        and not any(fnmatchcase(pattern, o) for o in own)
    ]
    assert idle == []


@pytest.mark.parametrize("action", _DATA)
def test_what_the_stack_keeps_is_out_of_reach(action: str) -> None:
    """The role cannot touch items, messages, events and log lines, or become somebody else."""
    assert not any(fnmatchcase(action, pattern) for pattern, _ in allowed())


def test_roles_outside_of_the_stack_are_out_of_reach() -> None:
    """No action on roles reaches one that is not named after the stack, but for listing them."""
    reach = {
        pattern: str(resource) for pattern, resource in allowed() if pattern.startswith("iam:")
    }
    beyond = {
        pattern
        for pattern, resource in reach.items()
        if "role/${ApplicationStackName}-*" not in resource
    }
    assert beyond == {"iam:CreateServiceLinkedRole", "iam:ListRoles"}
