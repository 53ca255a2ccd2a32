"""Whoever supplies a template gets no administrator, and no role that reads a table."""

import json
import subprocess
from collections.abc import Iterator
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
STACK_ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/carride-PaymentRole-1A"
FUNCTION: Final = f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:carride-PaymentFunction-1A"
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


def plain(value: Any) -> Any:
    """Return part of deploy-role.yaml with its values filled in, for one region."""
    match value:
        case {"Fn::If": _}:
            return None
        case {"Ref": str(name)}:
            return _VALUES[name]
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return _VALUES[f"{name}.{attribute}"]
        case {"Fn::Sub": str(text)}:
            for name, each in _VALUES.items():
                text = text.replace(f"${{{name}}}", each)
            return text
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list():
            return [found for each in value if (found := plain(each)) is not None]
        case _:
            return value


RESOURCES: Final = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())[
    "Resources"
]
LIMIT: Final = plain(RESOURCES["Boundary"]["Properties"]["PolicyDocument"])
OWN: Final = plain(RESOURCES["OwnRolesPolicy"]["Properties"]["PolicyDocument"])


def policies_of(role: str) -> list[Any]:
    """Return the policies of one of the two roles that deploy."""
    own = RESOURCES[role]["Properties"]["Policies"]
    return [*(plain(each["PolicyDocument"]) for each in own), OWN]


def by(role: str, action: str, resource: str, **context: str) -> Request:
    """Return a request of DeployRole or ExecutionRole."""
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


def test_no_path_leads_to_an_item() -> None:
    """Neither role that deploys reads one, nor any that a template makes and a person assumes."""
    requests = [
        request
        for action in READING
        for resource in (TABLE, f"{TABLE}/index/byCustomer")
        for request in (
            by("DeployRole", action, resource),
            by("ExecutionRole", action, resource),
            bounded(action, resource),
        )
    ]
    assert not any(decisions(requests))
    assert decisions([bounded("dynamodb:GetItem", TABLE, FROM_CODE)]) == [True]


def test_no_path_leads_out_of_the_boundary() -> None:
    """ExecutionRole makes no role without it, and nobody changes it or the roles that deploy."""
    admin = "arn:aws:iam::aws:policy/AdministratorAccess"
    refused = [
        *(
            by("ExecutionRole", action, STACK_ROLE, **context)
            for action in (
                "iam:CreateRole",
                "iam:PutRolePolicy",
                "iam:DeleteRolePolicy",
                "iam:PutRolePermissionsBoundary",
            )
            for context in ({}, {"iam_PermissionsBoundary": OTHER})
        ),
        by("ExecutionRole", "iam:DeleteRolePermissionsBoundary", STACK_ROLE),
        by(
            "ExecutionRole",
            "iam:AttachRolePolicy",
            STACK_ROLE,
            iam_PolicyARN=admin,
            iam_PermissionsBoundary=BOUNDARY,
        ),
        by("ExecutionRole", "iam:PassRole", STACK_ROLE, iam_PassedToService="ec2.amazonaws.com"),
        *(
            by(role, action, own, iam_PermissionsBoundary=BOUNDARY)
            for role in ("DeployRole", "ExecutionRole")
            for own in (DEPLOY_ROLE, EXECUTION_ROLE)
            for action in ("iam:PutRolePolicy", "iam:UpdateAssumeRolePolicy", "iam:DeleteRole")
        ),
        *(
            request
            for action in (
                "iam:CreatePolicyVersion",
                "iam:SetDefaultPolicyVersion",
                "iam:DeletePolicy",
            )
            for request in (by("ExecutionRole", action, BOUNDARY), bounded(action, BOUNDARY))
        ),
        *(
            bounded(action, resource)
            for action, resource in (
                ("iam:CreateUser", f"arn:aws:iam::{ACCOUNT}:user/somebody"),
                ("iam:PutRolePolicy", STACK_ROLE),
                ("sts:AssumeRole", EXECUTION_ROLE),
                ("s3:GetObject", "arn:aws:s3:::bucket/key"),
                ("dynamodb:GetItem", f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/other"),
            )
        ),
    ]
    allowed = [each for each, decided in zip(refused, decisions(refused), strict=True) if decided]
    assert [each[:2] for each in allowed] == []
    granted = [
        by("ExecutionRole", "iam:CreateRole", STACK_ROLE, iam_PermissionsBoundary=BOUNDARY),
        by("ExecutionRole", "iam:PutRolePolicy", STACK_ROLE, iam_PermissionsBoundary=BOUNDARY),
        by("ExecutionRole", "iam:PassRole", STACK_ROLE, iam_PassedToService="lambda.amazonaws.com"),
    ]
    assert decisions(granted) == [True, True, True]


def test_the_boundary_allows_what_the_stack_grants() -> None:
    """Each action of each role on its resource, as a function or a service asks for it."""
    requests = [
        bounded(action, resource, {**FROM_CODE, **_CONTEXT})
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
