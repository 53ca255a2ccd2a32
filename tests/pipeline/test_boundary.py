"""A stack with a permissions boundary serves rides, and nobody reads its tables by a role."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import boto3
import pytest
from botocore.exceptions import ClientError
from samtranslator.yaml_helper import yaml_parse

from local.local_aws import REGION, LocalAws, Stack
from ops.verify import Deployment, Verdict, verify
from ops.verify.checks import CHECKS
from tools.transformed import ROOT

pytestmark = pytest.mark.integration

ROLES: Final = yaml_parse((ROOT / "infrastructure" / "deploy-role.yaml").read_text())
DRIVEN: Final = ("Dispatch has cars", "A booking over the API", "Every event of simulated rides")
"""How the statements of the checks begin that drive rides."""


class Bounded(NamedTuple):
    """A stack, and the boundary of its roles."""

    stack: Stack
    boundary: str


@pytest.fixture(scope="module")
def bounded(cloud: LocalAws) -> Iterator[Bounded]:
    """Return a stack whose name begins with the application's, as the workflow deploys it."""
    roles = cloud.deploy_fast("bounded-deploy", ROLES, ApplicationStackName="bounded")
    boundary = roles.outputs["BoundaryArn"]
    stack = cloud.deploy_fast("bounded-dev", None, Stage="dev", PermissionsBoundaryArn=boundary)
    yield Bounded(stack, boundary)
    cloud.reset()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def test_rides_are_booked_and_paid_within_the_boundary(cloud: LocalAws, bounded: Bounded) -> None:
    """No request of a role is refused, and every event takes effect once."""
    deployment = Deployment(bounded.stack, rides=3, wait=60)
    checks = [each for each in CHECKS if each.statement.startswith(DRIVEN)]
    results = list(verify(deployment, checks))
    assert [each.verdict for each in results] == [Verdict.PASSED] * len(DRIVEN), results
    asked = [each for each in cloud.asked() if each.role.startswith(bounded.stack.name)]
    assert {each.action for each in asked} >= {"dynamodb:PutItem", "dynamodb:GetItem"}
    assert [each for each in asked if not each.allowed] == []


def a_persons_role(cloud: LocalAws, name: str, **properties: Any) -> Any:
    """Deploy a role that may do everything and that everybody in the account may assume.

    Return a client of DynamoDB that acts with it.
    """
    statement = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    role = {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"AWS": {"Ref": "AWS::AccountId"}},
                        "Action": "sts:AssumeRole",
                    }
                ],
            },
            "Policies": [
                {
                    "PolicyName": "Everything",
                    "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]},
                }
            ],
            **properties,
        },
    }
    outputs = {"Arn": {"Value": {"Fn::GetAtt": ["Role", "Arn"]}}}
    stack = cloud.deploy_fast(name, {"Resources": {"Role": role}, "Outputs": outputs})
    sts = cloud.client("sts")
    given = sts.assume_role(RoleArn=stack.outputs["Arn"], RoleSessionName="somebody")["Credentials"]
    return boto3.client(
        "dynamodb",
        region_name=REGION,
        endpoint_url=cloud.endpoint_url,
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
    )


def test_a_role_that_a_person_assumes_reads_no_table(cloud: LocalAws, bounded: Bounded) -> None:
    """Although a template allows it everything; without the boundary it reads them."""
    request: dict[str, Any] = {
        "TableName": bounded.stack.outputs["BookingTableName"],
        "Key": {"orderID": {"S": "somebody's"}},
    }
    unbounded = a_persons_role(cloud, "bounded-without")
    unbounded.get_item(**request)
    within = a_persons_role(cloud, "bounded-within", PermissionsBoundary=bounded.boundary)
    with pytest.raises(ClientError, match="AccessDenied"):
        within.get_item(**request)
