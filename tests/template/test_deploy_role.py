"""The role of CloudFormation can create, change and delete all that the stack has, and nothing that the stack keeps."""

import json
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

import cfnlint
import pytest
from samtranslator.yaml_helper import yaml_parse

from tests.template.stack import every_choice
from tools.transformed import ROOT, stack

pytestmark = pytest.mark.integration

_SCHEMAS: Final = Path(cfnlint.__file__).parent / "data" / "schemas"
_OTHERS: Final = (
    # Permissions that IAM does not know: the tags of an API are posted.
    *("apigateway:TagResource", "apigateway:UntagResource", "*:AllowVendedLogDeliveryForResource"),
    # Options of these types that the template does not use: networks, file systems, streams, other
    # targets of logs, resource policies of tables, roles' boundaries, code signing, provisioned
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
        "iam:*Boundary",
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


@cache
def needed() -> frozenset[str]:
    """Return the actions with which CloudFormation handles the types of the stack, whatever its parameters are."""
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
    """AWS's own list of actions, for each type that any choice of parameters creates, is allowed."""
    patterns = [pattern for pattern, _ in allowed()]
    assert (
        sorted(
            each for each in needed() if not any(fnmatchcase(each, pattern) for pattern in patterns)
        )
        == []
    )


def test_nothing_is_allowed_that_no_type_needs() -> None:
    """Each pattern is there for an action that some type needs, or for the transform and the nested stacks."""
    own = ("cloudformation:*", "s3:Get*")
    idle = [
        pattern
        for pattern, _ in allowed()
        if not any(fnmatchcase(each, pattern) for each in needed())
        and not any(fnmatchcase(pattern, o) for o in own)
    ]
    assert idle == []


@pytest.mark.parametrize("action", _DATA)
def test_what_the_stack_keeps_is_out_of_reach(action: str) -> None:
    """The role cannot read or change items, messages, events and log lines, or become somebody else."""
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
