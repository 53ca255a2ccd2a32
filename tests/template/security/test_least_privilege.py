"""Every permission is used, and nothing is asked for without one: the roles are as narrow as they can be.

One run goes down every path. What its roles asked the engine for is compared with what the template allows them.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pytest

from local.local_aws import Asked
from tests.pipeline.saga.town import Town
from tests.template.stack import Stack as Template
from tests.template.stack import stack

NOT_ASKED_FOR: Final = {
    "logs:CreateLogStream": "the engine writes a function's log itself",
    "logs:PutLogEvents": "the engine writes a function's log itself",
    "xray:PutTraceSegments": "there is no X-Ray on this machine",
    "xray:PutTelemetryRecords": "there is no X-Ray on this machine",
    "sqs:ReceiveMessage": "the engine's poller reads the queue itself",
    "sqs:DeleteMessage": "the engine's poller reads the queue itself",
    "sqs:GetQueueAttributes": "the engine's poller reads the queue itself",
    "dynamodb:DescribeStream": "the engine's pipe reads the stream itself",
    "dynamodb:GetRecords": "the engine's pipe reads the stream itself",
    "dynamodb:GetShardIterator": "the engine's pipe reads the stream itself",
    "dynamodb:ListStreams": "the engine's pipe reads the stream itself",
}
"""What the services of AWS do with a role, and the engine without one: only an account can show these."""


OF_A_SERVICE: Final = frozenset({"ReconcilerScheduleRole"})
"""Roles that no function has. The schedule is disabled in stage `local`."""


class Permission(NamedTuple):
    """One action on one resource, as a role of the deployed stack has it."""

    role: str
    sid: str
    action: str
    resource: str


def granted(town: Town, template: Template) -> Iterator[Permission]:
    """Yield what the deployed roles of functions and pipes allow."""
    iam = town.cloud.client("iam")
    for logical_id in roles(template):
        name = town.stack.resources[logical_id]
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            for statement in (document if isinstance(document, dict) else json.loads(unquote(document)))["Statement"]:
                for action in _several(statement["Action"]):
                    for resource in _several(statement["Resource"]):
                        yield Permission(logical_id, statement["Sid"], action, resource)


def roles(template: Template) -> list[str]:
    """Return the logical ids of the roles."""
    return [role for role in template.of_type("AWS::IAM::Role") if role not in OF_A_SERVICE]


def permissions() -> Iterator[Any]:
    """Yield a test parameter for each action of each statement that the engine decides on."""
    template = stack(Stage="local", PaymentGatewayUrl="http://127.0.0.1:1")
    for role in roles(template):
        for policy in template.of_type("AWS::IAM::Role")[role]["Policies"]:
            for statement in policy["PolicyDocument"]["Statement"]:
                for action in _several(statement["Action"]):
                    if action not in NOT_ASKED_FOR:
                        yield pytest.param(role, statement["Sid"], action, id=f"{role}-{statement['Sid']}-{action}")


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def allowed(town: Town) -> list[Permission]:
    """Return everything that the deployed roles allow."""
    return list(granted(town, stack(Stage="local")))


@pytest.fixture(scope="module")
def needs(town: Town) -> set[Asked]:
    """Return what roles of the stack asked for in the run, under their logical ids."""
    names = {physical: logical for logical, physical in town.stack.resources.items()}
    return {asked._replace(role=names[asked.role]) for asked in town.cloud.asked() if asked.role in names}


def covered(need: Asked, by: list[Permission]) -> bool:
    """Whether permissions allow what was asked for. No role has a wildcard, so names are equal or they are not."""
    return any((each.role, each.action, each.resource) == need[:3] for each in by)


def test_nothing_was_refused(needs: set[Asked]) -> None:
    """No path needs a permission that is not there."""
    assert {need for need in needs if not need.allowed} == set()


def test_no_permission_is_wider_than_what_was_asked_for(allowed: list[Permission], needs: set[Asked]) -> None:
    """Each resource of each statement was asked for by its action."""
    asked = {need[:3] for need in needs}
    unused = {(each.role, each.action, each.resource) for each in allowed if each.action not in NOT_ASKED_FOR} - asked
    assert unused == set()


@pytest.mark.parametrize(("role", "sid", "action"), list(permissions()))
def test_no_permission_can_be_taken_away(
    allowed: list[Permission], needs: set[Asked], role: str, sid: str, action: str
) -> None:
    """Without this one action of this one statement, something that the run needed is refused."""
    less = [each for each in allowed if (each.role, each.sid, each.action) != (role, sid, action)]
    assert len(less) < len(allowed)
    assert all(covered(need, allowed) for need in needs)
    assert not all(covered(need, less) for need in needs)


def test_what_the_engine_does_not_decide_is_known(allowed: list[Permission], needs: set[Asked]) -> None:
    """The list of what is never asked for is right: it holds what roles have and the engine does not ask about."""
    never = {each.action for each in allowed} - {need.action for need in needs}
    assert never == set(NOT_ASKED_FOR)
