"""A template makes no administrator, and nobody reads a table but by the code of a function."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from samtranslator.yaml_helper import yaml_parse

from infrastructure.rules.house_rules import listed
from tests.template.stack import every_choice
from tools.transformed import ROLES, ROOT, Stack, stack

pytestmark = pytest.mark.integration

ACCOUNT: Final = "123456789012"
BOUNDARY: Final = f"arn:aws:iam::{ACCOUNT}:policy/carride-deploy-Boundary-1A"
OTHER: Final = f"arn:aws:iam::{ACCOUNT}:policy/another"
DEPLOY_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/carride-deploy-DeployRole-1A"
EXECUTION_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/carride-deploy-ExecutionRole-1A"
VERIFY_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/carride-deploy-VerifyRole-1A"
STACK_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/carride-PaymentRole-1A"
FUNCTION: Final = f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:carride-PaymentFunction-1A"
STAFF_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/carride-StaffRole-1A"
TABLE: Final = f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/carride-BookingTable"
FROM_CODE: Final = {"lambda:SourceFunctionArn": FUNCTION}
EVERYTHING: Final = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
READING: Final = (
    "dynamodb:BatchGetItem",
    "dynamodb:ExportTableToPointInTime",
    "dynamodb:GetItem",
    "dynamodb:PartiQLSelect",
    "dynamodb:Query",
    "dynamodb:Scan",
)
_AUTHORIZER: Final = Path(__file__).with_name("authorizer.py")
_VALUES: Final = {
    "AWS::Partition": "aws",
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": "us-east-1",
    "AWS::StackName": "carride",
    "ApplicationStackName": "carride",
    "PeerRegion": "eu-west-1",
    "CarRideBus": "carride-bus",
    "CarRideApi": "a1b2c3",
    "Boundary": BOUNDARY,
    "DeployRole.Arn": DEPLOY_ROLE,
    "ExecutionRole.Arn": EXECUTION_ROLE,
    "VerifyRole.Arn": VERIFY_ROLE,
}


class Request(NamedTuple):
    """A request, with the policies of the role that makes it."""

    action: str
    resource: str
    policies: list[Any]
    limits: list[Any]
    context: dict[str, str]


def decisions(requests: list[Request]) -> list[bool]:
    """Return whether the engine's authorizer allows each request."""
    done = subprocess.run(
        [ROOT / ".venv-engine" / "bin" / "python", _AUTHORIZER],
        input=json.dumps([each._asdict() for each in requests]),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


def plain(value: Any, values: Mapping[str, str] = _VALUES) -> Any:
    """Return part of a template with its values filled in, for one region."""
    match value:
        case {"Fn::If": _}:
            return None
        case {"Ref": str(name)}:
            return values[name]
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return values[f"{name}.{attribute}"]
        case {"Fn::Sub": str(text)}:
            for name, each in values.items():
                text = text.replace(f"${{{name}}}", each)
            return text
        case dict():
            return {key: plain(inner, values) for key, inner in value.items()}
        case list():
            return [found for each in value if (found := plain(each, values)) is not None]
        case _:
            return value


RESOURCES: Final = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())[
    "Resources"
]
OF_THE_ROLES: Final = _VALUES | {"AWS::StackName": "carride-deploy"}
"""The values of deploy-role.yaml."""
LIMIT: Final = plain(RESOURCES["Boundary"]["Properties"]["PolicyDocument"], OF_THE_ROLES)
OWN: Final = plain(RESOURCES["OwnRolesPolicy"]["Properties"]["PolicyDocument"], OF_THE_ROLES)


def policies_of(role: str) -> list[Any]:
    """Return the policies of a role of deploy-role.yaml."""
    own = RESOURCES[role]["Properties"]["Policies"]
    return [*(plain(each["PolicyDocument"], OF_THE_ROLES) for each in own), OWN]


