"""Which steps deploy a stack to two regions, whatever exists already."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, override

import pytest

from ops.regions import Deployer, Environment, carry_out, configured, deployment
from ops.stack import OperatorError, StackRef
from ops.tests.world import AWAY, HOME

ENDPOINT: Final = "abc.xyz"
type Given = Mapping[str, Mapping[str, str]]


class Region(StackRef):
    """The stack of a role in an account; it exists if the account has parameters of it."""

    def __init__(self, account: "Account", role: str, region: str) -> None:
        super().__init__(
            "carride", region, lambda *_: SimpleNamespace(describe_table=self.describe_table)
        )
        self.account = account
        self.of = role

    def describe_table(self, **request: Any) -> Any:
        assert "primary" in self.account.stacks, "the primary creates the replicas"
        return {"Table": {"LatestStreamArn": f"arn:{self.region}:{request['TableName']}"}}

    @override
    def describe(self) -> Any:
        if (given := self.account.stacks.get(self.of)) is None:
            return None
        outputs = [{"OutputKey": "CarRideEndpointId", "OutputValue": ENDPOINT}]
        parameters = [
            {"ParameterKey": name, "ParameterValue": value} for name, value in given.items()
        ]
        return {
            "Parameters": parameters,
            "Outputs": outputs * (given.get("GlobalEndpoint") == "present"),
        }


class Account(Deployer):
    """Stacks by role, with their parameters."""

    def __init__(self, stacks: Given) -> None:
        self.stacks = {role: dict(parameters) for role, parameters in stacks.items()}
        self.changed: list[str] = []
        primary = Region(self, "primary", HOME)
        secondary = Region(self, "secondary", AWAY)
        self.pair = (
            Environment("primary", primary, {"Stage": "dev"}),
            Environment("secondary", secondary, {"Stage": "dev"}),
        )

    @override
    def deploy(self, environment: Environment, parameters: Mapping[str, str]) -> None:
        if parameters.get("GlobalEndpoint") == "present":
            assert "secondary" in self.stacks, "an endpoint needs both buses"
        self.stacks[environment.role] = dict(parameters)
        self.changed.append(environment.role)


COMPLETE: Final = {
    "primary": {"Stage": "dev", "Role": "primary", "PeerRegion": AWAY, "GlobalEndpoint": "present"},
    "secondary": {"Stage": "dev", "Role": "secondary", "PeerRegion": HOME}
    | {"OutboxStreamArn": f"arn:{AWAY}:carride-OutboxTable", "GlobalEndpointId": ENDPOINT},
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
    ids=[
        "nothing",
        "one region",
        "no secondary any more",
        "interrupted",
        "no primary any more",
        "both",
    ],
)
def test_both_regions_end_up_complete(there: Given, rounds: int) -> None:
    """Each step has what it needs of the other region, from wherever it begins."""
    account = Account(there)
    carry_out(deployment(*account.pair), account.pair, account, report=lambda text: None)
    assert account.stacks == COMPLETE
    assert account.changed == ["primary", "secondary"] * rounds


def test_a_standalone_stack_in_the_other_region_is_left_alone() -> None:
    """It has tables with the names of the replicas."""
    with pytest.raises(OperatorError, match="has tables of its own"):
        deployment(*Account({"secondary": {"Role": "standalone"}}).pair)


@pytest.mark.parametrize(
    ("primary", "secondary", "problem"),
    [
        ('region = "x"\nparameter_overrides = ["Stage=dev", "Other=one"]', 'region = "y"', None),
        ("", 'region = "x"', "no region"),
        ('region = "x"', 'region = "x"', "two regions"),
        ('region = "x"', 'stack_name = "b"\nregion = "y"', "two names"),
        ('region = "x"\nparameter_overrides = ["Stage"]', "", "NAME=VALUE"),
    ],
)
def test_samconfig_names_the_regions(
    tmp_path: Path, primary: str, secondary: str, problem: str | None
) -> None:
    """A given parameter takes precedence over the file's, in both regions.

    A wrong file is explained.
    """
    environments = {"primary": primary, "secondary": secondary}
    texts = [f"[{role}.global.parameters]\n{text}" for role, text in environments.items()]
    named = (text if "stack_name" in text else f'{text}\nstack_name = "a"' for text in texts)
    (tmp_path / "samconfig.toml").write_text("\n".join(named))
    ask = lambda service, region: pytest.fail(f"{service} was asked")  # noqa: E731 - nobody needs a client
    if problem is not None:
        with pytest.raises(OperatorError, match=problem):
            configured(ask, tmp_path / "samconfig.toml")
        return
    pair = configured(ask, tmp_path / "samconfig.toml", {"Stage": "prod"})
    assert [each.stack.region for each in pair] == ["x", "y"]
    assert [each.parameters for each in pair] == [
        {"Stage": "prod", "Other": "one"},
        {"Stage": "prod"},
    ]
