"""What becomes of a consumer that `make new-consumer` adds, and of one that it cannot add."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from local.new_consumer import NewConsumerError, make
from tests.template.stack import ROOT, every_choice, label, source

NAME: Final = "loyalty_points"
BIN: Final = Path(sys.executable).parent
QUIET: Final = ("-q", "-p", "no:cacheprovider")
BESIDE_THE_TEMPLATE: Final = (
    f"tests/functions/test_{NAME}.py",
    "tests/carride/contract/test_samples.py",
    "tests/carride/test_dependencies.py",
    "tests/local/test_chaos.py",
    "tests/ops",
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project, with this project's environments, in which nobody changes anything."""
    copy = tmp_path_factory.mktemp("projects") / "copied"
    ignored = (pattern.rstrip("/") for pattern in (ROOT / ".gitignore").read_text(encoding="utf-8").split())
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", *ignored))
    for environment in ROOT.glob(".venv-*"):
        (copy / environment.name).symlink_to(environment)
    return copy


@pytest.fixture(scope="module")
def project(copied: Path) -> Path:
    """Another copy, to which `make new-consumer` has added a consumer, by what the Makefile has it do."""
    copy = copied.with_name("project")
    shutil.copytree(copied, copy, symlinks=True)
    makefile = (copy / "Makefile").read_text(encoding="utf-8")
    for line in re.findall(r"^new-consumer:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[0].splitlines():
        run(copy, *shlex.split(line.removeprefix("\t@$(PYTHON) ").replace("$(NAME)", NAME)))
    return copy


def run(project: Path, *command: str) -> str:
    """Run a program of this Python's environment, or a module, in the copy; return what it says if it is content."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, *command] if command[0] == "-m" else [BIN / command[0], *command[1:]],
        cwd=project,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def of_the_template(project: Path, *files: str) -> list[str]:
    """Return the tests of template and documents, for one choice of parameters, and the consumer's own guards.

    Args:
        project: the copy.
        files: where to look for tests; left out, everywhere.
    """
    where = [f"tests/template/{file}" for file in files] or [
        "tests/template",
        "--ignore=tests/template/test_new_consumer.py",
    ]
    listed = run(project, "pytest", *QUIET, "--collect-only", *where)
    others = tuple(f"[{label(choice)}]" for choice in every_choice())[1:]
    elsewhere = re.compile(
        r"::test_(what_is_wrong_is_found|no_guard_can_be_taken_away|nothing_that_has_to_be_unique_is_made_at_import)"
        r"\[(?!LoyaltyPoints|loyalty_points)"
        r"|::test_cfn_lint_accepts_what_is_deployed\[(primary|secondary)|::test_the_template_is_accepted\[sam"
    )
    tests = [line for line in listed.splitlines() if "::" in line]
    return [test for test in tests if not test.endswith(others) and not elsewhere.search(test)]


def test_a_new_consumer_passes_the_tests_unchanged(project: Path) -> None:
    """Its own test, and all that look at template, documents, samples and the list of consumers, are green at once."""
    run(project, "pytest", *QUIET, *BESIDE_THE_TEMPLATE, *of_the_template(project))


def test_the_walkthrough_leads_to_a_consumer_that_passes(project: Path, tmp_path: Path) -> None:
    """Followed to the letter, the page gives points for completed rides, counted by the audit, and all is green."""
    copy = tmp_path / "project"
    shutil.copytree(project, copy, symlinks=True)
    follow(copy / "docs" / "add-a-consumer.md", copy)
    (copy / "tests" / "functions" / "test_points.py").write_text(TEST_OF_THE_POINTS, encoding="utf-8")
    rules = of_the_template(copy, "test_house_rules.py", "test_lint_rules.py", "test_graph.py")
    run(copy, "pytest", *QUIET, *BESIDE_THE_TEMPLATE, "tests/functions/test_points.py", *rules)
    run(copy, "ruff", "check", "--no-cache", f"functions/{NAME}", "ops", "tests/conftest.py")
    run(copy, "mypy", "--no-incremental", f"functions/{NAME}", f"tests/functions/test_{NAME}.py", "ops")


TEST_OF_THE_POINTS: Final = """
from points import effect, points
from tests.functions.saga import Life, event_of


def test_points():
    ride = Life(price=1250)
    assert [points(event_of(fact)) for fact in (ride.created, ride.completed)] == [0, 12]
    assert effect("points", event_of(ride.completed)).key == {"orderID": "order_01"}
"""


def follow(page: Path, project: Path) -> None:
    """Do what a page says: write its Python blocks, and make the changes of its diffs, to the file named last."""
    text = page.read_text(encoding="utf-8")
    for block in re.finditer(r"^```(python|diff)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        path = project / re.findall(r"`([\w/.-]+\.(?:py|yaml))`", text[: block.start()])[-1]
        if block[1] == "python":
            path.write_text(block[2], encoding="utf-8")
            continue
        lines = block[2].splitlines(keepends=True)
        before, after = ("".join(line[1:] or line for line in lines if line[0] != left_out) for left_out in "+-")
        content = path.read_text(encoding="utf-8")
        assert content.count(before) == 1, f"{path}: {block[2]}"
        path.write_text(content.replace(before, after), encoding="utf-8")


def test_a_new_consumer_is_in_the_projects_style(project: Path) -> None:
    """Nothing that was written has to be formatted, linted or typed afterwards."""
    written = (f"functions/{NAME}", f"tests/functions/test_{NAME}.py", "ops/audit/evidence.py")
    run(project, "ruff", "check", "--no-cache", *written)
    run(project, "ruff", "format", "--check", "--no-cache", *written)
    run(project, "mypy", "--no-incremental", *written)


def test_a_second_consumer_can_follow(copied: Path, tmp_path: Path) -> None:
    """Each has the resources of the ride history, but for the permission to write its table."""
    shutil.copytree(copied, tmp_path / "project", symlinks=True)
    for name in (NAME, "city_statistics"):
        make(name, tmp_path / "project")
    resources = source(tmp_path / "project" / "template.yaml")["Resources"]
    model = {name.removeprefix("RideHistory") for name in resources if name.startswith("RideHistory")} - {"Policy"}
    for noun in ("LoyaltyPoints", "CityStatistics"):
        assert {name.removeprefix(noun) for name in resources if name.startswith(noun)} == model


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("LoyaltyPoints", "lower-case"),
        ("loyalty-points", "lower-case"),
        ("2points", "lower-case"),
        ("", "lower-case"),
        ("x" * 41, "lower-case"),
        ("class", "lower-case"),
        ("ride_history", "exists already"),
        ("payment", "exists already"),
        *((contained, "contain") for contained in ("ride_history_again", "carride", "payments", "pay", "pay_ments")),
        *((word, "YAML") for word in ("null", "true", "false", "yes", "no", "on", "off", "y", "n")),
        ("partners", "PartnersRule"),
        ("producer", "ProducerDlq"),
        *((taken, "import") for taken in ("json", "fleet", "idempotency", "local", "botocore", "timeline")),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(copied: Path, name: str, problem: str) -> None:
    """The error says what a name looks like, or what it would take the place of, and nothing is written."""
    before = contents(copied)
    with pytest.raises(NewConsumerError, match=problem):
        make(name, copied)
    assert contents(copied) == before


def contents(project: Path) -> dict[Path, bytes]:
    """Return every file of a project but its environments'."""
    folders = [path for path in project.iterdir() if path.is_dir() and not path.is_symlink()]
    files = [*project.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    return {path: path.read_bytes() for path in files if path.is_file()}
