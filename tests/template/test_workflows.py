"""A deployment from GitHub is of reviewed code, checked before and verified after."""

from typing import Any, Final

import pytest
import yaml

from tools.transformed import ROOT

pytestmark = pytest.mark.integration

JOBS: Final[dict[str, Any]] = yaml.safe_load(
    (ROOT / ".github" / "workflows" / "deploy.yml").read_text(encoding="utf-8")
)["jobs"]


def test_only_checked_code_of_main_or_a_tag_is_deployed() -> None:
    """The deployment needs CI, a reviewed ref, and the approval that the environment asks for."""
    deploy = JOBS["deploy"]
    assert JOBS[deploy["needs"]]["uses"] == "./.github/workflows/ci.yml"
    assert deploy["if"] == "github.ref == 'refs/heads/main' || startsWith(github.ref, 'refs/tags/')"
    assert deploy["environment"] == "${{ inputs.environment }}"


def test_a_deployment_ends_with_a_verification() -> None:
    """The last step checks the stack that the job has deployed."""
    last = JOBS["deploy"]["steps"][-1]
    assert last["run"] == './carride verify --stack "carride-$STAGE" --yes'
