"""What a run down every path shows: every permission is used, and no log has personal data.

What its roles asked the engine for is compared with what the template allows them.
"""

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final
from urllib.parse import unquote

import pytest

from infrastructure.rules.house_rules import listed
from local.local_aws import Asked
from tests.pipeline.saga.town import Town
from tests.template.test_graph import POLL, STREAM
from tools.transformed import source, stack

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

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

PERSONAL: Final = re.compile(r"customer_(?!id\b)\w+|sector_\d+|\b\d{13,16}\b")
"""Customers and places as all samples and simulations name them, and numbers as long as a
card's."""


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


# ── Logs ──────────────────────────────────────────────────────────────────────────────────────────


def lines(town: Town, group: str) -> Iterator[str]:
    """Yield a log group's lines without metrics' milliseconds, which look like a card's number."""
    for page in (
        town.cloud.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
    ):
        yield from (re.sub(r'"Timestamp":\d{13}', "", event["message"]) for event in page["events"])


def test_the_log_of_all_events_is_the_only_one_with_rides(town: Town) -> None:
    """It has whole events, because the audit reads them.

    The logs of functions name no customer and no place.
    """
    pages = town.cloud.client("logs").get_paginator("describe_log_groups").paginate()
    names = [group["logGroupName"] for page in pages for group in page["logGroups"]]
    groups = [name for name in names if re.search(rf"\b{town.stack.name}\b", name)]
    assert len(groups) == len(stack(Stage="local").of_type("AWS::Logs::LogGroup"))
    assert all(any(lines(town, name)) for name in groups if name.startswith("/aws/lambda/"))
    found = [name for name in groups if any(PERSONAL.search(line) for line in lines(town, name))]
    assert found == [town.stack.outputs["CarRideEventsLogGroupName"]]


def test_the_access_log_names_no_personal_data() -> None:
    """It has the route as it is written, and never path, query or body."""
    api: dict[str, Any] = source()["Resources"]["CarRideApi"]["Properties"]
    logged = set(re.findall(r"\$context\.([\w.]+)", api["AccessLogSettings"]["Format"]))
    assert logged <= {
        *("requestId", "requestTime", "routeKey", "status", "responseLatency"),
        *("identity.sourceIp", "identity.caller", "authorizer.claims.sub"),
        *("error.message", "integrationErrorMessage"),
    }
