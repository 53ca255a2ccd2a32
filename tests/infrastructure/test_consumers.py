"""What consumers are handed, and what becomes of a consumer that is added."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from samtranslator.yaml_helper import yaml_parse

import fleet
import payments
from carride.events import Fact
from local.new_consumer import NewConsumerError, make
from tests.infrastructure.stack import ROOT, source

NAME: Final = "loyalty_points"


def types_of(rule: str) -> list[set[str]]:
    """Return the types that a rule lets through, for each envelope."""
    alternatives = source()["Resources"][rule]["Properties"]["EventPattern"]["detail"]["$or"]
    return [set(alternative.get("type") or alternative["attributes"]["type"]) for alternative in alternatives]


@pytest.mark.parametrize(
    ("rule", "consumed", "emitted"),
    [
        ("DispatchRule", fleet.CONSUMED, fleet.EMITTED),
        ("PaymentRule", payments.CONSUMED, payments.EMITTED),
    ],
)
def test_a_rule_hands_over_what_its_consumer_acts_on(
    rule: str, consumed: frozenset[type[Fact]], emitted: frozenset[type[Fact]]
) -> None:
    """In both envelopes the same types, and none that the consumer emits: it would feed itself for ever."""
    names = {fact.__name__ for fact in consumed}
    assert types_of(rule) == [names, names]
    assert names.isdisjoint(fact.__name__ for fact in emitted)


def dashboard(template: dict[str, Any]) -> str:
    """Return the dashboard, which has to be JSON once names have been filled in."""
    body = str(template["Resources"]["CarRideDashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])
    json.loads(body)
    return body


def test_every_queue_is_on_the_dashboard() -> None:
    """A dead-letter queue shows how much lies in it, a working queue how long it waits."""
    template = source()
    body = dashboard(template)
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::SQS::Queue":
            metric = "ApproximateAgeOfOldestMessage" if "RedrivePolicy" in resource["Properties"] else "MessagesVisible"
            assert re.search(rf'{metric}", "QueueName", "\$\{{{name}\.QueueName\}}"', body), name


# ── A new consumer ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project to which a consumer was added, with this project's environments."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("docs", "events", "functions", "layers", "local", "ops", "scripts", "tests", ".ci", ".github"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    for environment in ROOT.glob(".venv-*"):
        (copy / environment.name).symlink_to(environment)
    make(NAME, copy)
    return copy


def run(project: Path, *command: str) -> None:
    """Run a module of this Python in the copy, and expect that it is content."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=project, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_consumer_passes_the_tests_unchanged(project: Path) -> None:
    """Its own test, and the house rules for template, documents and samples, are green as they stand."""
    run(
        project,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"tests/unit/functions/test_{NAME}.py",
        "tests/infrastructure/test_house_rules.py",
        "tests/infrastructure/test_documents.py",
        "tests/infrastructure/test_references.py",
        "tests/contract/test_samples.py",
    )


def test_a_new_consumer_is_in_the_projects_style(project: Path) -> None:
    """Nothing that was written has to be formatted, linted or typed afterwards."""
    written = (f"functions/{NAME}", f"tests/unit/functions/test_{NAME}.py")
    run(project, "ruff", "check", "--no-cache", *written)
    run(project, "ruff", "format", "--check", "--no-cache", *written)
    run(project, "mypy", "--no-incremental", *written)


def test_a_new_consumer_has_everything_that_its_model_has(project: Path) -> None:
    """The template has the same resources for it as for ride_history, but for the table."""
    text = (project / "template.yaml").read_text(encoding="utf-8")
    declared = re.findall(r"^  (RideHistory|LoyaltyPoints)(\w+):$", text, re.MULTILINE)
    model, own = ({kind for noun, kind in declared if noun == name} for name in ("RideHistory", "LoyaltyPoints"))
    assert own == model
    assert "${LoyaltyPointsRuleDlq.QueueName}" in dashboard(yaml_parse(text))
    section = text[text.index("# Consumer: loyalty_points") :]
    assert "RideTable" not in section[: section.index("# ====", 200)]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("LoyaltyPoints", "lower-case"),
        ("loyalty-points", "lower-case"),
        ("2points", "lower-case"),
        ("", "lower-case"),
        ("x" * 41, "lower-case"),
        ("ride_history", "there already"),
        ("payment", "there already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, problem: str) -> None:
    """The error says what a name looks like, or that it is taken, and nothing is written."""
    with pytest.raises(NewConsumerError, match=problem):
        make(name, ROOT)


def test_a_module_that_python_knows_is_no_name(project: Path) -> None:
    """A consumer that hid a module of the standard library, or of this project, would break the others."""
    for name in ("json", "carride", "fleet", "idempotency", "local"):
        with pytest.raises(NewConsumerError, match="import"):
            make(name, project)
