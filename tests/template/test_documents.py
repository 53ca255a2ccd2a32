"""What the documents promise to name is there: tests, resources, outputs, commands, runbooks, sums, pinned actions."""

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import botocore.session
import pytest
import yaml
from botocore import xform_name

from ops.__main__ import command_line
from tests.template.stack import ROOT, source
from tests.template.test_references import DOCUMENTS, code, targets

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

RUNBOOK: Final = re.compile(r"docs/runbooks/[\w-]+\.md")
TEST: Final = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")
RESOURCE: Final = re.compile(
    r"\b(?<!::)(?!Invocations)[A-Z][A-Za-z]+(?:Queue|Dlq|Alarm|Topic|Pipe|Role|Policy|Permission|Mapping|LogGroup)\b"
)
OUTPUT: Final = re.compile(r"\boutput ([A-Z]\w+)")
INNERMOST: Final = re.compile(r"\$\(([^()]*)\)")
AWS: Final = re.compile(r"(?<![\w-])aws ([a-z0-9-]+) ([a-z-]+)([^|;`\n]*)")
OPTION: Final = re.compile(r"(?<=\s)--([a-z0-9-]+)")
OF_THE_CLI: Final = frozenset({"query", "output", "region", "max-items", "notification-endpoint"})
"""Options of the CLI's own; the last one is SNS's `endpoint`, whose name the CLI needs for itself."""
MADE_BY_THE_CLI: Final = frozenset({("logs", "tail"), ("cloudformation", "deploy")})
"""Commands that are no operation of a service."""
CALLED_BY_THE_CLI: Final = {"deploy": "codedeploy"}
"""Services that the CLI calls otherwise than their models."""
OPS: Final = re.compile(r"""make ops ARGS=(?:"([^"]+)"|([\w-]+))""")
ANCHORED: Final = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
PINNED: Final = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")

KB: Final = 1024


def documents() -> list[Any]:
    """Return one test parameter for each document."""
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in DOCUMENTS]


# ── Tests, resources, outputs, anchors ────────────────────────────────────────────────────────────────────────────────


@cache
def template() -> dict[str, Any]:
    """Return the template as written."""
    return source()


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of a module's tests, as pytest writes them behind the path."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name):
                found.add(f"::{name}")
            case ast.ClassDef(name=name, body=body):
                found.update(f"::{name}::{inner.name}" for inner in body if isinstance(inner, ast.FunctionDef))
            case ast.ImportFrom(names=names):  # one suite for all stores, which a module of each environment imports
                found.update(_imported(node, names))
            case _:
                pass
    return frozenset(found)


def _imported(node: ast.ImportFrom, names: list[ast.alias]) -> Iterator[str]:
    module = ROOT.joinpath(*(node.module or "").split(".")).with_suffix(".py")
    if module.is_relative_to(ROOT / "tests") and module.exists():
        wanted = {alias.asname or alias.name for alias in names}
        yield from (name for name in names_in(module) if name.split("::")[1] in wanted or "*" in wanted)


@pytest.mark.parametrize("document", documents())
def test_every_test_that_is_named_exists(document: Path) -> None:
    """A guarantee that names its test names one that there is."""
    named = TEST.findall(document.read_text(encoding="utf-8"))
    assert [path + name for path, name in named if name not in names_in(ROOT / path)] == []


@pytest.mark.parametrize("document", documents())
def test_every_resource_and_output_that_is_named_exists(document: Path) -> None:
    """Whoever follows a document finds the resource, and the output that it asks for."""
    text = code(document)
    assert set(RESOURCE.findall(text)) <= set(template()["Resources"])
    assert set(OUTPUT.findall(text)) <= set(template()["Outputs"])


@pytest.mark.parametrize("document", documents())
def test_links_into_a_page_reach_their_heading(document: Path) -> None:
    """A link to a heading leads to a heading that is there."""
    for path, anchor in ANCHORED.findall(document.read_text(encoding="utf-8")):
        if "://" not in path:
            page = document.parent / path if path else document
            assert anchor in set(anchors(page)), f"{path}#{anchor}"


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


# ── Commands of the AWS CLI ───────────────────────────────────────────────────────────────────────────────────────────


class Command(NamedTuple):
    """A command of the AWS CLI, as a document gives it."""

    service: str
    operation: str
    options: tuple[str, ...]


