"""What `tools/release.py` checks, on a copy of the library in a repository of its own."""

import shutil
import subprocess
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from tools import release
from tools.release import ROOT

pytestmark = pytest.mark.integration

VERSION: Final = release.candidate().version
TAG: Final = f"idempotency-v{VERSION}"
CHANGELOG: Final = "layers/idempotency/CHANGELOG.md"
PROJECT: Final = "layers/idempotency/pyproject.toml"
COPIED: Final = ("layers/idempotency",)


class Repository:
    """A repository with the library, whose changelog has the date of a release."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path in COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / path, root / path, ignore=ignored)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "test")
        self.git("config", "user.email", "test@example.com")
        self.replace(CHANGELOG, "(unreleased)", "(2026-12-01)")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def replace(self, path: str, old: str, new: str) -> None:
        """Change a file, and commit everything."""
        file = self.root / path
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "change")

    def release(self, *arguments: str) -> int:
        return release.main(["--no-tests", *arguments], self.root)

    @property
    def tags(self) -> list[str]:
        return self.git("tag").split()

    @property
    def built(self) -> list[str]:
        return sorted(file.name for file in (self.root / "dist").iterdir())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(release, "_uv_tool", lambda: ["/nonexistent/uv"])
    return Repository(tmp_path)


def test_a_release_is_built_and_tagged(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tag is made, and the command says what publishes it; `dist` has what is published."""
    assert repository.release() == 0
    assert repository.tags == [TAG]
    assert f"git push origin {TAG}" in capsys.readouterr().out
    name = f"carride_idempotency-{VERSION}"
    files = [f"{name}-layer.zip", f"{name}-py3-none-any.whl", f"{name}.tar.gz", "notes.md"]
    assert repository.built == files
    notes = (repository.root / "dist" / "notes.md").read_text(encoding="utf-8")
    assert notes.startswith("- First version")
    assert "## " not in notes


def test_a_dry_run_makes_no_tag(repository: Repository) -> None:
    """It checks and builds as a release does."""
    assert repository.release("--dry-run") == 0
    assert repository.tags == []
    assert len(repository.built) == 4


def test_only_what_is_committed_is_built(repository: Repository) -> None:
    """A file that nobody has committed is not published."""
    package = repository.root / "layers/idempotency/src/carride_idempotency"
    leftover = package / "leftover.py"
    leftover.write_text("SECRET = 1\n", encoding="utf-8")
    (repository.root / "dist").mkdir()
    (repository.root / "dist" / "old.whl").touch()
    assert repository.release("--dry-run") == 0
    assert "old.whl" not in repository.built
    (wheel,) = (repository.root / "dist").glob("*.whl")
    assert "carride_idempotency/leftover.py" not in ZipFile(wheel).namelist()


def test_a_changelog_without_a_date_stands_in_the_way(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says what to write, and makes no tag."""
    repository.replace(CHANGELOG, "(2026-12-01)", "(unreleased)")
    assert repository.release() == 1
    assert repository.tags == []
    assert 'says "unreleased": write the date of the release' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        (PROJECT, f'version = "{VERSION}"', 'version = "9.9.9"', "make them equal"),
        (CHANGELOG, f"## {VERSION}", "## 9.9.9", "the first section"),
        ("layers/idempotency/README.md", "# idempotency", "# idempotency\n", ""),
    ],
)
def test_version_and_changelog_belong_together(
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
    path: str,
    old: str,
    new: str,
    said: str,
) -> None:
    """Package, metadata and changelog name one version; other changes do not matter."""
    repository.replace(path, old, new)
    assert repository.release("--dry-run") == bool(said)
    assert said in capsys.readouterr().out


def test_a_change_that_is_not_committed_stands_in_the_way(repository: Repository) -> None:
    """It would be missing in what is published."""
    readme = repository.root / "layers/idempotency/README.md"
    readme.write_text("changed\n", encoding="utf-8")
    assert repository.release() == 1
    assert repository.tags == []


def test_a_version_is_released_once(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tag is there already."""
    repository.git("tag", TAG)
    assert repository.release() == 1
    assert "Raise the version" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("remote", "status"),
    [
        ("git@github.com:carride/carride.git", 0),
        ("ssh://git@github.com/carride/carride.git", 0),
        ("https://github.com/CarRide/carride", 0),
        ("git@github.com:somebody/carride.git", 1),
    ],
)
def test_the_projects_urls_lead_to_this_repository(
    repository: Repository, remote: str, status: int
) -> None:
    """A fork that publishes says where its own source is."""
    repository.git("remote", "add", "origin", remote)
    assert repository.release("--dry-run") == status


def test_a_pushed_tag_is_the_versions(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow checks the tag that was pushed, in the repository that runs it."""
    repository.git("tag", TAG)
    monkeypatch.setenv("GITHUB_REPOSITORY", "carride/carride")
    assert repository.release("--tag", TAG) == 0
    assert repository.release("--tag", "idempotency-v9.9.9") == 1
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/carride")
    assert repository.release("--tag", TAG) == 1
