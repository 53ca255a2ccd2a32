"""`./carride verify` passes on a sound stack, and names what is broken on another."""

import pytest

from ops.verify import Deployment, Result, Verdict, to_json, to_markdown, verify
from ops.verify.checks import CHECKS
from tests.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.integration


def verified(
    pipeline: Pipeline, *, drills: bool = False, rides: int = 3, wait: float = 60
) -> list[Result]:
    """Run the checks, and return their results."""
    deployment = Deployment(pipeline.stack, rides=rides, wait=wait)
    return list(verify(deployment, [each for each in CHECKS if drills or not each.drill]))


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def test_a_sound_stack_passes(pipeline: Pipeline) -> None:
    """No check fails, drills included, although nobody has parked cars; each has its row."""
    results = verified(pipeline, drills=True)
    assert [each for each in results if each.verdict is Verdict.FAILED] == []
    assert sum(each.verdict is Verdict.PASSED for each in results) >= 10
    assert to_json(results)["failed"] == 0
    assert to_markdown(results).count("\n") == len(results) + 2


def test_what_is_broken_is_named(pipeline: Pipeline) -> None:
    """A stack without cars, a permission, a policy, a rule and a pipe fails, each by name."""
    cloud = pipeline.cloud
    stack = pipeline.stack
    cloud.client("lambda").remove_permission(
        FunctionName=stack.resources["RideHistoryFunction"],
        StatementId=stack.resources["RideHistoryRulePermission"],
    )
    cloud.client("sqs").set_queue_attributes(
        QueueUrl=stack.outputs["PaymentRuleDlqUrl"], Attributes={"Policy": ""}
    )
    rule = stack.named("AWS::Events::Rule")["DispatchRule"]
    cloud.client("events").disable_rule(Name=rule, EventBusName=stack.outputs["CarRideBusName"])
    cloud.client("pipes").stop_pipe(Name=stack.outputs["OutboxPipeName"])
    failed = {
        each.detail
        for each in verified(pipeline, rides=0, wait=0.1)
        if each.verdict is Verdict.FAILED
    }
    expected = ["RideHistoryRule may not invoke", "PaymentRule may not send to", "PaymentRuleDlq"]
    for named in (*expected, "DispatchRule is DISABLED", "OutboxPipe is STOP", "carride fleet"):
        assert named in " ".join(failed)