def by(role: str, action: str, resource: str, **context: str) -> Request:
    """Return a request of a role of deploy-role.yaml."""
    given = {name.replace("_", ":"): value for name, value in context.items()}
    return Request(action, resource, policies_of(role), [], given)


def bounded(action: str, resource: str, context: dict[str, str] | None = None) -> Request:
    """Return a request of a role that a template has given every permission."""
    return Request(action, resource, [EVERYTHING], [LIMIT], context or {})


def test_every_role_of_a_stack_is_bounded_if_a_boundary_is_given() -> None:
    """Also those of nested stacks, and CodeDeploy's."""
    for choice in (*every_choice(), ROLES["primary"]):
        for given in ("", BOUNDARY):
            deployed = stack(**{**choice, "PermissionsBoundaryArn": given})
            for name, role in deployed.of_type("AWS::IAM::Role").items():
                assert ("PermissionsBoundary" in role) is bool(given), name


def test_the_policies_fit() -> None:
    """IAM takes 10,240 characters of a role's own policies, and 6,144 of a managed one.

    docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html; a name may be long.
    """
    assert _length([LIMIT]) < 6_144 * 0.7
    for role in ("DeployRole", "ExecutionRole"):
        assert _length(policies_of(role)) < 10_240 * 0.8


def _length(documents: list[Any]) -> int:
    """Return the characters of policies without white space, which IAM does not count."""
    return sum(len(json.dumps(each, separators=(",", ":"))) for each in documents)


ADMINISTRATOR: Final = "arn:aws:iam::aws:policy/AdministratorAccess"
OTHER_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/administrator"
BUCKET: Final = "arn:aws:s3:::aws-sam-cli-managed-default-samclisourcebucket-1a"
STREAM: Final = f"{TABLE}/stream/2026"
STACK: Final = f"arn:aws:cloudformation:us-east-1:{ACCOUNT}:stack"
EVENTS: Final = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/aws/events/carride:*"
QUEUE: Final = f"arn:aws:sqs:us-east-1:{ACCOUNT}:carride-DispatchQueue-1A"
DEPLOYERS: Final = ("DeployRole", "ExecutionRole")


def by_both(actions: Iterable[str], resource: str, **context: str) -> list[Request]:
    """Return the requests of both roles that deploy."""
    return [by(role, each, resource, **context) for each in actions for role in DEPLOYERS]


def by_all(*actions: str, resource: str = TABLE) -> list[Request]:
    """Return requests of both, of a role that a template made, and of a function's code."""
    made = [bounded(each, resource, given) for each in actions for given in ({}, FROM_CODE)]
    return [*by_both(actions, resource), *made]


