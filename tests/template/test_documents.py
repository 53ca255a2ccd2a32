"""What documents, scripts and workflows name exists.

Paths, commands, tests, resources and runbooks.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import botocore.session
import pytest
import yaml
from botocore import xform_name

from ops.cli.app import command_line
from tools.transformed import ROOT, source

pytestmark = pytest.mark.integration

SCRIPTS: Final = [ROOT / "Makefile", ROOT / ".ci" / "run"]
RUNBOOKS: Final = ROOT / "ops" / "docs" / "runbooks"
TEMPLATE: Final = source()
FOLDERS: Final = (
    *("docs", "engine", "events", "functions", "layers", "local", "ops", "tests", "tools"),
    "layers/idempotency",
)

CODE: Final = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
A_FILE: Final = re.compile(r"^```python title=.*?^```", re.DOTALL | re.MULTILINE)
"""A file that the reader makes; layers/idempotency/tests/test_distribution.py runs it."""
PYTHON: Final = re.compile(r"^```python.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK: Final = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
PATH: Final = re.compile(
    r"(?<![\w./:@…$-])"  # not in a word, URL or placeholder, nor behind a variable
    r"(?!AWS/|CarRide/|application/)"  # no metric namespace, no media type
    r"\.?[A-Za-z_][\w.-]*(?:/[\w.*-]+)*"
    r"(?:\.(?:py|md|toml|yaml|yml|json|lock)\b|/(?![\w-]+#))"  # no key: consumer/operation#…
)
TEST: Final = re.compile(r"`((?:[\w-]+/)*tests/[\w/]+\.py)((?:::\w+)+)`")
SUITE: Final = re.compile(r"^from ([\w.]+) import", re.MULTILINE)
MAKE: Final = re.compile(r"\bmake ([a-z][a-z-]*)")
CALL: Final = re.compile(r"^\s*@?make ([a-z][a-z-]*)", re.MULTILINE)
MODULE: Final = re.compile(r"-m ((?:local|ops)[\w.]*)")
OPERATOR: Final = re.compile(r"\./carride ((?:(?! #)[^`\n|;)])+)")
OUTPUT: Final = re.compile(r"\boutput ([A-Z]\w+)")
RESOURCE: Final = re.compile(
    r"\b(?<!::)(?!Invocations|DeletionPolicy|UpdateReplacePolicy)[A-Z][A-Za-z]+"
    # no test, no metric, no attribute of a resource
    r"(?:Function|Table|Bus|Archive|Dlq|Rule|Queue|Alarm|Topic|Pipe|Role|Policy|Permission|Mapping|LogGroup"
    r"|(?<!Persistence)Layer)\b"  # no class of Powertools
)
MADE_BY_THE_READER: Final = re.compile(
    r"[\w./-]*(?:loyalty[_-]points|LoyaltyPoints|PointsTable)[\w./-]*"
)
"""Names of docs/add-a-consumer.md, which test_new_consumer.py follows."""

INNERMOST: Final = re.compile(r"\$\(([^()]*)\)")
AWS: Final = re.compile(r"(?<![\w-])aws ([a-z0-9-]+) ([a-z-]+)([^|;`\n]*)")
OPTION: Final = re.compile(r"(?<=\s)--([a-z0-9-]+)")
OF_THE_CLI: Final = frozenset({"query", "output", "region", "max-items", "notification-endpoint"})
"""Options of the CLI itself; the last one is its name for SNS's `endpoint`."""
MADE_BY_THE_CLI: Final = frozenset(
    {
        ("logs", "tail"),
        ("cloudformation", "deploy"),
        ("cloudformation", "wait"),
        ("dynamodb", "wait"),
    }
)
"""Commands that are not an operation of a service."""
CALLED_BY_THE_CLI: Final = {"deploy": "codedeploy", "s3api": "s3"}
"""Services that have another name in the CLI."""
PINNED: Final = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def each(*paths: Path) -> pytest.MarkDecorator:
    """Run a test once for each path."""
    return pytest.mark.parametrize(
        "path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]
    )


LIBRARY: Final = ROOT / "layers" / "idempotency"
documents = each(
    *sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "engine").glob("*.md"),
            *(ROOT / "functions").glob("*.md"),
            *(ROOT / "ops").glob("*.md"),
            *(ROOT / "ops" / "docs").rglob("*.md"),
            *LIBRARY.glob("*.md"),
            *(LIBRARY / "docs").rglob("*.md"),
        ]
    )
)
workflows = each(*sorted((ROOT / ".github" / "workflows").glob("*.yml")))


