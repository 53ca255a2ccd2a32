"""`./carride verify` passes on a sound stack, and names what is broken on another."""

from typing import Any, Final

import pytest
from botocore.model import OperationModel

from local.local_aws import REGION, LocalAws
from ops.stack import StackRef
from ops.verify import Checked, Deployment, Result, Verified, to_markdown, verify
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


@pytest.mark.thorough
def test_a_sound_stack_passes(pipeline: Pipeline) -> None:
    """No check fails, drills included, although nobody has parked cars; each has its row."""
    results = verified(pipeline, drills=True)
    assert [each for each in results if each.verdict is Checked.FAILED] == []
    assert sum(each.verdict is Checked.PASSED for each in results) >= 10
    assert Verified(tuple(results)).status != 1
    assert to_markdown(results).count("\n") == len(results) + 2


def test_what_is_broken_is_named(pipeline: Pipeline) -> None:
    """A stack without cars, a permission, a policy, a rule and a pipe fails, each by name."""
    cloud = pipeline.cloud
    stack = pipeline.stack
    cloud.client("lambda").remove_permission(
        FunctionName=stack.resources["RideHistoryFunction"],
        StatementId=stack.resources["RideHistoryRulePermission"],
        Qualifier="live",
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
        if each.verdict is Checked.FAILED
    }
    expected = ["RideHistoryRule may not invoke", "PaymentRule may not send to", "PaymentRuleDlq"]
    for named in (
        *expected,
        "DispatchRule is DISABLED",
        "OutboxPipe is STOP",
        "carride drive fleet",
    ):
        assert named in " ".join(failed)


DRIVEN: Final = ("Dispatch has cars", "A booking over the API", "Every event of simulated rides")
"""How the statements of the checks begin that drive rides."""


@pytest.mark.thorough
def test_rides_are_driven_in_stage_dev(cloud: LocalAws, name: str) -> None:
    """The requests are signed, the staff's by the role that the stack makes."""
    deployment = Deployment(cloud.deploy_fast(name, Stage="dev"), rides=3, wait=60)
    checks = [each for each in CHECKS if each.statement.startswith(DRIVEN)]
    results = list(verify(deployment, checks))
    assert [each.verdict for each in results] == [Checked.PASSED] * len(DRIVEN), results
    cloud.reset()


class Recorder:
    """Clients of a stack, which remember what they were asked, as actions of IAM."""

    SERVICES: Final = {"monitoring": "cloudwatch"}
    ACTIONS: Final = {"lambda:Invoke": "lambda:InvokeFunction"}

    def __init__(self, cloud: LocalAws) -> None:
        self.actions = set[str]()
        self._cloud = cloud
        self._known = set[int]()

    def __call__(self, service: str, region: str) -> Any:
        """Return a client, as `StackRef` asks for it."""
        client = self._cloud.client(service, region)
        if id(client) not in self._known:
            self._known.add(id(client))
            client.meta.events.register("before-call", self._remember)
        return client

    def _remember(self, model: OperationModel, **_: Any) -> None:
        signed_for = model.service_model.signing_name
        action = f"{self.SERVICES.get(signed_for, signed_for)}:{model.name}"
        self.actions.add(self.ACTIONS.get(action, action))


READING: Final = ("Describe", "Detect", "Filter", "Get", "List", "Scan")
"""How the names of actions begin that change nothing."""
ACTING: Final = {
    "dynamodb:PutItem",
    "lambda:InvokeFunction",
    "sqs:ReceiveMessage",
    "sts:AssumeRole",
}
"""What docs/on-an-account.md names for other stages than `prod`, besides calls of the API."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chosen", "acting"),
    [({"Stage": "dev"}, ACTING), ({"Stage": "prod"}, set())],
)
def test_a_verification_needs_these_rights(
    cloud: LocalAws, name: str, chosen: dict[str, str], acting: set[str]
) -> None:
    """Without drills it reads, and in production nothing else.

    The engine lacks backups, metrics and composite alarms: checks fail, but ask.
    """
    cloud.deploy_fast(name, None, **chosen)
    asked = Recorder(cloud)
    deployment = Deployment(StackRef(name, REGION, asked), rides=1, wait=0.1)
    found = list(verify(deployment, [each for each in CHECKS if not each.drill]))
    assert sum(each.verdict is Checked.PASSED for each in found) >= 8
    others = {each for each in asked.actions if not each.partition(":")[2].startswith(READING)}
    assert others == acting
    cloud.reset()
