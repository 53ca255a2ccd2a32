"""`./carride verify` passes on a sound stack, and names what is broken on another."""

from collections.abc import Callable
from typing import Any

import pytest

from local.demo import stack_ref
from local.local_aws import LocalAws
from ops import fleet
from ops.verify import Deployment, Result, Verdict, to_json, to_markdown, verify
from ops.verify.checks import CHECKS
from tests.pipeline.pipeline import Pipeline


def verified(pipeline: Pipeline, *, drills: bool = False, rides: int = 3, wait: float = 60) -> list[Result]:
    """Run the checks, and return their results."""
    deployment = Deployment(stack_ref(pipeline.cloud, pipeline.stack), rides=rides, wait=wait)
    return list(verify(deployment, [each for each in CHECKS if drills or not each.drill]))


def park(pipeline: Pipeline) -> None:
    """Give dispatch a fleet."""
    fleet.seed(pipeline.cloud.client("dynamodb"), pipeline.stack.outputs["CarTableName"], 8)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def test_a_sound_stack_passes(pipeline: Pipeline) -> None:
    """No check fails, drills included, and the reports have a row for each."""
    park(pipeline)
    results = verified(pipeline, drills=True)
    assert [each for each in results if each.verdict is Verdict.FAILED] == []
    assert sum(each.verdict is Verdict.PASSED for each in results) >= 10
    assert to_json(results)["failed"] == 0
    assert to_markdown(results).count("\n") == len(results) + 2


def _without_permission(cloud: LocalAws, pipeline: Pipeline) -> None:
    cloud.client("lambda").remove_permission(
        FunctionName=pipeline.stack.resources["RideHistoryFunction"],
        StatementId=pipeline.stack.resources["RideHistoryRulePermission"],
    )


def _without_policy(cloud: LocalAws, pipeline: Pipeline) -> None:
    url = pipeline.stack.outputs["DispatchRuleDlqUrl"]
    cloud.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})


def _without_rule(cloud: LocalAws, pipeline: Pipeline) -> None:
    rule = stack_ref(cloud, pipeline.stack).named("AWS::Events::Rule")["DispatchRule"]
    cloud.client("events").disable_rule(Name=rule, EventBusName=pipeline.stack.outputs["CarRideBusName"])


def _without_pipe(cloud: LocalAws, pipeline: Pipeline) -> None:
    cloud.client("pipes").stop_pipe(Name=pipeline.stack.outputs["OutboxPipeName"])


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (_without_permission, ["RideHistoryRule may not invoke"]),
        (_without_policy, ["DispatchRule may not send to", "DispatchRuleDlq"]),
        (_without_rule, ["DispatchRule is DISABLED"]),
        (_without_pipe, ["OutboxPipe is STOP"]),
        (lambda *_: None, ["carride fleet"]),
    ],
)
def test_what_is_broken_is_named(
    pipeline: Pipeline, broken: Callable[[LocalAws, Pipeline], Any], named: list[str]
) -> None:
    """A stack without cars, and with one thing missing, fails with the name of what is missing."""
    broken(pipeline.cloud, pipeline)
    failed = " ".join(each.detail for each in verified(pipeline, rides=0, wait=0.1) if each.verdict is Verdict.FAILED)
    assert all(each in failed for each in named), failed
