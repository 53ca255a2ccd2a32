"""Which steps deploy a stack to two regions and remove it, whatever exists already."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, override

import boto3
import pytest

from ops.regions import Deployer, Environment, carry_out, configured, deployment, removal
from ops.stack import OperatorError, StackRef
from tests.carride.fakes import client_error
from tests.ops.world import AWAY, HOME

ROLES: Final = {HOME: "primary", AWAY: "secondary"}
ENDPOINT: Final = "abc.xyz"


class Account(Deployer):
    """Stacks by role, with their parameters."""

    def __init__(self, stacks: Mapping[str, Mapping[str, str]]) -> None:
        self.stacks = {role: dict(parameters) for role, parameters in stacks.items()}
        self.changed: list[str] = []
        home, away = (StackRef("carride", region, self.client) for region in ROLES)
        self.pair = Environment("primary", home, {"Stage": "dev"}), Environment("secondary", away, {"Stage": "dev"})

    def client(self, service: str, region: str) -> Any:
        """Return CloudFormation and DynamoDB of a region."""

        def describe_stacks(**request: Any) -> Any:
            if (parameters := self.stacks.get(ROLES[region])) is None:
                raise client_error("ValidationError", 400)
            given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
            has_endpoint = parameters.get("GlobalEndpoint") == "present"
            outputs = [{"OutputKey": "CarRideEndpointId", "OutputValue": ENDPOINT}] * has_endpoint
            return {"Stacks": [{"StackStatus": "UPDATE_COMPLETE", "Parameters": given, "Outputs": outputs}]}

        def describe_table(**request: Any) -> Any:
            assert "primary" in self.stacks, "the primary creates the replicas"
            return {"Table": {"LatestStreamArn": f"arn:{region}:{request['TableName']}"}}

        return SimpleNamespace(describe_stacks=describe_stacks, describe_table=describe_table)

    @override
    def deploy(self, environment: Environment, parameters: Mapping[str, str]) -> None:
        if parameters.get("GlobalEndpoint") == "present":
            assert "secondary" in self.stacks, "an endpoint needs both buses"
        self.stacks[environment.role] = dict(parameters)
        self.changed.append(environment.role)

    @override
    def delete(self, stack: StackRef) -> None:
        assert self.stacks.get("primary", {}).get("GlobalEndpoint") != "present", "an endpoint must not lose a bus"
        del self.stacks[ROLES[stack.region]]


COMPLETE: Final = {
    "primary": {"Stage": "dev", "Role": "primary", "PeerRegion": AWAY, "GlobalEndpoint": "present"},
    "secondary": {
        "Stage": "dev",
        "Role": "secondary",
        "PeerRegion": HOME,
        "OutboxStreamArn": f"arn:{AWAY}:carride-OutboxTable",
        "GlobalEndpointId": ENDPOINT,
    },
}
PRIMARY: Final = {"primary": COMPLETE["primary"]}
SECONDARY: Final = {"secondary": COMPLETE["secondary"]}


@pytest.mark.parametrize(
    ("there", "rounds"),
    [
        ({}, 2),
        ({"primary": {"Role": "standalone"}}, 2),
        (PRIMARY, 2),
        (COMPLETE | {"primary": {"Role": "primary", "GlobalEndpoint": "absent"}}, 1),
        (SECONDARY, 2),
        (COMPLETE, 1),
    ],
    ids=["nothing", "one region", "no secondary any more", "interrupted", "no primary any more", "both"],
)
def test_both_regions_end_up_complete(there: Mapping[str, Mapping[str, str]], rounds: int) -> None:
    """Each step has what it needs of the other region, from wherever it begins."""
    account = Account(there)
    carry_out(deployment(*account.pair), account.pair, account, report=lambda text: None)
    assert account.stacks == COMPLETE
    assert account.changed == ["primary", "secondary"] * rounds


def test_a_standalone_stack_in_the_other_region_is_left_alone() -> None:
    """It has tables with the names of the replicas."""
    with pytest.raises(OperatorError, match="has tables of its own"):
        deployment(*Account({"secondary": {"Role": "standalone"}}).pair)


@pytest.mark.parametrize("there", [COMPLETE, PRIMARY, SECONDARY, {}])
def test_nothing_is_left(there: Mapping[str, Mapping[str, str]]) -> None:
    """The endpoint is removed before a bus, and what is left of two regions is removed too."""
    account = Account(there)
    carry_out(removal(*account.pair), account.pair, account, report=lambda text: None)
    assert account.stacks == {}


@pytest.mark.parametrize("end", ["DELETE_COMPLETE", "DELETE_FAILED"])
def test_a_deletion_is_waited_for_as_long_as_replicas_take(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """An hour is not too long; the error is CloudFormation's."""
    waited: list[float] = []

    def answer(**_: Any) -> Any:
        status = end if sum(waited) >= 3600 else "DELETE_IN_PROGRESS"
        stack = {"StackName": "carride", "StackId": "carride/1", "StackStatus": status}
        return SimpleNamespace(status_code=200), {"Stacks": [stack | {"StackStatusReason": "failed: [Table]"}]}

    client: Any = boto3.client("cloudformation", region_name=HOME)
    client.meta.events.register("before-call.cloudformation", answer)
    monkeypatch.setattr(time, "sleep", waited.append)
    refused = pytest.raises(OperatorError, match=r"could not be deleted: failed: \[Table\]")
    with refused if end == "DELETE_FAILED" else nullcontext():
        Deployer().delete(StackRef("carride", HOME, lambda *_: client))
    assert 3600 <= sum(waited) < 3700


def no_client(service: str, region: str) -> Any:
    """Stand for clients that nobody needs."""
    pytest.fail(f"{service} was asked")


def write(path: Path, primary: str, secondary: str) -> Path:
    """Write a samconfig.toml with these lines in its two environments."""
    text = f"[primary.global.parameters]\n{primary}\n[secondary.global.parameters]\n{secondary}\n"
    (path / "samconfig.toml").write_text(text)
    return path / "samconfig.toml"


def test_samconfig_names_the_regions(tmp_path: Path) -> None:
    """A given parameter takes precedence over the file's, in both regions."""
    given = 'parameter_overrides = ["Stage=dev", "Architecture=arm64"]\nstack_name = "carride"'
    path = write(tmp_path, f'{given}\nregion = "us-west-2"', f'{given}\nregion = "us-east-2"')
    pair = configured(no_client, path, {"Stage": "prod"})
    assert [each.stack.region for each in pair] == ["us-west-2", "us-east-2"]
    assert [each.parameters for each in pair] == [{"Stage": "prod", "Architecture": "arm64"}] * 2


@pytest.mark.parametrize(
    ("primary", "secondary", "problem"),
    [
        ('stack_name = "a"', 'stack_name = "a"\nregion = "x"', "no region"),
        ('region = "x"', 'stack_name = "a"\nregion = "x"', "no stack_name"),
        ('stack_name = "a"\nregion = "x"', 'stack_name = "a"\nregion = "x"', "two regions"),
        ('stack_name = "a"\nregion = "x"', 'stack_name = "b"\nregion = "y"', "two names"),
        ('stack_name = "a"\nregion = "x"\nparameter_overrides = ["Stage"]', "", "NAME=VALUE"),
    ],
)
def test_an_impossible_samconfig_is_explained(tmp_path: Path, primary: str, secondary: str, problem: str) -> None:
    """The message says what is wrong with the file."""
    with pytest.raises(OperatorError, match=problem):
        configured(no_client, write(tmp_path, primary, secondary))