CLOSED: Final[dict[str, list[Request]]] = {
    # docs.aws.amazon.com/amazondynamodb/latest/developerguide: the ways out of a table
    "an item, by a person": [
        request
        for action in READING
        for resource in (TABLE, f"{TABLE}/index/byCustomer")
        for request in (*by_both([action], resource), bounded(action, resource))
    ],
    "a whole table, by a function's code": [
        bounded(action, TABLE, FROM_CODE) for action in ("dynamodb:Scan", "dynamodb:PartiQLSelect")
    ],
    "an export to a bucket": by_all("dynamodb:ExportTableToPointInTime"),
    "a copy of the table": by_all(
        "dynamodb:CreateBackup",
        "dynamodb:RestoreTableFromBackup",
        "dynamodb:RestoreTableToPointInTime",
        "dynamodb:StartAwsBackupJob",
    ),
    "a policy of the table, which no boundary limits": by_all("dynamodb:PutResourcePolicy"),
    "a replica in another account": by_all("dynamodb:AssociateTableReplica"),
    "the stream of a table, also by an event source mapping": by_all(
        "dynamodb:GetRecords", resource=STREAM
    ),
    "a stream of Kinesis": by_all("dynamodb:EnableKinesisStreamingDestination"),
    # docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
    "a target of a schedule": [bounded(each, TABLE) for each in READING],
    # docs.aws.amazon.com/AmazonCloudWatch/latest/logs: the ways out of a log group
    "lines of a log": by_all(
        "logs:CreateExportTask",
        "logs:CreateScheduledQuery",
        "logs:FilterLogEvents",
        "logs:GetLogEvents",
        "logs:PutSubscriptionFilter",
        "logs:StartQuery",
        resource=EVENTS,
    ),
    "messages and archives": [
        *by_both(["sqs:ReceiveMessage"], QUEUE),
        *by_both(["events:StartReplay"], f"arn:aws:events:us-east-1:{ACCOUNT}:replay/carride"),
    ],
    # docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/dynamic-references.html
    "a secret that a template refers to": by_both(
        ["secretsmanager:GetSecretValue"], f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:a"
    ),
    "a function, by a person or a custom resource": by_both(["lambda:InvokeFunction"], FUNCTION),
    # rhinosecuritylabs.com/aws/aws-privilege-escalation-methods-mitigation: the ways to be
    # somebody else
    "a role without the boundary": [
        by("ExecutionRole", action, STACK_ROLE, **context)
        for action in (
            "iam:CreateRole",
            "iam:PutRolePolicy",
            "iam:DeleteRolePolicy",
            "iam:PutRolePermissionsBoundary",
        )
        for context in ({}, {"iam_PermissionsBoundary": OTHER})
    ],
    "a role that loses it": [
        by("ExecutionRole", "iam:DeleteRolePermissionsBoundary", STACK_ROLE),
        bounded("iam:DeleteRolePermissionsBoundary", STACK_ROLE),
    ],
    "another boundary under its name": [
        request
        for action in (
            "iam:CreatePolicy",
            "iam:CreatePolicyVersion",
            "iam:DeletePolicy",
            "iam:DeletePolicyVersion",
            "iam:SetDefaultPolicyVersion",
        )
        for request in (*by_both([action], BOUNDARY), bounded(action, BOUNDARY))
    ],
    "the policy of an administrator": [
        by(
            "ExecutionRole",
            "iam:AttachRolePolicy",
            STACK_ROLE,
            iam_PolicyARN=ADMINISTRATOR,
            iam_PermissionsBoundary=BOUNDARY,
        ),
        bounded("iam:PutRolePolicy", STACK_ROLE),
    ],
    "users and their keys": [
        request
        for action in ("iam:AddUserToGroup", "iam:CreateAccessKey", "iam:CreateLoginProfile")
        for user in [f"arn:aws:iam::{ACCOUNT}:user/somebody"]
        for request in (*by_both([action], user), bounded(action, user))
    ],
    "another role": [
        *by_both(["sts:AssumeRole", "iam:UpdateAssumeRolePolicy"], OTHER_ROLE),
        *by_both(["sts:AssumeRole"], STACK_ROLE),
        bounded("sts:AssumeRole", EXECUTION_ROLE),
    ],
    "a role of an older stack, which has no boundary": by_both(
        ["iam:UpdateAssumeRolePolicy"], STACK_ROLE
    ),
    "a machine that has the role": [
        by(
            "ExecutionRole",
            "iam:PassRole",
            STACK_ROLE,
            iam_PassedToService=f"{service}.amazonaws.com",
        )
        for service in ("ec2", "ecs-tasks", "glue", "states", "cloudformation", "sagemaker")
    ],
    "the roles that deploy": [
        by(role, action, own, iam_PermissionsBoundary=BOUNDARY)
        for role in DEPLOYERS
        for own in (DEPLOY_ROLE, EXECUTION_ROLE, VERIFY_ROLE)
        for action in ("iam:PutRolePolicy", "iam:UpdateAssumeRolePolicy", "iam:DeleteRole")
    ],
    # docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-iam-servicerole.html
    "the role of another stack of that name": [
        by("DeployRole", "cloudformation:CreateChangeSet", f"{STACK}/carride-x/1a", **context)
        for context in ({}, {"cloudformation_RoleArn": OTHER_ROLE})
    ],
    "CloudFormation as another role": [
        by(
            "DeployRole",
            "iam:PassRole",
            OTHER_ROLE,
            iam_PassedToService="cloudformation.amazonaws.com",
        )
    ],
    "the stack of the roles that deploy": by_both(
        [
            "cloudformation:CreateChangeSet",
            "cloudformation:DeleteStack",
            "cloudformation:ExecuteChangeSet",
            "cloudformation:UpdateStack",
        ],
        f"{STACK}/carride-deploy/1a",
        cloudformation_RoleArn=EXECUTION_ROLE,
    ),
    "the code of another application": [
        *by_both(["s3:GetObject", "s3:PutObject"], f"{BUCKET}/another/0a1b"),
        *by_both(["s3:GetObject", "s3:PutObject"], f"{BUCKET}/0a1b"),
        bounded("s3:GetObject", f"{BUCKET}/carride/0a1b"),
    ],
    "rides, by whoever verifies": [
        *(by("VerifyRole", action, TABLE) for action in READING),
        by("VerifyRole", "dynamodb:GetRecords", STREAM),
        by(
            "VerifyRole",
            "dynamodb:PutItem",
            f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/carride-CarTable",
        ),
        by("VerifyRole", "logs:FilterLogEvents", EVENTS),
        by("VerifyRole", "sqs:ReceiveMessage", QUEUE),
        by("VerifyRole", "lambda:InvokeFunction", FUNCTION),
        by("VerifyRole", "execute-api:Invoke", f"arn:aws:execute-api:us-east-1:{ACCOUNT}:a1b2/*"),
        by("VerifyRole", "sts:AssumeRole", STAFF_ROLE),
        by("VerifyRole", "cloudformation:CreateChangeSet", f"{STACK}/carride/1a"),
    ],
    "the data of another application": [
        bounded("dynamodb:GetItem", f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/other", FROM_CODE)
    ],
}
"""Ways to data or to more permissions, each with its requests, none of which is allowed.

Each line names the pages that list such ways.
"""


@pytest.mark.parametrize("way", CLOSED)
def test_a_way_is_closed(way: str) -> None:
    """Each of its requests is refused."""
    requests = CLOSED[way]
    found = zip(requests, decisions(requests), strict=True)
    assert [each[:2] for each, is_allowed in found if is_allowed] == []


def test_what_a_template_or_code_decides_is_open() -> None:
    """The rest of the header: code reads items, and a template says who calls it and who is staff.

    Deploying needs each of these.
    """
    requests = [
        bounded("dynamodb:GetItem", TABLE, FROM_CODE),
        by("ExecutionRole", "lambda:UpdateFunctionCode", FUNCTION),
        by("ExecutionRole", "lambda:AddPermission", FUNCTION),
        by("ExecutionRole", "sqs:SetQueueAttributes", QUEUE),
        by("ExecutionRole", "iam:UpdateAssumeRolePolicy", STAFF_ROLE),
        by("DeployRole", "s3:PutObject", f"{BUCKET}/carride/0a1b"),
    ]
    assert all(decisions(requests))


@pytest.mark.parametrize("name", ["carride", "carride-dev", "carride-prod"])
def test_what_a_deployment_needs_is_open(name: str) -> None:
    """For a stack of the application's name, and for one whose name begins with it."""
    role = f"arn:aws:iam::{ACCOUNT}:role/{name}-PaymentRole-1A"
    a_stack = f"{STACK}/{name}/1a"
    requests = [
        by(
            "DeployRole",
            "cloudformation:CreateChangeSet",
            a_stack,
            cloudformation_RoleArn=EXECUTION_ROLE,
        ),
        by("DeployRole", "cloudformation:ExecuteChangeSet", a_stack),
        by("DeployRole", "cloudformation:DeleteStack", a_stack),
        by("DeployRole", "s3:PutObject", f"{BUCKET}/{name}/0a1b"),
        by("DeployRole", "s3:ListBucket", BUCKET),
        by(
            "DeployRole",
            "iam:PassRole",
            EXECUTION_ROLE,
            iam_PassedToService="cloudformation.amazonaws.com",
        ),
        by("ExecutionRole", "s3:GetObject", f"{BUCKET}/{name}/0a1b"),
        by("ExecutionRole", "iam:CreateRole", role, iam_PermissionsBoundary=BOUNDARY),
        by("ExecutionRole", "iam:PutRolePolicy", role, iam_PermissionsBoundary=BOUNDARY),
        by("ExecutionRole", "iam:PassRole", role, iam_PassedToService="lambda.amazonaws.com"),
    ]
    found = zip(requests, decisions(requests), strict=True)
    assert [each[:2] for each, is_allowed in found if not is_allowed] == []


@pytest.mark.parametrize("name", ["carride", "carride-dev", "carride-prod"])
def test_the_boundary_allows_what_the_stack_grants(name: str) -> None:
    """Each action of each role on its resource, as a function or a service asks for it."""
    requests = [
        bounded(
            action,
            resource.replace("carride", name),
            {"lambda:SourceFunctionArn": FUNCTION.replace("carride", name), **_CONTEXT},
        )
        for choice in (*every_choice(), ROLES["primary"], {})
        for action, resource in granted_by(stack(**choice))
    ]
    unique = list({(each.action, each.resource): each for each in requests}.values())
    found = zip(unique, decisions(unique), strict=True)
    assert [each[:2] for each, allowed in found if not allowed] == []


_CONTEXT: Final = {
    "kms:ViaService": "dynamodb.us-east-1.amazonaws.com",
    "iam:PassedToService": "events.amazonaws.com",
}


def granted_by(deployed: Stack) -> Iterator[tuple[str, str]]:
    """Yield each action that a role of the stack has, with a resource."""
    documents = [
        policy["PolicyDocument"]
        for role in deployed.of_type("AWS::IAM::Role").values()
        for policy in role.get("Policies", ())
    ]
    documents += [each["PolicyDocument"] for each in deployed.of_type("AWS::IAM::Policy").values()]
    for document in documents:
        for statement in document["Statement"]:
            for action in listed(statement["Action"]):
                for resource in listed(statement["Resource"]):
                    yield action, arn_of(deployed, resource)


def arn_of(deployed: Stack, resource: Any) -> str:
    """Return the ARN that a resource of a statement has in a stack named `carride`."""
    match resource:
        case {"Ref": "OutboxStreamArn"} | {"Fn::GetAtt": [_, "StreamArn"]}:
            return f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/carride-OutboxTable/stream/2026"
        case {"Ref": "KmsKeyArn"}:
            return f"arn:aws:kms:us-east-1:{ACCOUNT}:key/0a1b"
        case {"Ref": "PaymentGatewaySecretArn"}:
            return f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:gateway-AbCdEf"
        case {"Fn::GetAtt": [str(name), "Arn"]} | {"Ref": str(name)}:
            kind = deployed.resources.get(name, {"Type": "AWS::Lambda::Alias"})["Type"]
            return _ARNS[kind].format(name=name)
        case str(text):
            return text
        case _:
            return str(plain(resource))


_HERE: Final = f"us-east-1:{ACCOUNT}"
_ARNS: Final = {
    "AWS::Lambda::Function": f"arn:aws:lambda:{_HERE}:function:carride-{{name}}-1A",
    "AWS::Lambda::Alias": f"arn:aws:lambda:{_HERE}:function:carride-{{name}}-1A:live",
    "AWS::SQS::Queue": f"arn:aws:sqs:{_HERE}:carride-{{name}}-1A",
    "AWS::Events::EventBus": f"arn:aws:events:{_HERE}:event-bus/carride-bus",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/carride-{{name}}-1A",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{_HERE}:log-group:/aws/lambda/carride/{{name}}:*",
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{_HERE}:table/carride-{{name}}",
}
