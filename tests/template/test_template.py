"""The template passes each of the three checks that together cover it: rules, transform, rules on SAM's own types."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cfnlint.api import ManualArgs, lint

from tests.template.stack import KEY, ROLES, ROOT, every_choice, label, source, stack

BIN = ROOT / ".venv-sam" / "bin"
NO_ACCOUNT = {
    "PATH": f"{BIN}{os.pathsep}{os.defpath}",
    "HOME": str(ROOT / ".demo"),
    "AWS_DEFAULT_REGION": "us-east-1",
    "SAM_CLI_TELEMETRY": "0",
}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([ROOT / ".venv-dev/bin/cfn-lint"], id="cfn-lint"),
        pytest.param([BIN / "sam", "validate"], id="sam-validate"),
        pytest.param([BIN / "sam", "validate", "--lint"], id="sam-validate-lint"),
    ],
)
def test_the_template_is_accepted(command: list[Path | str], tmp_path: Path) -> None:
    """The command accepts the templates without an AWS account at hand."""
    result = subprocess.run(
        command, cwd=ROOT, env=NO_ACCOUNT | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("choice", [pytest.param(choice, id=label(choice)) for choice in every_choice()])
def test_the_transform_accepts_every_choice_of_parameters(choice: dict[str, str]) -> None:
    """SAM's transform, which CloudFormation runs, takes the template whatever its parameters are."""
    assert "RideHistoryFunction" in stack(**choice).resources


def test_every_value_and_condition_is_chosen() -> None:
    """Among the choices, each parameter has each of its values, and each condition is true once and false once."""
    choices = list(every_choice())
    for name, spec in source()["Parameters"].items():
        allowed = [str(value) for value in spec.get("AllowedValues", ())]
        wanted = {allowed[0], allowed[-1]} if allowed and spec["Type"] == "Number" else set(allowed)
        assert wanted <= {choice.get(name, str(spec["Default"])) for choice in choices}, name
    conditions = [stack(**choice).conditions for choice in choices]
    assert all({each[name] for each in conditions} == {True, False} for name in conditions[0])


@pytest.mark.parametrize("role", ROLES)
def test_cfn_lint_accepts_what_is_deployed(role: str) -> None:
    """What CloudFormation gets, once the transform is done and the conditions are decided, has nothing wrong in it."""
    deployed = stack(**ROLES[role], Stage="prod", KmsKeyArn=KEY, PaymentGatewayUrl="https://gateway.example")
    template = source()
    parameters = {
        name: spec if spec["Type"] == "Number" else spec | {"Default": deployed.parameters[name]}
        for name, spec in template["Parameters"].items()
    }
    left = {"Parameters": parameters, "Resources": deployed.resources, "Outputs": deployed.outputs}
    text = json.dumps(left | {"Mappings": template["Mappings"]})
    # The house rules are of the template as written; some parameters are for its conditions, which are decided here.
    found = lint(text, config=ManualArgs(regions=["us-east-1"], ignore_checks=["E9", "W2001", "W7001"]))
    assert [str(match) for match in found] == []
