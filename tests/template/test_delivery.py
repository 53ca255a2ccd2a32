"""How a new version takes over, how much may run at once, and whether every time fits."""

import re
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
from ops.audit.reading import AUDITED_RULES
from tests.kit.rides import Life
from tests.template.deployment import Deployment
from tests.world.wiring import wiring
from tools.transformed import Stack, named, source, stack

pytestmark = pytest.mark.integration

STRATEGIES: Final = source()["Parameters"]["DeploymentStrategy"]["AllowedValues"][1:]
DIRECT: Final = {
    *("AWS::Lambda::Version", "AWS::Lambda::Alias", "AWS::Lambda::EventInvokeConfig"),
    "AWS::CloudWatch::Alarm",
}
"""Types of resources that name a function, not its alias: they do not invoke it."""
OF_CODEDEPLOY: Final = {
    *("AWS::CodeDeploy::Application", "AWS::CodeDeploy::DeploymentGroup"),
    "AWS::IAM::Role",
}
"""Types of what a gradual deployment has besides: CodeDeploy's resources and its role."""
LONGEST: Final = 256
"""Characters of the description of a function or a version."""
NOT_OF_A_VERSION: Final = {
    *("Description", "VersionDescription", "DeploymentPreference", "Events", "EventInvokeConfig"),
    *("CodeUri", "Role", "LoggingConfig"),
}
"""Properties of SAM's function that are no settings of a version, or name resources only."""


