"""The pipeline with aliases.

Everything is invoked through them, and what fails there is kept as well.

CodeDeploy's resources are recorded on the engine: an alias points to its version at once.
"""

from typing import Any

import pytest

from local.local_aws import LocalAws, Stack
from ops.policies import POLICIES
from tests.functions.api.client import Api
from tests.pipeline.pipeline import HISTORY, Pipeline

pytestmark = pytest.mark.integration


def test_events_take_effect_once_behind_an_alias(gradual: Pipeline) -> None:
    """Rule, queue, API and simulator reach functions by the alias, and each role suffices."""
    api = Api(gradual.cloud, gradual.stack)
    assert (
        api.send("POST", "/carrides/simulate", {"rides": 1, "seed": 7}, key="simulate").status
        == 202
    )
    ledger = gradual.simulate(rides=5, seed=1, duplicates=0.3)
    assert ledger.balanced
    assert ledger.consumers[HISTORY].effects == ledger.distinct
    asked = [
        each for each in gradual.cloud.asked() if each.role in gradual.stack.resources.values()
    ]
    assert "lambda:InvokeFunction" in {each.action for each in asked}
    assert [each for each in asked if not each.allowed] == []


@pytest.mark.thorough
def test_what_fails_behind_an_alias_is_kept(gradual: Pipeline) -> None:
    """An event whose version cannot start is retried, and lies in the consumer's queue."""
    function = gradual.break_history()
    (event_id,) = gradual.put({"specversion": "1.0"})
    assert gradual.ledger().dead_lettered["RideHistoryDlq"] == {"RetriesExhausted": 1}
    (letter,) = gradual.dead_letters("RideHistoryDlq")
    assert letter["requestPayload"]["id"] == event_id
    assert letter["requestContext"]["functionArn"].endswith(f":{function}:live")
    assert letter["requestContext"]["approximateInvokeCount"] == POLICIES[HISTORY].max_attempts
    assert "IDEMPOTENCY_STORE" in letter["responsePayload"]["errorMessage"]


def callers(cloud: LocalAws, stack: Stack) -> dict[str, Any]:
    """Return what the rules, the mapping and the schedule invoke."""
    events = cloud.client("events")
    bus = stack.outputs["CarRideBusName"]
    found: dict[str, Any] = {}
    for name in ("RideHistoryRule", "PaymentRule"):
        rule = stack.resources[name].rpartition("|")[2]
        targets = events.list_targets_by_rule(Rule=rule, EventBusName=bus)["Targets"]
        found[name] = [target["Arn"] for target in targets]
    uuid = stack.resources["DispatchFunctionQueue"]
    mapping = cloud.client("lambda").get_event_source_mapping(UUID=uuid)
    found["mapping"] = (uuid, mapping["FunctionArn"])
    schedule = stack.resources["ReconcilerFunctionSchedule"]
    target = cloud.client("scheduler").get_schedule(Name=schedule)["Target"]
    found["schedule"] = target["Arn"]
    return found


@pytest.mark.thorough
def test_a_deployment_of_one_parameter_reaches_callers_and_a_strategy_moves_none(
    cloud: LocalAws, name: str
) -> None:
    """`LogLevel` alone publishes versions; `DeploymentStrategy` and back changes no caller."""
    stack = cloud.deploy_fast(name)
    before = callers(cloud, stack)
    functions = cloud.client("lambda")
    function = stack.resources["RideHistoryFunction"]

    def level() -> str:
        found = functions.get_function_configuration(FunctionName=function, Qualifier="live")
        return str(found["Environment"]["Variables"]["LOG_LEVEL"])

    assert level() == "INFO"
    stack = cloud.deploy_fast(name, LogLevel="DEBUG")
    assert level() == "DEBUG"
    for strategy in ("Canary10Percent5Minutes", "AllAtOnce"):
        stack = cloud.deploy_fast(name, LogLevel="DEBUG", DeploymentStrategy=strategy)
        assert callers(cloud, stack) == before
    cloud.reset()