def code(document: Path) -> str:
    """Return a document's code spans and blocks, without what a walkthrough's reader makes."""
    text = "\n".join(CODE.findall(A_FILE.sub("", document.read_text(encoding="utf-8"))))
    return MADE_BY_THE_READER.sub("…", text) if document.name == "add-a-consumer.md" else text


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(
        re.findall(
            r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )


# ── Paths, links, tests and resources ─────────────────────────────────────────────────────────────


def missing_paths(text: str) -> Iterator[str]:
    """Yield each path in a text that neither exists nor is made by a command and ignored."""
    generated = tuple(
        line.removesuffix("*/")
        for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    )
    for path in PATH.findall(text):
        name = path.removesuffix("/")
        there = any(ROOT.glob(name)) or any(is_below(ROOT / folder, name) for folder in FOLDERS)
        if not there and not path.startswith(generated):
            yield path


def is_below(folder: Path, name: str) -> bool:
    """Return whether a file below a folder has a path that ends so; environments do not count."""
    return any(
        not any(part.startswith(".venv") for part in path.parts) for path in folder.rglob(name)
    )


@documents
def test_paths_and_links_in_documents_lead_somewhere(path: Path) -> None:
    """Code names files of this repository; links lead to files, and to headings in them."""
    assert list(missing_paths(code(path))) == []
    for link, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" not in link:
            page = path.parent / link if link else path
            assert page.exists(), link
            assert not anchor or anchor in set(anchors(page)), f"{link}#{anchor}"


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


@each(*SCRIPTS)
def test_scripts_call_what_is_there(path: Path) -> None:
    """The Makefile and the CI script call files, modules and targets that exist."""
    text = path.read_text(encoding="utf-8")
    assert list(missing_paths(text)) == []
    assert set(CALL.findall(text)) <= targets()
    for module in MODULE.findall(text):
        file = ROOT.joinpath(*module.split("."))
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module


@documents
def test_every_name_in_a_document_exists(path: Path) -> None:
    """Resources, outputs and targets, and the tests that prove a guarantee."""
    text = code(path)
    assert set(RESOURCE.findall(text)) <= set(TEMPLATE["Resources"])
    assert set(OUTPUT.findall(text)) <= set(TEMPLATE["Outputs"])
    assert set(MAKE.findall(text)) <= targets()
    for file, names in TEST.findall(path.read_text(encoding="utf-8")):
        for name in names.removeprefix("::").split("::"):
            room = LIBRARY if path.is_relative_to(LIBRARY) else ROOT
            assert re.search(rf"^ *(def|class) {name}\b", names_in(room, file), re.MULTILINE), (
                file + names
            )


@documents
def test_a_reader_can_copy_python_from_a_document_into_the_project(path: Path) -> None:
    """The linter accepts the length of each line."""
    longest: int = settings()["tool"]["ruff"]["line-length"]
    for block in PYTHON.findall(path.read_text(encoding="utf-8")):
        assert [line for line in block.splitlines() if len(line) > longest] == []


def settings() -> dict[str, Any]:
    """Return the settings of the project's tools."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def names_in(room: Path, file: str) -> str:
    """Return a test module's text, with that of the suites of its room that it imports."""
    text = (room / file).read_text(encoding="utf-8")
    files = [room.joinpath(*module.split(".")).with_suffix(".py") for module in SUITE.findall(text)]
    return "".join([text, *(file.read_text(encoding="utf-8") for file in files if file.exists())])


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────


def commands(text: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield service, operation and options of each AWS CLI command, also inside `$(…)`."""
    parts = [text.replace("\\\n", " ")]
    while inner := INNERMOST.search(parts[0]):
        parts.append(inner[1])
        parts[0] = parts[0].replace(inner[0], "…", 1)
    for service, operation, rest in (found for part in parts for found in AWS.findall(part)):
        yield service, operation, set(OPTION.findall(rest))


@cache
def options_of(service: str, operation: str) -> set[str]:
    """Return the options of an operation of a service, by the CLI's names."""
    model = botocore.session.get_session().get_service_model(
        CALLED_BY_THE_CLI.get(service, service)
    )
    (name,) = (name for name in model.operation_names if xform_name(name, "-") == operation)
    shape = model.operation_model(name).input_shape
    options = {xform_name(member, "-") for member in (shape.members if shape is not None else ())}
    return options | {f"no-{option}" for option in options} | OF_THE_CLI


@documents
def test_every_command_is_understood(path: Path) -> None:
    """The AWS CLI and `./carride` know each command and its options."""
    for service, operation, options in commands(code(path)):
        if (service, operation) not in MADE_BY_THE_CLI:
            assert options <= options_of(service, operation), f"{service} {operation}"
    for command in OPERATOR.findall(code(path)):
        parsed, _, _ = command_line().parse_args(
            shlex.split(command), exit_on_error=False, print_error=False
        )
        assert callable(parsed)


PARTS: Final = re.findall(
    r"^\| ([\w -]+) \| `(\w+)` \| `([^`]+)` \| `([\w./]+)` \|$",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""Each part of the application: its word, its resource, what to search for, and in which file."""
OF_THE_CARD: Final = {
    *("producer", "bus", "rule", "consumer", "idempotency call", "TTL table"),
    *("dead-letter queue", "global endpoint", "archive"),
}


def test_each_part_is_found_by_one_search() -> None:
    """The text is there; in the template, its first line leads to the resource that is meant.

    There, the part's own word is beside it, or in the title of its section.
    """
    assert {part for part, *_ in PARTS} == OF_THE_CARD
    for part, resource, searched, file in PARTS:
        before, hit, rest = (ROOT / file).read_text(encoding="utf-8").partition(searched)
        assert hit, part
        if file == "template.yaml":
            line = before.rpartition("\n")[2] + hit
            found = re.search(r"^  (\w+):", line + rest, re.MULTILINE)
            assert found is not None, part
            assert found[1] == resource, part
            title = before.rpartition("\n  # ── ")[2].partition("\n")[0]
            beside = line + rest.partition("\n")[0]
            assert part.lower() in f"{title} {beside}".lower(), part


BEGINNING: Final = (
    *("CarRideBus", "CarRideArchive", "CarRideLogRule"),
    *("IdempotencyLayer", "IdempotencyTable"),
)
"""What a reader of the template meets first."""


def test_the_template_begins_with_the_bus_and_what_makes_work_take_effect_once() -> None:
    """The first hundred lines of its resources have the bus, archive, log, layer and TTL table."""
    text = (ROOT / "template.yaml").read_text(encoding="utf-8")
    resources = text.partition("\nResources:\n")[2]
    first = "\n".join(resources.splitlines()[:100])
    found = [name for name in re.findall(r"^  (\w+):$", first, re.MULTILINE) if name in BEGINNING]
    assert found == list(BEGINNING)


# ── Runbooks and workflows ────────────────────────────────────────────────────────────────────────


def test_every_queue_and_every_alarm_has_a_runbook() -> None:
    """The index names a page for each queue; every page is an alarm's, or the index links it."""
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    of_queues = dict(re.findall(r"\[`(\w+)`\]\(([\w-]+\.md)\)", index))
    assert set(of_queues) >= {
        name for name, one in TEMPLATE["Resources"].items() if one["Type"] == "AWS::SQS::Queue"
    }
    of_alarms = re.findall(r"ops/docs/runbooks/([\w-]+\.md)", json.dumps(TEMPLATE["Resources"]))
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index)
    assert {path.name for path in RUNBOOKS.iterdir()} == {"README.md", *linked, *of_alarms}


@workflows
def test_workflows_are_pinned_and_narrow(path: Path) -> None:
    """Actions are commits; the token reads, except in the jobs that say otherwise.

    Scripts call what exists, without expressions.
    """
    text = path.read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.safe_load(text)
    used = re.findall(r"uses: (.+)$", text, re.MULTILINE)
    assert used
    own = [action for action in used if action.startswith("./")]
    assert [action for action in own if not (ROOT / action).exists()] == []
    assert [action for action in used if action not in own and not PINNED.fullmatch(action)] == []
    assert parsed["permissions"] == {"contents": "read"}
    jobs = [job for job in parsed["jobs"].values() if "uses" not in job]
    assert all(job["timeout-minutes"] for job in jobs)
    for script in (step["run"] for job in jobs for step in job["steps"] if "run" in step):
        assert "${{" not in script, (
            "an expression in a script runs code of whoever chose its value: pass a variable"
        )
        assert set(re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)) <= targets()
        assert all(
            (ROOT / file).exists()
            for file in re.findall(r"^(\.[a-z]+/[a-z]+)$", script, re.MULTILINE)
        )
