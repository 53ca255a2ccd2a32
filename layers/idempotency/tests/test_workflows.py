"""What GitHub publishes is checked before."""

from typing import Any, Final

import pytest
import yaml

from tools import release
from tools.release import ROOT

pytestmark = pytest.mark.integration


def jobs_of(workflow: str) -> dict[str, Any]:
    """Return the jobs of a workflow."""
    path = ROOT / ".github" / "workflows" / workflow
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return jobs


RELEASE: Final = jobs_of("release.yml")


def test_ci_tests_the_library_on_each_of_its_pythons() -> None:
    """The matrix has the Pythons of the classifiers; a Python that is missing fails."""
    job = jobs_of("ci.yml")["library"]
    assert job["strategy"]["matrix"]["python"] == release.candidate().pythons
    assert job["steps"][-1] == {
        "name": "Its unit tests and its wheel on this Python",
        "run": 'layers/idempotency/tools/on-python "$LIBRARY_PYTHON"',
        "env": {"LIBRARY_PYTHON": "${{ matrix.python }}"},
    }


def test_only_a_checked_tag_is_published() -> None:
    """The index gets what was built after all checks, for the tag's own version."""
    assert RELEASE["check"]["uses"] == "./.github/workflows/ci.yml"
    assert RELEASE["build"]["needs"] == "check"
    assert RELEASE["index"]["needs"] == "build"
    assert RELEASE["assets"]["needs"] == ["build", "index"]
    scripts = [step["run"] for step in RELEASE["build"]["steps"] if "run" in step]
    assert 'python -m tools.release --tag "$GITHUB_REF_NAME"' in scripts[-1]


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
