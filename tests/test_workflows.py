"""What GitHub publishes is checked before."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tools.transformed import ROOT

pytestmark = pytest.mark.integration

LIBRARY: Final = Path("layers/idempotency")
PUBLISHER: Final = "pypa/gh-action-pypi-publish@dc37677b2e1c63e2034f94d8a5b11f265b73ba33"
CHECKS_WITH: Final = {"twine": "7.0.0", "packaging": "26.2"}
"""What the publisher checks files with: ``requirements/runtime.txt`` of this commit."""
PYTHON: Final = "Programming Language :: Python :: "


def jobs_of(workflow: str) -> dict[str, Any]:
    """Return the jobs of a workflow."""
    path = ROOT / ".github" / "workflows" / workflow
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return jobs


RELEASE: Final = jobs_of("release.yml")
PROJECT: Final = tomllib.loads((ROOT / LIBRARY / "pyproject.toml").read_text())["project"]


def test_ci_tests_the_library_on_each_of_its_pythons() -> None:
    """The matrix has the Pythons of the classifiers; a Python that is missing fails."""
    job = jobs_of("ci.yml")["library"]
    pythons = [name.removeprefix(PYTHON) for name in PROJECT["classifiers"] if PYTHON in name]
    assert job["strategy"]["matrix"]["python"] == [name for name in pythons if "." in name]
    assert job["steps"][-1] == {
        "name": "Its unit tests and its wheel on this Python",
        "run": 'layers/idempotency/tools/on-python "$LIBRARY_PYTHON"',
        "env": {"LIBRARY_PYTHON": "${{ matrix.python }}"},
    }


def test_only_a_checked_tag_is_published() -> None:
    """The index gets what was built after all checks."""
    assert RELEASE["check"]["uses"] == "./.github/workflows/ci.yml"
    assert RELEASE["build"]["needs"] == "check"
    assert RELEASE["publish"]["needs"] == "build"


def test_a_job_that_may_publish_runs_no_code_of_the_repository() -> None:
    """Who can change a build cannot publish without it: there is no checkout, and no token."""
    writing = {
        name for name, job in RELEASE.items() if "write" in job.get("permissions", {}).values()
    }
    assert writing == {"publish"}
    job = RELEASE["publish"]
    assert job["permissions"] == {"id-token": "write"}
    assert job["environment"] == "pypi"
    assert [step["uses"].partition("@")[0] for step in job["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_files_are_checked_with_what_the_publisher_checks_them_with() -> None:
    """The library's tests run `twine check` in this environment: its versions are the action's."""
    assert RELEASE["publish"]["steps"][-1]["uses"] == PUBLISHER
    assert {name: version(name) for name in CHECKS_WITH} == CHECKS_WITH


@pytest.mark.parametrize(
    ("tag", "date", "is_built"),
    [
        ("{version}", "2026-12-01", True),
        ("9.9.9", "2026-12-01", False),
        ("{version}", "unreleased", False),
    ],
)
def test_a_tag_publishes_its_own_version_with_a_dated_changelog(
    tag: str, date: str, is_built: bool, tmp_path: Path
) -> None:
    """The build's own script fails otherwise, and leaves only what an index takes."""
    room = tmp_path / LIBRARY
    ignored = shutil.ignore_patterns("__pycache__", ".venv*", ".*_cache")
    shutil.copytree(ROOT / LIBRARY, room, ignore=ignored)
    (tmp_path / ".venv-dev").symlink_to(sys.prefix)
    changelog = room / "CHANGELOG.md"
    heading = rf"^## {re.escape(PROJECT['version'])} \(.*\)$"
    dated = f"## {PROJECT['version']} ({date})"
    text, headings = re.subn(heading, dated, changelog.read_text(), flags=re.MULTILINE)
    assert headings == 1
    changelog.write_text(text)
    step = next(step for step in RELEASE["build"]["steps"] if "working-directory" in step)
    name = "idempotency-v" + tag.format(version=PROJECT["version"])
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],  # noqa: S607 - as GitHub runs it
        cwd=tmp_path / step["working-directory"],
        env=os.environ | {"GITHUB_REF_NAME": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_built, done.stdout + done.stderr
    if is_built:
        names = sorted(file.name for file in (tmp_path / "dist").iterdir())
        stem = f"carride_idempotency-{PROJECT['version']}"
        assert names == [f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"]
