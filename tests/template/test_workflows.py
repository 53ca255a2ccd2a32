"""What GitHub deploys and publishes is reviewed code, checked before and verified after."""

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tools import release
from tools.transformed import ROOT

pytestmark = pytest.mark.integration


def jobs_of(workflow: str) -> dict[str, Any]:
    """Return the jobs of a workflow."""
    path = ROOT / ".github" / "workflows" / workflow
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return jobs


JOBS: Final = jobs_of("deploy.yml")
RELEASE: Final = jobs_of("release.yml")


def test_only_checked_code_of_main_or_a_tag_is_deployed() -> None:
    """The deployment needs CI, a reviewed ref, and the approval that the environment asks for."""
    deploy = JOBS["deploy"]
    assert JOBS[deploy["needs"]]["uses"] == "./.github/workflows/ci.yml"
    assert deploy["if"] == "github.ref == 'refs/heads/main' || startsWith(github.ref, 'refs/tags/')"
    assert deploy["environment"] == "${{ inputs.environment }}"


@pytest.mark.parametrize(("told", "ends"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_a_deployment_ends_with_a_verification(tmp_path: Path, told: int, ends: int) -> None:
    """The last step checks the stack that the job has deployed.

    What fails ends the job; what cannot be told is a warning.
    """
    command = tmp_path / "carride"
    command.write_text(f'#!/bin/sh\necho "$@"\nexit {told}\n', encoding="utf-8")
    command.chmod(0o755)
    last = JOBS["deploy"]["steps"][-1]
    done = subprocess.run(
        ["/bin/bash", "-eo", "pipefail", "-c", last["run"]],
        cwd=tmp_path,
        env={"STAGE": "dev"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ends
    assert done.stdout.startswith("verify --stack carride-dev --yes\n")
    assert ("::warning::" in done.stdout) is (told == 3)


def test_who_deploys_does_not_verify() -> None:
    """The role that reads the stack is another one than the role that changes it."""
    assumed = [
        step["with"]["role-to-assume"]
        for step in JOBS["deploy"]["steps"]
        if "configure-aws-credentials" in step.get("uses", "")
    ]
    assert assumed == ["${{ vars.AWS_DEPLOY_ROLE_ARN }}", "${{ vars.AWS_VERIFY_ROLE_ARN }}"]


def test_two_deployments_of_a_commit_do_not_end_each_others_checks() -> None:
    """The called workflow shares a group only among runs that a newer commit makes needless."""
    path = ROOT / ".github" / "workflows" / "ci.yml"
    group = yaml.safe_load(path.read_text(encoding="utf-8"))["concurrency"]["group"]
    assert "github.event_name == 'workflow_dispatch' && github.run_id" in group


def test_ci_tests_the_library_on_each_of_its_pythons() -> None:
    """The matrix has the Pythons of the classifiers; a Python that is missing fails."""
    job = jobs_of("ci.yml")["library"]
    assert job["strategy"]["matrix"]["python"] == release.candidate().pythons
    assert job["steps"][-1] == {
        "name": "Its unit tests and its wheel on this Python",
        "run": "make test-library",
        "env": {"LIBRARY_PYTHON": "${{ matrix.python }}"},
    }


def test_only_a_checked_tag_is_published() -> None:
    """The index gets what was built after all checks, for the tag's own version."""
    assert RELEASE["check"]["uses"] == "./.github/workflows/ci.yml"
    assert RELEASE["build"]["needs"] == "check"
    assert RELEASE["index"]["needs"] == "build"
    assert RELEASE["assets"]["needs"] == ["build", "index"]
    scripts = [step["run"] for step in RELEASE["build"]["steps"] if "run" in step]
    assert scripts[-1].startswith('.venv-dev/bin/python -m tools.release --tag "$GITHUB_REF_NAME"')


def test_a_job_that_may_publish_runs_no_code_of_the_repository() -> None:
    """Who can change a build cannot publish without it: there is no checkout, and no token."""
    for name, job in RELEASE.items():
        writes = "write" in job.get("permissions", {}).values()
        assert writes == (name in {"index", "assets"})
        if writes:
            assert not [step for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert RELEASE["index"]["environment"] == "pypi"
    assert RELEASE["index"]["permissions"] == {"id-token": "write"}
    upload = RELEASE["index"]["steps"][-1]
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert upload["with"] == {"attestations": True}
