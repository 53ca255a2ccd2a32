"""CloudFormation's role may create, change and delete the stack, and nothing that it keeps."""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import cfnlint
import pytest
from samtranslator.yaml_helper import yaml_parse

from infrastructure.rules.house_rules import listed, matching
from infrastructure.rules.house_rules import reaches as applies
from tests.template.stack import every_choice
from tools.transformed import ROLES, ROOT, Stack, stack

pytestmark = pytest.mark.integration

_SCHEMAS: Final = Path(cfnlint.__file__).parent / "data" / "schemas"


class Option(NamedTuple):
    """A property that the template does not use, and the actions that only it needs."""

    type: str
    path: str
    """Names of the property and of those around it, with dots between them."""
    actions: tuple[str, ...]


OPTIONS: Final = (
    Option("CodeDeploy::DeploymentGroup", "OnPremisesTagSet", ("codedeploy:RegisterOnPremises*",)),
    Option("DynamoDB::GlobalTable", "GlobalTableSourceArn", ("dynamodb:*ssociateTableReplica",)),
    Option(
        "DynamoDB::GlobalTable",
        "Replicas.KinesisStreamSpecification",
        ("dynamodb:*ableKinesis*", "dynamodb:UpdateKinesis*", "kinesis:*"),
    ),
    Option(
        "DynamoDB::GlobalTable",
        "Replicas.ResourcePolicy",
        ("dynamodb:PutResourcePolicy", "dynamodb:DeleteResourcePolicy"),
    ),
    Option(
        "DynamoDB::Table",
        "ImportSourceSpecification",
        (
            *("dynamodb:ImportTable", "dynamodb:BatchWriteItem", "dynamodb:*Item"),
            *("dynamodb:Query", "dynamodb:Scan"),
            *("logs:CreateLogStream", "logs:PutLogEvents", "s3:ListBucket"),
        ),
    ),
    Option(
        "DynamoDB::Table",
        "KinesisStreamSpecification",
        ("dynamodb:*ableKinesis*", "dynamodb:UpdateKinesis*", "kinesis:*"),
    ),
    Option(
        "DynamoDB::Table",
        "ResourcePolicy",
        ("dynamodb:PutResourcePolicy", "dynamodb:DeleteResourcePolicy"),
    ),
    Option("Events::EventBus", "Policy", ("events:PutPermission",)),
    Option("IAM::Policy", "Groups", ("iam:*GroupPolicy",)),
    Option("IAM::Policy", "Users", ("iam:*UserPolicy",)),
    Option("Lambda::Function", "CodeSigningConfigArn", ("lambda:GetCodeSigningConfig",)),
    Option("Lambda::Function", "CapacityProviderConfig", ("lambda:PassCapacityProvider",)),
    Option("Lambda::Function", "FileSystemConfigs", ("elasticfilesystem:*", "s3files:*", "ec2:*")),
    Option("Lambda::Function", "VpcConfig", ("ec2:*",)),
    Option("Logs::LogGroup", "BearerTokenAuthenticationEnabled", ("logs:PutBearerToken*",)),
    Option("Logs::LogGroup", "DataProtectionPolicy", ("logs:*DataProtectionPolicy",)),
    Option("Logs::LogGroup", "DeletionProtectionEnabled", ("logs:PutLogGroupDeletion*",)),
    Option("Logs::LogGroup", "FieldIndexPolicies", ("logs:*IndexPolicy",)),
    Option("Logs::LogGroup", "LogGroupClass", ("firehose:*",)),  # DELIVERY is for such targets
    Option("Pipes::Pipe", "LogConfiguration.FirehoseLogDestination", ("firehose:*",)),
    Option("Pipes::Pipe", "LogConfiguration.S3LogDestination", ("s3:*BucketPolicy",)),
    Option(
        "Route53::HealthCheck",
        "HealthCheckConfig.RoutingControlArn",
        ("route53-recovery-control-config:*",),
    ),
    Option("SNS::Topic", "DataProtectionPolicy", ("sns:PutDataProtectionPolicy",)),
)
"""What the role may not do, because the template does not ask for it."""
_NEVER: Final = frozenset(
    {
        # What delivers logs is a bus:
        # docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-bus-logs.html
        "codewhisperer:AllowVendedLogDeliveryForResource",
        "workmail:AllowVendedLogDeliveryForResource",
        # Replicas are of the same account:
        # docs.aws.amazon.com/amazondynamodb/latest/developerguide/globaltables_MA_security.html
        "dynamodb:AssociateTableReplica",
        # A role of the stack keeps its boundary:
        # docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
        "iam:DeleteRolePermissionsBoundary",
    }
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
_FUNCTION: Final = f"arn:aws:lambda:{_HERE}:function:carride-PaymentFunction-1A"
_TABLE: Final = f"arn:aws:dynamodb:{_HERE}:table/carride-BookingTable"
_GROUP: Final = f"arn:aws:logs:{_HERE}:log-group:/aws/lambda/carride/payment"
_SCHEMA: Final = f"arn:aws:schemas:{_HERE}"
_OWN: Final = {
    "ApiGatewayV2::Api": ["arn:aws:apigateway:us-east-1::/apis/a1b2c3"],
    "ApiGatewayV2::Stage": ["arn:aws:apigateway:us-east-1::/apis/a1b2c3/stages/$default"],
    "CloudWatch::Alarm": [f"arn:aws:cloudwatch:{_HERE}:alarm:carride-OverdueAlarm"],
    "CloudWatch::CompositeAlarm": [f"arn:aws:cloudwatch:{_HERE}:alarm:carride-LostAlarm"],
    "CloudWatch::Dashboard": ["arn:aws:cloudwatch::123456789012:dashboard/carride-us-east-1"],
    "CodeDeploy::Application": [
        f"{_DEPLOY}:application:carride-ServerlessDeploymentApplication-1A"
    ],
    "CodeDeploy::DeploymentGroup": [
        f"{_DEPLOY}:application:carride-ServerlessDeploymentApplication-1A",
        f"{_DEPLOY}:deploymentgroup:carride-ServerlessDeploymentApplication-1A/carride-A-1A",
        f"{_DEPLOY}:deploymentconfig:CodeDeployDefault.LambdaAllAtOnce",
    ],
    "DynamoDB::GlobalTable": [
        _TABLE,
        f"{_TABLE}/index/byOwner",
        f"arn:aws:application-autoscaling:{_HERE}:scalable-target/0a1b",
        f"arn:aws:cloudwatch:{_HERE}:dataset/default",
    ],
    "DynamoDB::Table": [_TABLE],
    "EventSchemas::Registry": [f"{_SCHEMA}:registry/carride-events"],
    "EventSchemas::Schema": [
        f"{_SCHEMA}:registry/carride-events",
        f"{_SCHEMA}:schema/carride-events/CarRideCreated",
    ],
    "Events::Archive": [
        f"{_EVENTS}:archive/carride-archive",
        f"{_EVENTS}:event-bus/carride-bus",
    ],
    "Events::Endpoint": [
        f"{_EVENTS}:endpoint/carride",
        f"{_EVENTS}:event-bus/carride-bus",
        "arn:aws:route53:::healthcheck/0a1b",
    ],
    "Events::EventBus": [f"{_EVENTS}:event-bus/carride-bus"],
    "Events::Rule": [f"{_EVENTS}:rule/carride-bus/carride-PaymentRule-1A"],
    "IAM::Policy": [],
    "IAM::Role": [],
    "Lambda::Alias": [
        f"{_FUNCTION}:live",
        _FUNCTION,
        f"{_DEPLOY}:deploymentgroup:carride-ServerlessDeploymentApplication-1A/carride-A-1A",
        f"{_DEPLOY}:deploymentconfig:CodeDeployDefault.LambdaAllAtOnce",
    ],
    "Lambda::EventInvokeConfig": [_FUNCTION],
    "Lambda::EventSourceMapping": [f"arn:aws:lambda:{_HERE}:event-source-mapping:0a1b"],
    "Lambda::Function": [_FUNCTION, f"arn:aws:lambda:{_HERE}:layer:IdempotencyLayer1a:1"],
    "Lambda::LayerVersion": [
        f"arn:aws:lambda:{_HERE}:layer:IdempotencyLayer1a",
        f"arn:aws:lambda:{_HERE}:layer:IdempotencyLayer1a:1",
    ],
    "Lambda::Permission": [_FUNCTION],
    "Lambda::Url": [_FUNCTION],
    "Lambda::Version": [_FUNCTION, f"{_FUNCTION}:1"],
    "Logs::Delivery": [
        f"{_LOGS}:delivery:a1B2c3",
        f"{_LOGS}:delivery-source:carride-bus-errors",
        f"{_LOGS}:delivery-destination:carride-bus-errors",
    ],
    "Logs::DeliveryDestination": [f"{_LOGS}:delivery-destination:carride-bus-errors"],
    "Logs::DeliverySource": [  # the reference has the second for the deletion of the first
        f"{_LOGS}:delivery-source:carride-bus-errors",
        f"{_LOGS}:delivery-destination:carride-bus-errors",
    ],
    "Logs::LogGroup": [_GROUP],
    "Logs::QueryDefinition": [],
    "Logs::ResourcePolicy": [],
    "Pipes::Pipe": [f"arn:aws:pipes:{_HERE}:pipe/carride-outbox"],
    "Route53::HealthCheck": [
        "arn:aws:route53:::healthcheck/0a1b",
        f"arn:aws:cloudwatch:{_HERE}:alarm:carride-LatencyAlarm",
    ],
    "SNS::Subscription": [f"arn:aws:sns:{_HERE}:carride-PartnersTopic-1A"],
    "SNS::Topic": [f"arn:aws:sns:{_HERE}:carride-PartnersTopic-1A"],
    "SNS::TopicPolicy": [f"arn:aws:sns:{_HERE}:carride-PartnersTopic-1A"],
    "SQS::Queue": [f"arn:aws:sqs:{_HERE}:carride-PaymentDlq-1A"],
    "SQS::QueuePolicy": [f"arn:aws:sqs:{_HERE}:carride-PaymentDlq-1A"],
    "Scheduler::Schedule": [f"arn:aws:scheduler:{_HERE}:schedule/default/carride-reconciler"],
}
"""By type, without ``AWS::``, the resources that its actions are about, as CloudFormation or the
template names them."""
_LINKED_ROLE: Final = (
    "arn:aws:iam::123456789012:role/aws-service-role/dynamodb.application-autoscaling.amazonaws.com"
    "/AWSServiceRoleForApplicationAutoScaling_DynamoDBTable"
)
_SHARED: Final = (
    "arn:aws:iam::123456789012:role/carride-StaffRole-1A",  # the only one whose trust changes
    f"arn:aws:kms:{_HERE}:key/0a1b",
    "arn:aws:s3:::aws-sam-cli-managed-default-samclisourcebucket-1a/carride/0a1b",
    _GROUP,
)
"""Resources of other services, which the actions of several types are about."""


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


@cache
def allowed(role: str = "ExecutionRole", *, options: bool = False) -> list[tuple[str, object]]:
    """Return each allowed pattern of actions of a role, with its resource.

    With ``options`` also what a parameter adds: two regions, or the verification of trials.
    """
    template = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())
    (policy,) = template["Resources"][role]["Properties"]["Policies"]
    found = []
    for each in policy["PolicyDocument"]["Statement"]:
        statement = each
        if "Fn::If" in each:
            if not options:
                continue
            statement = each["Fn::If"][1]
        found += [(action, statement["Resource"]) for action in listed(statement["Action"])]
    return found


