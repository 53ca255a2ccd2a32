"""In stage `dev` the stack makes the role that accepts, starts and completes rides."""

from typing import Any

import pytest

from api.callers import Caller, caller_of
from tools.transformed import Stack, stack

pytestmark = pytest.mark.integration

ACCOUNT = "123456789012"


def staff_group(deployed: Stack) -> object:
    """Return what the API compares a caller's role with."""
    return deployed.functions()["CarRideApiFunction"]["Environment"]["Variables"]["STAFF_GROUP"]


def trusted(deployed: Stack) -> object:
    """Return who may assume the staff role."""
    document = deployed.of_type("AWS::IAM::Role")["StaffRole"]["AssumeRolePolicyDocument"]
    [statement] = document["Statement"]
    assert statement["Action"] == "sts:AssumeRole"
    return statement["Principal"]["AWS"]


def request_by(arn: str) -> dict[str, Any]:
    """Return the request of a caller as API Gateway's IAM authorizer reports it."""
    iam = {"userId": "AROAEXAMPLE:session", "userArn": arn}
    return {"requestContext": {"accountId": ACCOUNT, "authorizer": {"iam": iam}}}


def test_a_stack_has_the_role_if_nothing_else_says_who_is_staff(deployed: Stack) -> None:
    """Stage `dev` with signed requests and the default StaffGroup makes it.

    Every other choice does not.
    """
    chosen = [deployed.parameters[name] for name in ("Stage", "JwtIssuer", "StaffGroup")]
    makes_role = chosen == ["dev", "", "carride-staff"]
    assert ("StaffRole" in deployed.resources) is makes_role
    assert ("StaffRoleArn" in deployed.outputs) is makes_role
    expected = {"Ref": "StaffRole"} if makes_role else {"Ref": "StaffGroup"}
    assert staff_group(deployed) == expected


def test_the_api_takes_sessions_of_the_role_for_staff() -> None:
    """The function's name for it is what the API reads from a session; a user has none."""
    assert staff_group(stack()) == {"Ref": "StaffRole"}  # the name, as CloudFormation generates it
    name = "carride-StaffRole-1A2B3C4D5E6F"
    session = request_by(f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/carride-operator")
    user = request_by(f"arn:aws:iam::{ACCOUNT}:user/{name}")
    assert caller_of(session, staff_group=name, everyone=False) == Caller("iam:AROAEXAMPLE", True)
    assert not caller_of(user, staff_group=name, everyone=False).staff


def test_the_accounts_policies_say_who_may_assume_the_role() -> None:
    """The role trusts the account, and no other one."""
    assert trusted(stack()) == {
        "Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root",
    }


def test_the_role_may_call_the_api_and_nothing_else() -> None:
    """Its one policy allows requests to the stack's own API."""
    deployed = stack()
    assert "Policies" not in deployed.of_type("AWS::IAM::Role")["StaffRole"]
    policies = [
        policy
        for policy in deployed.of_type("AWS::IAM::Policy").values()
        if {"Ref": "StaffRole"} in policy["Roles"]
    ]
    [statement] = policies[0]["PolicyDocument"]["Statement"]
    assert len(policies) == 1
    assert statement["Action"] == "execute-api:Invoke"
    assert statement["Resource"]["Fn::Sub"].endswith(":${CarRideApi}/*")