def holders(deployed: Stack, names: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each output, and each resource with its type, that names one of these."""
    for name, resource in deployed.resources.items():
        if house_rules.named(resource.get("Properties", {})) & set(names):
            yield name, resource["Type"]
    for name, output in deployed.outputs.items():
        if house_rules.named(output) & set(names):
            yield name, "output"


# ── Rules ─────────────────────────────────────────────────────────────────────────────────────────


def required(pattern: Mapping[str, Any], path: str = "$") -> Iterator[str]:
    """Yield the paths of the values without which no event matches a pattern."""
    for name, wanted in pattern.items():
        if isinstance(wanted, Mapping):
            yield from required(wanted, f"{path}.{name}")
        elif name != "$or" and {"exists": False} not in wanted:
            yield f"{path}.{name}"


def test_a_rule_requires_each_value_that_its_target_is_given() -> None:
    """EventBridge does not say what a template shows for a path that an event does not have."""
    read = set[str]()
    for name, rule in stack().of_type("AWS::Events::Rule").items():
        known = {*required(rule["EventPattern"])}
        for target in rule["Targets"]:
            paths = target.get("InputTransformer", {}).get("InputPathsMap", {}).values()
            assert {*paths} <= known, name
            read.update(paths)
    assert "$.detail.sequence" in read


def test_the_audit_looks_at_each_rule_of_partners() -> None:
    """Only the state of such a rule tells that it delivers nothing."""
    of_partners = {
        name
        for name, rule in stack().of_type("AWS::Events::Rule").items()
        if any(target["Arn"] == {"Ref": "PartnersTopic"} for target in rule["Targets"])
    }
    assert of_partners == {name for name in AUDITED_RULES if name.startswith("Partners")}


# ── Versions ──────────────────────────────────────────────────────────────────────────────────────


def test_every_caller_names_the_alias(deployed: Stack) -> None:
    """No rule, mapping, schedule, permission, API or output names a function past its alias."""
    assert {kind for _, kind in holders(deployed, deployed.functions())} <= DIRECT
    configs = deployed.of_type("AWS::Lambda::EventInvokeConfig").values()
    assert {each["Qualifier"] for each in configs} == {"live"}
    aliases = {name: each["Name"] for name, each in deployed.of_type("AWS::Lambda::Alias").items()}
    assert aliases == {f"{name}Aliaslive": "live" for name in deployed.functions()}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_change_of_strategy_moves_no_caller(strategy: str) -> None:
    """Only CodeDeploy's resources come and go; every other one keeps its name and properties."""
    before = stack().resources
    gradual = stack(DeploymentStrategy=strategy).resources
    more = {name: each["Type"] for name, each in gradual.items() if name not in before}
    assert set(more.values()) == OF_CODEDEPLOY
    for name, resource in before.items():
        assert resource["Type"] == gradual[name]["Type"]
        assert resource.get("Properties") == gradual[name].get("Properties"), name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradual_deployment_rolls_back_on_errors(strategy: str) -> None:
    """Each function has a deployment group, with the steps and the alarm that watches all."""
    gradual = stack(DeploymentStrategy=strategy)
    alarm = gradual.resources["FunctionErrorsAlarm"]["Properties"]
    metrics = [each["MetricStat"]["Metric"] for each in alarm["Metrics"] if "MetricStat" in each]
    watched = {metric["Dimensions"][0]["Value"]["Ref"] for metric in metrics}
    assert {metric["MetricName"] for metric in metrics} == {"Errors"}
    assert watched == set(gradual.functions())
    for name in gradual.functions():
        update = gradual.resources[f"{name}Aliaslive"]["UpdatePolicy"][
            "CodeDeployLambdaAliasUpdate"
        ]
        group = gradual.resources[update["DeploymentGroupName"]["Ref"]]["Properties"]
        assert group["DeploymentConfigName"]["Fn::Sub"][1]["ConfigName"] == strategy
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        assert group["AlarmConfiguration"]["Alarms"] == [{"Name": alarm["AlarmName"]}]


def reached(value: Any, template: Mapping[str, Any]) -> set[str]:
    """Return the parameters that a part of the template depends on, through its conditions."""
    match value:
        case {"Ref": str(name)} | {"Condition": str(name)} if name in template["Conditions"]:
            return reached(template["Conditions"][name], template)
        case {"Ref": str(name)}:
            return {name} & set(template["Parameters"])
        case {"Fn::If": [str(condition), *choices]}:
            return reached([template["Conditions"][condition], *choices], template)
        case {"Fn::Sub": str(text)}:
            return set(re.findall(r"\$\{(\w+)\}", text)) & set(template["Parameters"])
        case dict():
            return set().union(*(reached(each, template) for each in value.values()))
        case list():
            return set().union(*(reached(each, template) for each in value))
        case _:
            return set()


OF_SAM: Final = {
    name: each["Properties"]
    for name, each in source()["Resources"].items()
    if each["Type"] == "AWS::Serverless::Function"
}


@pytest.mark.parametrize("name", OF_SAM)
def test_a_changed_parameter_publishes_a_version(name: str) -> None:
    """The description of a function and its version names each parameter of its settings.

    SAM publishes a version for another text, and Lambda for a function that changed.
    """
    template = source()
    function = OF_SAM[name]
    settings = [
        *(each for key, each in function.items() if key not in NOT_OF_A_VERSION),
        *(
            each
            for key, each in template["Globals"]["Function"].items()
            if key not in NOT_OF_A_VERSION
        ),
    ]
    text = function["VersionDescription"]["Fn::Sub"]
    assert function["Description"]["Fn::Sub"] == text
    assert function["AutoPublishAliasAllProperties"] is True
    named_there = re.findall(r"\$\{(\w+)\}", text)
    assert set(named_there) == reached(settings, template)
    longest = len(re.sub(r"\$\{\w+\}", "", text))
    longest += sum(longest_of(template["Parameters"][each]) for each in named_there)
    assert longest <= LONGEST, "give a parameter a smaller MaxLength"


def longest_of(parameter: Mapping[str, Any]) -> int:
    """Return how many characters a parameter may have."""
    if "AllowedValues" in parameter:
        return max(len(str(each)) for each in parameter["AllowedValues"])
    if "MaxLength" in parameter:
        return int(parameter["MaxLength"])
    return len(str(parameter["MaxValue"]))


def test_a_changed_layer_publishes_versions() -> None:
    """SAM takes the layers that a function names for its properties."""
    for name, each in source()["Resources"].items():
        if each["Type"] == "AWS::Serverless::LayerVersion":
            assert each["Properties"]["PublishLambdaVersion"] is True, name


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
