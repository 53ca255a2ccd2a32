"""How a new version takes over, how much may run at once, and whether every time fits inside the next longer one."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import Mock

import botocore.session
import pytest

from carride import clients
from idempotency.dead_letters import DeadLetter, SqsDeadLetters
from idempotency.stores.transport import botocore_transport
from tests.template.stack import Properties, Stack, named, source, stack

RELEASE: Final = "0123456789"
STRATEGIES: Final = [
    name for name in source()["Parameters"]["DeploymentStrategy"]["AllowedValues"] if name != "AllAtOnce"
]
OF_AN_ACCOUNT, KEPT_UNRESERVED = 1_000, 100
"""Invocations at once: of an account by default, and those of them that Lambda lets nobody reserve."""


@pytest.fixture(scope="module")
def at_once() -> Stack:
    """Return the stack as it is deployed by default."""
    return stack()


@pytest.fixture(scope="module", params=STRATEGIES)
def gradual(request: pytest.FixtureRequest) -> Stack:
    """Return the stack with each strategy that moves the traffic bit by bit."""
    return stack(DeploymentStrategy=request.param, Release=RELEASE)


def functions(deployed: Stack) -> dict[str, Properties]:
    """Return every function by its logical id."""
    return deployed.of_type("AWS::Lambda::Function")


def invoked(deployed: Stack) -> Iterator[tuple[str, Properties]]:
    """Yield everything that invokes a function, or lets it be invoked, with the reference by which it does so."""
    yield from delivered(deployed)
    yield from called(deployed)
    for name, output in deployed.outputs.items():
        if name.endswith("FunctionName"):
            yield name, output["Value"]


def delivered(deployed: Stack) -> Iterator[tuple[str, Properties]]:
    """Yield the references by which events reach functions."""
    for name, rule in deployed.of_type("AWS::Events::Rule").items():
        for target in rule["Targets"]:
            if named(target["Arn"]) in functions(deployed):
                yield name, target["Arn"]
    for name, schedule in deployed.of_type("AWS::Scheduler::Schedule").items():
        yield name, schedule["Target"]["Arn"]
    for name, permission in deployed.of_type("AWS::Lambda::Permission").items():
        yield name, permission["FunctionName"]
    for name, mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").items():
        yield name, mapping["FunctionName"]


def called(deployed: Stack) -> Iterator[tuple[str, Properties]]:
    """Yield the references by which the API and its function call functions."""
    api = deployed.resources["CarRideApi"]["Properties"]["Body"]
    integrations = api["components"]["x-amazon-apigateway-integrations"]
    for path, item in api["paths"].items():
        for method, operation in item.items():
            _, _, name = operation["x-amazon-apigateway-integration"]["$ref"].rpartition("/")
            yield f"{method} {path}", integrations[name]["uri"]["Fn::Sub"][1]["Function"]
    settings = functions(deployed)["CarRideApiFunction"]["Environment"]["Variables"]
    yield "CarRideApiFunction", settings["SIMULATOR_FUNCTION_NAME"]
    for statement in deployed.resources["CarRideApiPolicy"]["Properties"]["PolicyDocument"]["Statement"]:
        if statement["Action"] == "lambda:InvokeFunction":
            yield "CarRideApiPolicy", statement["Resource"]


# ── Versions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_by_default_a_deployment_is_over_when_the_stack_is(at_once: Stack) -> None:
    """Nothing is invoked through an alias, and nothing goes through CodeDeploy: a changed parameter is in force."""
    assert not [name for name, resource in at_once.resources.items() if resource["Type"].startswith("AWS::CodeDeploy")]
    through = dict(invoked(at_once))
    assert len(through) > len(functions(at_once))
    for name, reference in through.items():
        assert "Alias" not in json.dumps(reference), name
    for name, config in at_once.of_type("AWS::Lambda::EventInvokeConfig").items():
        assert config["Qualifier"] == "$LATEST", name


def test_a_gradual_deployment_moves_all_that_invokes(gradual: Stack) -> None:
    """Whatever invokes a function goes through its alias, and what failed there is kept as well."""
    for name, reference in invoked(gradual):
        assert reference == {"Ref": f"{named(reference)}Aliaslive"}, name
    for name, config in gradual.of_type("AWS::Lambda::EventInvokeConfig").items():
        assert config["Qualifier"] == "live", name
        assert gradual.resources[name]["DependsOn"] in gradual.resources, name


def test_a_gradual_deployment_turns_back_on_errors(gradual: Stack) -> None:
    """Each function has a deployment group of its own, with the chosen steps and its own error alarm."""
    for name in functions(gradual):
        alias = gradual.resources[f"{name}Aliaslive"]
        update = alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
        group = gradual.resources[update["DeploymentGroupName"]["Ref"]]["Properties"]
        assert group["DeploymentConfigName"]["Fn::Sub"][1]["ConfigName"] == gradual.parameters["DeploymentStrategy"]
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"]
        (alarm,) = group["AlarmConfiguration"]["Alarms"]
        watched = gradual.resources[alarm["Name"]["Ref"]]["Properties"]
        assert (watched["MetricName"], watched["Dimensions"]) == (
            "Errors",
            [{"Name": "FunctionName", "Value": {"Ref": name}}],
        )


def versions(**chosen: str) -> set[str]:
    """Return the logical ids of the versions: one that changes is published."""
    return set(stack(**chosen).of_type("AWS::Lambda::Version"))


def test_a_release_publishes_every_function() -> None:
    """New letters publish new versions even if nothing but a parameter, which SAM would overlook, has changed."""
    first = versions(DeploymentStrategy=STRATEGIES[0], Release=RELEASE)
    assert first.isdisjoint(versions(DeploymentStrategy=STRATEGIES[0], Release=RELEASE[::-1]))
    assert versions() == versions(LogLevel="DEBUG"), "SAM notices parameters by itself now: Release could go"


def test_every_strategy_is_one_of_codedeploys() -> None:
    """The mapping says of each allowed value whether the traffic moves bit by bit."""
    mapping = source()["Mappings"]["DeploymentStrategies"]
    assert {name: each["Gradual"] for name, each in mapping.items()} == {"AllAtOnce": False} | dict.fromkeys(
        STRATEGIES, True
    )


# ── Times and numbers that fit ────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_stays_hidden_six_times_as_long_as_its_function_may_run(at_once: Stack) -> None:
    """What AWS recommends, so that throttled batches are tried again before their messages come back."""
    for mapping in at_once.of_type("AWS::Lambda::EventSourceMapping").values():
        queue = at_once.of_type("AWS::SQS::Queue")[mapping["EventSourceArn"]["Fn::GetAtt"][0]]
        assert queue["VisibilityTimeout"] >= 6 * functions(at_once)[named(mapping["FunctionName"])]["Timeout"]


def timeout_of(*logical_ids: str) -> int:
    """Return the shortest time, in seconds, that one of the functions may take."""
    return min(int(functions(stack())[name]["Timeout"]) for name in logical_ids)


LETTER: Final = DeadLetter("CONTRACT", "it breaks the contract", "ride-history", None, 0, {})
CONSUMERS: Final = ("RideHistoryFunction", "DispatchFunction", "PaymentFunction")
CLIENTS: Final[dict[str, tuple[Callable[[], object], tuple[str, ...]]]] = {
    "events": (clients.events_client, ("CarRideSimulatorFunction",)),
    "lambda": (clients.lambda_client, ("CarRideApiFunction",)),
    "sqs": (clients.sqs_client, ("CarRideSimulatorFunction",)),
    "tables": (clients.dynamodb_client, ("DispatchFunction", "PaymentFunction", "ReconcilerFunction")),
    "tables-of-the-api": (lambda: clients.dynamodb_client(connect_s=0.7, read_s=0.8), ("CarRideApiFunction",)),
    "dead-letters": (lambda: SqsDeadLetters("https://queue").send(LETTER), CONSUMERS),
    "records": (botocore_transport, (*CONSUMERS, "CarRideApiFunction", "ReconcilerFunction")),
}
"""What makes a client of AWS, and which functions wait for its answers."""


def longest_call_s(config: Any) -> float:
    """Return after how many seconds a call without an answer is given up, with the waits between the attempts."""
    attempts = config.retries["total_max_attempts"]
    return float((config.connect_timeout + config.read_timeout) * attempts + sum(2**n for n in range(attempts - 1)))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_call_is_given_up_before_the_function_is(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK left to itself waits for 60 seconds: a function would be killed before it could say what it waited for."""
    configs: list[object] = []

    def create(_session: object, _service: str, *, config: object) -> Mock:
        configs.append(config)
        return Mock()

    monkeypatch.setattr(botocore.session.Session, "create_client", create)
    make, waiting = CLIENTS[client]
    make()
    (config,) = configs
    assert longest_call_s(config) < timeout_of(*waiting)


def test_reserved_concurrency_leaves_an_account_enough() -> None:
    """By default nothing is reserved; the most that can be chosen fits into an account with the usual quota."""
    assert all("ReservedConcurrentExecutions" not in function for function in functions(stack()).values())
    spec = source()["Parameters"]["ReservedConcurrency"]
    assert spec["Default"] == 0
    for number in spec["AllowedValues"][1:]:
        deployed = stack(ReservedConcurrency=str(number))
        assert len(functions(deployed)) * number + KEPT_UNRESERVED <= OF_AN_ACCOUNT
        for name, function in functions(deployed).items():
            assert function["ReservedConcurrentExecutions"] == {"Ref": "ReservedConcurrency"}, name
        for mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").values():
            assert mapping["ScalingConfig"]["MaximumConcurrency"] < number, "SQS would be throttled by its own function"
