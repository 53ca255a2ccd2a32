"""Every permission is used, and nothing is asked for without one.

One run goes down every path. What its roles asked the engine for is compared with what the template
allows them.
"""

import json
from collections.abc import Iterator
from itertools import product
from typing import Final
from urllib.parse import unquote

import pytest

from infrastructure.rules.house_rules import listed
from local.local_aws import Asked
from tests.pipeline.saga.town import Town
from tests.template.test_graph import POLL, STREAM
from tools.transformed import stack

pytestmark = pytest.mark.integration

NOT_ASKED_FOR: Final = {
    *("logs:CreateLogStream", "logs:PutLogEvents"),  # the engine writes a function's log itself
    *("xray:PutTraceSegments", "xray:PutTelemetryRecords"),  # the engine has no X-Ray
    *(f"sqs:{action}" for action in POLL),  # its poller reads queues itself
    *(f"dynamodb:{action}" for action in STREAM),  # its pipe
}
"""Actions that AWS's services take with a role, and the engine without one: only an account can
show these."""
OF_A_SERVICE: Final = frozenset({"ReconcilerScheduleRole"})
"""Roles that no function has. The schedule is disabled in stage `local`."""


type Permission = tuple[str, str, str]
"""The logical id of a role, an action and a resource."""


def granted(town: Town) -> Iterator[Permission]:
    """Yield what the deployed roles of functions and pipes allow."""
    iam = town.cloud.client("iam")
    for logical_id in set(stack(Stage="local").of_type("AWS::IAM::Role")) - OF_A_SERVICE:
        name = town.stack.resources[logical_id]
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            for statement in (
                document if isinstance(document, dict) else json.loads(unquote(document))
            )["Statement"]:
                for action, resource in product(
                    listed(statement["Action"]), listed(statement["Resource"])
                ):
                    yield logical_id, action, resource


@pytest.fixture(scope="module")
def allowed(town: Town) -> list[Permission]:
    """Return everything that the deployed roles allow."""
    return list(granted(town))


@pytest.fixture(scope="module")
def needs(town: Town) -> set[Asked]:
    """Return what roles of the stack asked for in the run, under their logical ids."""
    names = {physical: logical for logical, physical in town.stack.resources.items()}
    return {
        asked._replace(role=names[asked.role])
        for asked in town.cloud.asked()
        if asked.role in names
    }


def test_nothing_was_refused(needs: set[Asked]) -> None:
    """No path needs a permission that is not there."""
    assert {need for need in needs if not need.allowed} == set()


def test_every_permission_is_used_and_given_once(
    allowed: list[Permission], needs: set[Asked]
) -> None:
    """Each role asked for each of its actions on each resource.

    So taking away any permission would refuse a call.
    """
    asked = {need[:3] for need in needs}
    assert {each for each in allowed if each[1] not in NOT_ASKED_FOR} - asked == set()
    assert len(allowed) == len(set(allowed))


def test_what_the_engine_does_not_decide_is_known(
    allowed: list[Permission], needs: set[Asked]
) -> None:
    """The list of actions that nobody asks for is right."""
    assert {action for _, action, _ in allowed} - {need.action for need in needs} == NOT_ASKED_FOR
