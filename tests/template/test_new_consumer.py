"""A consumer that `make new-consumer` adds passes every check.

A name that cannot be used changes nothing.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.template.stack import CHOICES
from tools.new_consumer import NewConsumerError, make
from tools.transformed import ROOT, source

pytestmark = pytest.mark.integration

NAME: Final = "loyalty_points"
BIN: Final = Path(sys.executable).parent
LINES: Final = 110
"""How long a consumer's part of the template may be."""
TESTS: Final = (
    # Proofs and peers are about the application's own consumers.
    *("pytest", "-q", "-p", "no:cacheprovider", "-m", "not proof and not peer"),
    *(
        f"tests/functions/test_{NAME}.py",
        "tests/carride/contract/test_samples.py",
        "tests/carride/test_dependencies.py",
    ),
    *("tests/local/test_worst.py", "ops/tests"),
)
WRITTEN: Final = (
    f"functions/{NAME}",
    f"tests/functions/test_{NAME}.py",
    "ops/audit/evidence.py",
    "ops/policies.py",
)
GENERATED: Final = "tests/carride/contract/test_generated.py"
OF_THE_TEMPLATE: Final = (
    *("tests/template", "--ignore=tests/template/test_new_consumer.py"),
    # They look at all choices of parameters, of which the copy has one only.
    "--deselect=tests/template/test_deployed.py::test_any_two_options_of_parameters_are_chosen_together",
    "--deselect=tests/template/test_costs.py::test_every_type_is_billed_or_free_with_a_reason",
    # The figures are those of the application as it is: a further consumer costs more.
    "--deselect=tests/template/test_costs.py::test_the_targets_are_kept",
    "--deselect=tests/template/test_costs.py::test_the_figures_of_the_pages_are_those_of_the_command",
)
TEST_OF_THE_POINTS: Final = """
from points import effect, points
from tests.kit.rides import Life
from tests.kit.rides import event as event_of


def test_points():
    ride = Life(price=1250)
    assert [points(event_of(fact)) for fact in (ride.created, ride.completed)] == [0, 12]
    assert effect("points", event_of(ride.completed)).key == {"orderID": "order_01"}
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project with its environments, whose tests look at one set of parameters."""
    copy = tmp_path_factory.mktemp("projects") / "copied"
    ignored = (
        pattern.rstrip("/") for pattern in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    )
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", *ignored))
    for environment in ROOT.glob(".venv-*"):
        (copy / environment.name).symlink_to(environment)
    replace(
        copy / "tests" / "template" / "stack.py",
        f"CHOICES: Final = {CHOICES}",
        "CHOICES: Final = 1",
    )
    return copy


@pytest.fixture(scope="module")
def project(copied: Path) -> Path:
    """Another copy, to which the Makefile's `new-consumer` has added a consumer."""
    copy = copied.with_name("project")
    shutil.copytree(copied, copy, symlinks=True)
    makefile = (copy / "Makefile").read_text(encoding="utf-8")
    for line in re.findall(r"^new-consumer:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[
        0
    ].splitlines():
        run(copy, *shlex.split(line.removeprefix("\t@$(PYTHON) ").replace("$(NAME)", NAME)))
    return copy


def run(project: Path, *command: str) -> None:
    """Run a module, or a program of this Python's environment, in a copy; it has to succeed."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTEST"))
    }
    done = subprocess.run(
        [sys.executable, *command] if command[0] == "-m" else [BIN / command[0], *command[1:]],
        cwd=project,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def replace(path: Path, before: str, after: str) -> None:
    """Replace a text that a file has once."""
    content = path.read_text(encoding="utf-8")
    assert content.count(before) == 1, f"{path}: {before}"
    path.write_text(content.replace(before, after), encoding="utf-8")


@pytest.mark.thorough
def test_what_is_written_for_a_new_consumer_is_clean_and_passes(project: Path) -> None:
    """Its code has the project's style, its own test is green, and its sample is valid."""
    run(project, "ruff", "check", "--no-cache", *WRITTEN)
    run(project, "ruff", "format", "--check", "--no-cache", *WRITTEN)
    tests = (f"tests/functions/test_{NAME}.py", "tests/carride/contract/test_samples.py")
    run(project, "pytest", "-q", "-p", "no:cacheprovider", *tests)