def commands(text: str) -> Iterator[Command]:
    """Yield every command in a text, those inside of `$(…)` too."""
    text = text.replace("\\\n", " ")
    parts = []
    while inner := INNERMOST.search(text):
        parts.append(inner[1])
        text = text[: inner.start()] + "…" + text[inner.end() :]
    for part in (*parts, text):
        for service, operation, rest in AWS.findall(part):
            yield Command(service, operation, tuple(OPTION.findall(rest)))


@cache
def options_of(service: str) -> Mapping[str, frozenset[str]]:
    """Return the options of each operation of a service, by the CLI's names."""
    model = botocore.session.get_session().get_service_model(CALLED_BY_THE_CLI.get(service, service))
    found = {}
    for name in model.operation_names:
        shape = model.operation_model(name).input_shape
        members = {} if shape is None else shape.members
        options = {xform_name(member, "-") for member in members}
        found[xform_name(name, "-")] = frozenset(options | {f"no-{option}" for option in options})
    return found


@pytest.mark.parametrize("document", documents())
def test_aws_knows_every_command(document: Path) -> None:
    """Each command of the AWS CLI is an operation of its service, with options that it takes."""
    for command in commands(code(document)):
        if command[:2] in MADE_BY_THE_CLI:
            continue
        known = options_of(command.service)
        assert command.operation in known, command
        assert set(command.options) <= known[command.operation] | OF_THE_CLI, command


@pytest.mark.parametrize("document", documents())
def test_the_operators_commands_are_understood(document: Path) -> None:
    """Each `make ops` of a document is a command that there is, with options that it takes."""
    for quoted, word in OPS.findall(code(document)):
        if word != "--help":
            assert command_line().parse_args(shlex.split(quoted or word)).command


# ── Runbooks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_queue_and_every_alarm_has_a_runbook() -> None:
    """The index names a page for each queue; pages are those of the index, and those that alarms name."""
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    queues = {name for name, each in template()["Resources"].items() if each["Type"] == "AWS::SQS::Queue"}
    of_queues = dict(re.findall(r"\[`(\w+)`\]\(([\w-]+\.md)\)", index))
    assert set(of_queues) >= queues
    of_alarms = {Path(path).name for path in RUNBOOK.findall(json.dumps(template()["Resources"]))}
    assert {path.name for path in RUNBOOKS.iterdir()} == {"README.md"} | set(of_queues.values()) | of_alarms


# ── Costs, and the window ─────────────────────────────────────────────────────────────────────────────────────────────


def rows(document: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head, and without emphasis."""
    section = (
        (ROOT / "docs" / document).read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_costs_add_up() -> None:
    """Each row of the summary is its count times its price, and the last one their sum."""
    *components, total = rows("costs.md", "Summary")
    for component, count, price, cost in components:
        assert Decimal(count) * Decimal(price) == Decimal(cost), component
    assert Decimal(total[-1]) == sum(Decimal(row[-1]) for row in components)


def test_the_windows_arithmetic_is_right() -> None:
    """The roads by which an event comes back add up to less than the window."""
    *roads, total = rows("guarantees.md", "The window")
    assert Decimal(total[-1]) == sum(Decimal(days) for _, days in roads) < 30


# ── Workflows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_pinned_and_ask_for_little(workflow: Path) -> None:
    """Each action is a commit, not a tag that can be moved; the token reads, and writes at most an identity."""
    text = workflow.read_text(encoding="utf-8")
    parsed = yaml.safe_load(text)
    used = re.findall(r"uses: (.+)$", text, re.MULTILINE)
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    assert parsed["permissions"].items() <= {"contents": "read", "id-token": "write"}.items()
    assert all(job["timeout-minutes"] for job in parsed["jobs"].values())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_is_there(workflow: Path) -> None:
    """A step runs scripts and targets of this repository, and takes nothing from outside into its shell."""
    steps = [
        step for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values() for step in job["steps"]
    ]
    for script in (step["run"] for step in steps if "run" in step):
        assert "${{" not in script, (
            "an expression in a script is code of whoever chose its value: pass it as a variable"
        )
        assert set(re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)) <= targets()
        for path in re.findall(r"^(\.[a-z]+/[a-z]+)$", script, re.MULTILINE):
            assert (ROOT / path).exists(), path
