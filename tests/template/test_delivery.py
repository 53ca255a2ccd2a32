"""How a new version takes over, how much may run at once, and whether every time fits."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest.mock import Mock

import botocore.session
import pytest

from carride import clients
from carride_idempotency.dead_letters import DeadLetter, SqsDeadLetters
from carride_idempotency.stores.transport import botocore_transport
from carride_idempotency.testing import sqs_event
from carride_idempotency.testing.worlds import CRASH_BEFORE, Fault
from infrastructure.rules import house_rules
from tests.kit.rides import Life
from tests.template.deployment import Deployment
from tests.template.stack import options
from tests.world.wiring import wiring
from tools.transformed import Stack, named, stack

pytestmark = pytest.mark.integration

RELEASE: Final = "0123456789"
STRATEGIES: Final = [name for name in options()["DeploymentStrategy"] if name != "AllAtOnce"]
DIRECT: Final = {
    *("AWS::Lambda::Version", "AWS::Lambda::Alias", "AWS::Lambda::EventInvokeConfig"),
    "AWS::CloudWatch::Alarm",
}
"""Types of resources that name a function, not its alias: they do not invoke it."""
OF_AN_ACCOUNT = 1_000
KEPT_UNRESERVED = 100
"""Concurrent invocations: an account's default quota, and the part of it that Lambda keeps
unreserved."""


def holders(deployed: Stack, names: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each output, and each resource with its type, that names one of these."""
    for name, resource in deployed.resources.items():
        if house_rules.named(resource.get("Properties", {})) & set(names):
            yield name, resource["Type"]
    for name, output in deployed.outputs.items():
        if house_rules.named(output) & set(names):
            yield name, "output"


# ── Versions ──────────────────────────────────────────────────────────────────────────────────────


def test_only_a_gradual_deployment_goes_through_aliases(deployed: Stack) -> None:
    """Then everything that invokes a function names its alias; by default nothing does."""
    aliases = deployed.of_type("AWS::Lambda::Alias")
    groups = deployed.of_type("AWS::CodeDeploy::DeploymentGroup")
    configs = deployed.of_type("AWS::Lambda::EventInvokeConfig").values()
    if deployed.conditions["DeploysGradually"]:
        assert {kind for _, kind in holders(deployed, deployed.functions())} <= DIRECT
        assert {house_rules.named(each["Qualifier"]).pop() for each in configs} <= set(aliases)
        assert len(groups) == len(aliases) == len(deployed.functions())
    else:
        assert list(holders(deployed, aliases)) == []
        assert {each["Qualifier"] for each in configs} == {"$LATEST"}
        assert groups == {}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradual_deployment_rolls_back_on_errors(strategy: str) -> None:
    """Each function has a deployment group of its own, with the steps and its error alarm."""
    gradual = stack(DeploymentStrategy=strategy, Release=RELEASE)
    for name in gradual.functions():
        update = gradual.resources[f"{name}Aliaslive"]["UpdatePolicy"][
            "CodeDeployLambdaAliasUpdate"
        ]
        group = gradual.resources[update["DeploymentGroupName"]["Ref"]]["Properties"]
        assert group["DeploymentConfigName"]["Fn::Sub"][1]["ConfigName"] == strategy
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        (alarm,) = group["AlarmConfiguration"]["Alarms"]
        watched = gradual.resources[alarm["Name"]["Ref"]]["Properties"]
        dimensions = [{"Name": "FunctionName", "Value": {"Ref": name}}]
        assert (watched["MetricName"], watched["Dimensions"]) == ("Errors", dimensions)


def test_a_release_publishes_every_function() -> None:
    """A release publishes new versions even if only a parameter changed, unlike SAM by itself."""

    def versions(**chosen: str) -> set[str]:
        return set(stack(**chosen).of_type("AWS::Lambda::Version"))

    first = versions(DeploymentStrategy=STRATEGIES[0], Release=RELEASE)
    assert first.isdisjoint(versions(DeploymentStrategy=STRATEGIES[0], Release=RELEASE[::-1]))
    assert versions() == versions(LogLevel="DEBUG"), (
        "SAM notices parameters by itself now: Release could go"
    )


# ── Times and numbers that fit ────────────────────────────────────────────────────────────────────


def test_a_message_stays_hidden_six_times_as_long_as_its_function_may_run(deployed: Stack) -> None:
    """AWS recommends it, so that throttled batches are tried again before their messages return."""
    for mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").values():
        queue = deployed.of_type("AWS::SQS::Queue")[named(mapping["EventSourceArn"])]
        assert (
            queue["VisibilityTimeout"]
            >= 6 * deployed.functions()[named(mapping["FunctionName"])]["Timeout"]
        )


DEAD_LETTER: Final = DeadLetter("CONTRACT", "it breaks the contract", "ride-history", None, 0, {})
OF_THE_API: Final = (clients.lambda_client, botocore_transport)
OF_OTHERS: Final = (
    *(clients.events_client, clients.sqs_client, botocore_transport),
    lambda: SqsDeadLetters("https://queue").send(DEAD_LETTER),
)


@pytest.mark.parametrize(
    ("make", "api"),
    [*((make, True) for make in OF_THE_API), *((make, False) for make in OF_OTHERS)],
)
def test_a_call_is_given_up_before_the_function_is(
    make: Callable[[], object], api: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call's attempts and waits end before the function is killed, so that it can report."""
    configs: list[Any] = []

    def create(_session: object, *_: object, config: object, **_others: object) -> Mock:
        configs.append(config)
        return Mock()

    monkeypatch.setattr(botocore.session.Session, "create_client", create)
    make()
    (config,) = configs
    attempts = config.retries["total_max_attempts"]
    longest_s = (config.connect_timeout + config.read_timeout) * attempts + sum(
        2**n for n in range(attempts - 1)
    )
    waiting = {
        name: each
        for name, each in stack().functions().items()
        if (name == "CarRideApiFunction") is api
    }
    assert longest_s < min(int(function["Timeout"]) for function in waiting.values())


def test_a_message_that_fails_beside_others_returns_to_its_queue() -> None:
    """What a function reports as failed is what its mapping leaves in the queue."""
    (mapping,) = wiring().mappings
    deployed = Deployment({})
    events = [deployed.event(Life(ride).accepted) for ride in ("order_01", "order_02")]
    batch = sqs_event(*events)
    killed = Fault(CRASH_BEFORE, lambda call, _: call == 3)
    # An attempt of the second event, in a later message, holds its key.
    deployed.run(mapping.function, sqs_event(events[1], first=9), killed)
    answer = deployed.run(mapping.function, batch)
    assert [item["orderID"] for item in deployed.items("AssignmentTable")] == ["order_01"]
    reported = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    left = reported if mapping.reports else []
    assert left == [batch["Records"][1]["messageId"]]


def test_reserved_concurrency_leaves_an_account_enough(deployed: Stack) -> None:
    """By default nothing is reserved.

    The highest choice fits into an account with the usual quota.
    """
    number = int(deployed.parameters["ReservedConcurrency"])
    reserved = [
        function.get("ReservedConcurrentExecutions") for function in deployed.functions().values()
    ]
    assert set(map(str, reserved)) == {str({"Ref": "ReservedConcurrency"} if number else None)}
    assert len(reserved) * number + KEPT_UNRESERVED <= OF_AN_ACCOUNT
    expected = {"Ref": "ReservedConcurrency" if number else "DispatchConcurrency"}
    for mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").values():
        assert mapping["ScalingConfig"]["MaximumConcurrency"] == expected, (
            "SQS would be throttled by its own function"
        )