@pytest.mark.thorough  # a thousand tests in a copy
def test_a_new_consumer_passes_every_check_unchanged(project: Path) -> None:
    """Tests of template, documents, samples and consumers are green, and so are the linters."""
    run(project, *TESTS, GENERATED, *OF_THE_TEMPLATE)
    run(project, "mypy", "--no-incremental", *WRITTEN)
    run(project, "cfn-lint")


@pytest.mark.thorough  # the same
def test_the_walkthrough_leads_to_a_consumer_that_passes(project: Path, tmp_path: Path) -> None:
    """Followed exactly, the page gives points, the audit counts them, and all checks pass."""
    copy = tmp_path / "project"
    shutil.copytree(project, copy, symlinks=True)
    text = (copy / "docs" / "add-a-consumer.md").read_text(encoding="utf-8")
    for block in re.finditer(r"^```(python|diff)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        # The file named last.
        path = copy / re.findall(r"`([\w/.-]+\.(?:py|yaml))`", text[: block.start()])[-1]
        if block[1] == "python":
            path.write_text(block[2], encoding="utf-8")
        else:
            lines = block[2].splitlines(keepends=True)
            replace(
                path,
                *(
                    "".join(line[1:] or line for line in lines if line[0] != left_out)
                    for left_out in "+-"
                ),
            )
    (copy / "tests" / "functions" / "test_points.py").write_text(
        TEST_OF_THE_POINTS, encoding="utf-8"
    )
    rules = (f"tests/template/test_{name}.py" for name in ("lint_rules", "graph", "deployed"))
    run(copy, *TESTS, "tests/functions/test_points.py", *rules, *OF_THE_TEMPLATE[2:])
    run(copy, "ruff", "check", "--no-cache", f"functions/{NAME}", "ops", "conftest.py")
    run(
        copy,
        "mypy",
        "--no-incremental",
        f"functions/{NAME}",
        f"tests/functions/test_{NAME}.py",
        "ops",
    )


def test_a_second_consumer_can_follow(copied: Path, tmp_path: Path) -> None:
    """Each has the ride history's resources, but not its table, in at most 110 lines."""
    shutil.copytree(copied, tmp_path / "project", symlinks=True)
    template = tmp_path / "project" / "template.yaml"
    for name in (NAME, "city_statistics"):
        before = len(template.read_text(encoding="utf-8").splitlines())
        make(name, tmp_path / "project")
        assert len(template.read_text(encoding="utf-8").splitlines()) - before <= LINES
    resources = source(template)["Resources"]
    model = resources_of("RideHistory", resources) - {"Table"}
    for noun in ("LoyaltyPoints", "CityStatistics"):
        assert resources_of(noun, resources) == model


def resources_of(noun: str, resources: Iterable[str]) -> set[str]:
    """Return what the names of a consumer's resources say after its own name."""
    return {name.removeprefix(noun) for name in resources if name.startswith(noun)}


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("lower-case", ["LoyaltyPoints", "loyalty-points", "2points", "", "x" * 41, "class"]),
        ("exists already", ["ride_history", "payment"]),
        ("contain", ["ride_history_again", "carride", "payments", "pay", "pay_ments"]),
        ("YAML", ["null", "true", "yes", "on", "n"]),
        ("PartnersRule", ["partners"]),
        ("ProducerDlq", ["producer"]),
        ("anchor or a metric", ["reads", "outbox_reads", "operation", "errors", "undelivered"]),
        (
            "import",
            ["json", "assignments", "carride_idempotency", "local", "botocore", "settlement"],
        ),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(
    copied: Path, problem: str, names: list[str]
) -> None:
    """The error says what is wrong with the name, and nothing is written."""
    before = contents(copied)
    for name in names:
        with pytest.raises(NewConsumerError, match=problem):
            make(name, copied)
    assert contents(copied) == before


def contents(project: Path) -> dict[Path, bytes]:
    """Return every file of a project, except its environments'."""
    folders = [path for path in project.iterdir() if path.is_dir() and not path.is_symlink()]
    files = [*project.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    return {path: path.read_bytes() for path in files if path.is_file()}