@cache
def stacks() -> tuple[Stack, ...]:
    """Return a stack for each parameter that changes resources, and one of a primary."""
    return tuple(stack(**choice) for choice in (*every_choice(), ROLES["primary"]))


def types() -> set[str]:
    """Return the types of which the template makes a resource."""
    return {resource["Type"] for each in stacks() for resource in each.resources.values()}


@cache
def schema_of(kind: str) -> dict[str, Any]:
    """Return AWS's schema of a type."""
    files = json.loads((_SCHEMAS / "providers" / "us-east-1.json").read_text())
    found = json.loads((_SCHEMAS / "resources" / f"{files[kind]}.json").read_text())
    return dict(found)


def handled(kind: str) -> list[str]:
    """Return the actions with which CloudFormation makes, reads, changes and deletes a type.

    They are AWS's own list, without names that IAM does not have, and without those of properties
    that the template does not use. Only Cloud Control lists resources:
    docs.aws.amazon.com/cloudformation-cli/latest/userguide/resource-type-schema.html
    """
    actions = set[str]()
    for name, handler in schema_of(kind)["handlers"].items():
        if name != "list":
            actions.update(handler["permissions"])
    found = {each.replace("s3:getObject", "s3:GetObject") for each in actions - _NEVER}
    unused = [each for of in OPTIONS if f"AWS::{of.type}" == kind for each in of.actions]
    return sorted(
        each
        for each in found
        if matching(each) and not any(fnmatchcase(each, pattern) for pattern in unused)
    )


