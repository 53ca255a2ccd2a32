"""Which steps bring a stack into two regions and out of them, whatever is there already."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from ops.regions import Deployed, Pair, Place, RegionsError, configured, delete, deploy

PAIR: Final = Pair(
    Place("primary", "us-west-2", "carride", {"Stage": "dev"}),
    Place("secondary", "us-east-2", "carride", {"Stage": "dev"}),
)


class Account:
    """Stacks, as a deployer sees and changes them."""

    def __init__(self, **stacks: Mapping[str, str]) -> None:
        self.stacks: dict[str, dict[str, str]] = {role: dict(parameters) for role, parameters in stacks.items()}
        self.steps: list[str] = []

    def describe(self, place: Place) -> Deployed | None:
        """Return a stack that is there."""
        parameters = self.stacks.get(place.role)
        return None if parameters is None else Deployed(parameters, {"CarRideEndpointId": "abc.xyz"})

    def deploy(self, place: Place, parameters: Mapping[str, str]) -> None:
        """Deploy a stack; its endpoint needs the other region's bus."""
        if parameters.get("GlobalEndpoint") == "present":
            assert "secondary" in self.stacks, "an endpoint needs both buses"
        self.stacks[place.role] = dict(parameters)

    def delete(self, place: Place) -> None:
        """Delete a stack; an endpoint must not lose a bus."""
        assert self.stacks.get("primary", {}).get("GlobalEndpoint") != "present"
        del self.stacks[place.role]

    def stream(self, region: str, table: str) -> str:
        """Return the stream of a replica, which the primary makes."""
        assert "primary" in self.stacks, "a replica is made by the primary"
        return f"arn:{region}:{table}"

    def endpoint(self, place: Place) -> str:
        """Return the id of the endpoint."""
        assert self.stacks[place.role]["GlobalEndpoint"] == "present"
        return "abc.xyz"

    def step(self, place: Place, what: str) -> None:
        """Remember a step."""
        self.steps.append(place.role)


COMPLETE: Final = {
    "primary": {"Stage": "dev", "Role": "primary", "PeerRegion": "us-east-2", "GlobalEndpoint": "present"},
    "secondary": {
        "Stage": "dev",
        "Role": "secondary",
        "PeerRegion": "us-west-2",
        "OutboxStreamArn": "arn:us-east-2:carride-OutboxTable",
        "GlobalEndpointId": "abc.xyz",
    },
}


@pytest.mark.parametrize(
    ("there", "steps"),
    [
        ({}, ["primary", "secondary", "primary", "secondary"]),
        ({"primary": {"Role": "standalone"}}, ["primary", "secondary", "primary", "secondary"]),
        ({"primary": COMPLETE["primary"]}, ["primary", "secondary", "primary", "secondary"]),
        ({**COMPLETE, "primary": {"Role": "primary", "GlobalEndpoint": "absent"}}, ["primary", "secondary"]),
        ({"secondary": COMPLETE["secondary"]}, ["primary", "secondary", "primary", "secondary"]),
        (COMPLETE, ["primary", "secondary"]),
    ],
    ids=["nothing", "one region", "no secondary any more", "interrupted", "no primary any more", "both"],
)
def test_both_regions_end_up_complete(there: dict[str, dict[str, str]], steps: list[str]) -> None:
    """Each step has what it needs of the other region, from wherever it begins."""
    account = Account(**there)
    deploy(PAIR, account, account.step)
    assert account.stacks == COMPLETE
    assert account.steps == steps


def test_a_standalone_stack_in_the_other_region_is_left_alone() -> None:
    """It has tables of the names that the replicas would have."""
    account = Account(secondary={"Role": "standalone"})
    with pytest.raises(RegionsError, match="has tables of its own"):
        deploy(PAIR, account, account.step)
    assert account.steps == []


@pytest.mark.parametrize(
    "there", [COMPLETE, {"primary": COMPLETE["primary"]}, {"secondary": COMPLETE["secondary"]}, {}]
)
def test_nothing_is_left(there: dict[str, dict[str, str]]) -> None:
    """The endpoint goes before a bus does, and what is left of two regions is removed too."""
    account = Account(**there)
    delete(PAIR, account, account.step)
    assert account.stacks == {}


def config(primary: str, secondary: str) -> str:
    """Return a samconfig.toml with these lines in its two environments."""
    return f"[primary.global.parameters]\n{primary}\n[secondary.global.parameters]\n{secondary}\n"


def test_samconfig_names_the_regions(tmp_path: Path) -> None:
    """A parameter that is given goes before the file's, in both regions."""
    path = tmp_path / "samconfig.toml"
    given = 'parameter_overrides = ["Stage=dev", "Architecture=arm64"]\nstack_name = "carride"'
    path.write_text(config(f'{given}\nregion = "us-west-2"', f'{given}\nregion = "us-east-2"'))
    pair = configured(path, {"Stage": "prod"})
    assert (pair.primary.region, pair.secondary.region) == ("us-west-2", "us-east-2")
    assert pair.primary.parameters == pair.secondary.parameters == {"Stage": "prod", "Architecture": "arm64"}


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
def test_a_samconfig_that_cannot_be_says_why(tmp_path: Path, primary: str, secondary: str, problem: str) -> None:
    """Whoever edits the file is told what it lacks."""
    path = tmp_path / "samconfig.toml"
    path.write_text(config(primary, secondary))
    with pytest.raises(RegionsError, match=problem):
        configured(path)


def test_the_projects_own_samconfig_is_one() -> None:
    """The file of this project names two regions for one stack, and their roles."""
    pair = configured()
    assert {pair.primary.parameters["Role"], pair.secondary.parameters["Role"]} == {"primary", "secondary"}
    assert pair.primary.parameters["PeerRegion"] == pair.secondary.region
    assert pair.secondary.parameters["PeerRegion"] == pair.primary.region
