"""The template passes each of the three checks that together cover it: rules, transform, rules on SAM's own types."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.infrastructure.stack import ROOT, every_choice, stack

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
        pytest.param([ROOT / ".venv-dev/bin/cfn-lint", "template.yaml"], id="cfn-lint"),
        pytest.param([BIN / "sam", "validate"], id="sam-validate"),
        pytest.param([BIN / "sam", "validate", "--lint"], id="sam-validate-lint"),
    ],
)
def test_the_template_is_accepted(command: list[Path | str], tmp_path: Path) -> None:
    """The command accepts the template without an AWS account at hand."""
    result = subprocess.run(
        command, cwd=ROOT, env=NO_ACCOUNT | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("choice", [pytest.param(choice, id="-".join(choice.values())) for choice in every_choice()])
def test_the_transform_accepts_every_choice_of_parameters(choice: dict[str, str]) -> None:
    """SAM's transform, which CloudFormation runs, takes the template whatever its parameters are."""
    assert "RideHistoryFunction" in stack(**choice).resources