@cache
def needed() -> frozenset[str]:
    """Return the actions with which CloudFormation handles the types of the stack."""
    return frozenset(action for kind in types() for action in handled(kind))


def values_at(value: Any, path: str) -> Iterator[Any]:
    """Yield what stands under a path of names; a list stands for each of its elements."""
    if isinstance(value, list):
        for each in value:
            yield from values_at(each, path)
    elif not path:
        yield value
    elif isinstance(value, dict):
        name, _, rest = path.partition(".")
        if name in value:
            yield from values_at(value[name], rest)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.type}.{option.path}")
def test_an_option_that_needs_more_is_not_used(option: Option) -> None:
    """No resource has the property, which the type has, and which the actions are for."""
    kind = f"AWS::{option.type}"
    name = option.path.rpartition(".")[2]
    assert f'"{name}"' in json.dumps(schema_of(kind))
    for deployed in stacks():
        for resource in deployed.of_type(kind).values():
            assert list(values_at(resource, option.path)) == []


def patterns_of(resource: Any) -> list[str]:
    """Return the patterns of ARNs of a statement, for an application named `carride`."""
    found = []
    for each in resource if isinstance(resource, list) else [resource]:
        text = str(each["Fn::Sub"] if isinstance(each, dict) else each)
        for name, value in _VALUES.items():
            text = text.replace(f"${{{name}}}", value)
        found.append(text)
    return found


