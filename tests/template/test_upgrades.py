"""An upgrade keeps the stage of its stack.

Parameters are merged as the SAM CLI does it, and rules refuse the rest.
"""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest

from tools.transformed import ROOT, holds, source

pytestmark = pytest.mark.integration

SAM_PYTHON: Final = ROOT / ".venv-sam" / "bin" / "python"
MERGE: Final = """
import json, sys
from samcli.commands.deploy.deploy_context import DeployContext
for line in sys.stdin:
    names, overrides = json.loads(line)
    template = {"Parameters": dict.fromkeys(names, {})}
    print(json.dumps(DeployContext.merge_parameters(template, overrides)), flush=True)
"""
PAGE: Final = ROOT / "docs" / "on-an-account.md"
ENVIRONMENTS: Final = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))


def defaults() -> dict[str, str]:
    """Return the parameters of a new stack."""
    declared = source()["Parameters"]
    return {name: str(spec["Default"]) for name, spec in declared.items()}


def assignments(words: list[str]) -> dict[str, str]:
    """Read `NAME=VALUE` words up to the next option."""
    found = {}
    for word in words:
        if word.startswith("--"):
            break
        name, _, value = word.partition("=")
        found[name] = value
    return found


def sent(command: str) -> dict[str, str]:
    """Return the parameters that a `sam deploy` sends.

    Those of its line, or else of its environment.
    """
    words = shlex.split(command.partition(" #")[0])
    if "--parameter-overrides" in words:
        return assignments(words[words.index("--parameter-overrides") + 1 :])
    name = words[words.index("--config-env") + 1] if "--config-env" in words else "default"
    listed = ENVIRONMENTS[name]["global"]["parameters"]["parameter_overrides"]
    return assignments(listed)


@cache
def merging() -> subprocess.Popen[str]:
    """Return a process that has SAM's function: to import it takes a second."""
    command = [str(SAM_PYTHON), "-c", MERGE]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    with merging():  # its input ends
        merging.cache_clear()


def merged(previous: dict[str, str], overrides: dict[str, str]) -> dict[str, str]:
    """Return the parameters of an upgraded stack, as SAM's own function merges them."""
    given = merging().stdin
    answers = merging().stdout
    assert given is not None
    assert answers is not None
    print(json.dumps([list(previous), overrides]), file=given, flush=True)
    result: dict[str, str] = {}
    for each in json.loads(answers.readline()):
        name = each["ParameterKey"]
        result[name] = previous[name] if "UsePreviousValue" in each else each["ParameterValue"]
    return result


def broken(parameters: dict[str, str]) -> list[str]:
    """Return what the template's rules say about parameters."""
    template: dict[str, Any] = source()
    found = []
    for rule in template["Rules"].values():
        if holds(rule["RuleCondition"], parameters, {}):
            found += [
                each["AssertDescription"]
                for each in rule["Assertions"]
                if not holds(each["Assert"], parameters, {})
            ]
    return found


def documented() -> list[str]:
    """Return each `sam deploy` of the section on upgrades."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("## Upgrade\n")[2].partition("\n## ")[0]
    return re.findall(r"^(?:.*&& )?(sam deploy.*)$", section, re.MULTILINE)


PRODUCTION: Final = {"Stage": "prod"}


@pytest.mark.parametrize("command", documented())
@pytest.mark.parametrize("stage", [{"Stage": "dev"}, PRODUCTION])
def test_no_upgrade_of_the_page_changes_the_stage(command: str, stage: dict[str, str]) -> None:
    """Each stage stays what it is.

    Only the environment `prod` names a stage, and only its own stacks' one.
    """
    before = defaults() | stage
    if "--config-env prod" in command:
        before |= PRODUCTION
    after = merged(before, sent(command))
    assert after["Stage"] == before["Stage"]
    assert broken(after) == []


def test_the_page_has_the_upgrade_of_each_environment() -> None:
    """A development stack and production have a command of their own."""
    assert {"sam deploy", "sam deploy --config-env prod"} <= set(documented())


def test_a_new_stack_of_each_environment_keeps_the_rules() -> None:
    """Its parameters are the defaults and those of the environment.

    The rules on regions need a deployed peer.
    """
    for name in ("default", "prod", "local"):
        listed = ENVIRONMENTS[name]["global"]["parameters"]["parameter_overrides"]
        assert broken(defaults() | assignments(listed)) == [], name