def reaches(action: str, arn: str, *, options: bool = False) -> bool:
    """Whether the role of CloudFormation is allowed an action on a resource."""
    for pattern, where in allowed(options=options):
        if fnmatchcase(action, pattern) and any(fnmatchcase(arn, p) for p in patterns_of(where)):
            return True
    return False


def resources_of(kind: str, action: str) -> list[str]:
    """Return the resources of a type that an action is about: ``*`` for one without resources."""
    if action == "iam:CreateServiceLinkedRole":
        return [_LINKED_ROLE]
    forms = set(matching(action))
    if forms == {"*"}:
        return ["*"]
    service = action.partition(":")[0]
    shared = [arn for arn in _SHARED if arn.split(":")[2] == service]
    own = _OWN[kind.removeprefix("AWS::")]
    return [arn for arn in (*own, *shared) if any(applies(form, arn) for form in forms - {"*"})]


@pytest.mark.parametrize("kind", sorted(f"AWS::{kind}" for kind in _OWN))
def test_every_action_reaches_the_resource_that_it_handles(kind: str) -> None:
    """Each action of a type is allowed on the resources that it is about, by their names.

    IAM's reference says which those are; an action without resources needs to be allowed on all.
    """
    for action in handled(kind):
        fills = action.startswith("dynamodb:")  # with two regions, DynamoDB fills replicas with it
        about = resources_of(kind, action)
        assert about, action
        assert [arn for arn in about if not reaches(action, arn, options=fills)] == [], action


def test_every_type_of_the_stack_has_its_resources() -> None:
    """The table above is complete; CloudFormation itself handles nested stacks."""
    assert {f"AWS::{kind}" for kind in _OWN} == types()


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
    change, hand_over, _ = own["PolicyDocument"]["Statement"]
    roles = [{"Fn::GetAtt": [f"{name}Role", "Arn"]} for name in ("Deploy", "Execution", "Verify")]
    assert own["Roles"] == [{"Ref": "DeployRole"}, {"Ref": "ExecutionRole"}]
    assert change["Effect"] == hand_over["Effect"] == "Deny"
    assert change["Resource"] == hand_over["Resource"] == roles
    assert change["NotAction"] == ["iam:Get*", "iam:List*", "iam:PassRole"]
    assert hand_over["Condition"] == {
        "StringNotEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}
    }


@pytest.mark.parametrize("kind", sorted(f"AWS::{kind}" for kind in _OWN))
def test_whoever_verifies_may_read_each_resource(kind: str) -> None:
    """Drift detection reads with the caller's permissions, by the handler that reads the type.

    docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html
    """
    reading = schema_of(kind)["handlers"].get("read", {}).get("permissions", ())
    changing = ("iam:PassRole", "kms:Decrypt", "cloudwatch:PutMetricData", "s3:GetObject")
    everywhere = [pattern for pattern, where in allowed("VerifyRole") if where == "*"]
    for action in set(handled(kind)) & set(reading) - set(changing):
        assert any(fnmatchcase(action, pattern) for pattern in everywhere), action


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
    """No action on roles reaches one with another name, but for those that AWS's services use."""
    reach = {
        pattern: str(resource) for pattern, resource in allowed() if pattern.startswith("iam:")
    }
    beyond = {
        pattern
        for pattern, resource in reach.items()
        if "role/${ApplicationStackName}-*" not in resource
    }
    assert beyond == {"iam:CreateServiceLinkedRole"}
