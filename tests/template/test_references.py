"""What the documents, the Makefile and the CI script name exists."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.template.stack import ROOT, source

DOCUMENTS: Final = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
SCRIPTS: Final = [ROOT / "Makefile", ROOT / ".ci" / "run"]

CODE: Final = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)#\s]+)")
FOLDERS: Final = ("docs", "events", "functions", "layers", "local", "ops", "tests")
PATH: Final = re.compile(
    r"(?<![\w./:@…$-])"  # not in a word, URL or placeholder, nor behind a variable
    r"(?!AWS/|CarRide/|application/)"  # no metric namespace, no media type
    r"\.?[A-Za-z_][\w.-]*(?:/[\w.*-]+)*"
    r"(?:\.(?:py|md|toml|yaml|yml|json|lock)\b|/)"
)
MAKE: Final = re.compile(r"\bmake ([a-z][a-z-]*)")
CALL: Final = re.compile(r"^\s*@?make ([a-z][a-z-]*)", re.MULTILINE)
MODULE: Final = re.compile(r"-m ((?:local|ops)[\w.]*)")
RESOURCE: Final = re.compile(
    r"\b(?<!::)(?!Invocations)[A-Z][A-Za-z]+(?:Function|Table|Bus|Archive|Dlq|Rule|(?<!Persistence)Layer)\b"
)
"""Logical ids, but for classes of Powertools' (…PersistenceLayer), metrics (Invocations…) and tests (::…)."""

MADE_BY_THE_READER: Final = re.compile(r"[\w./-]*(?:loyalty[_-]points|LoyaltyPoints|PointsTable)[\w./-]*")
"""Of docs/add-a-consumer.md, which test_new_consumer.py follows."""


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def generated() -> tuple[str, ...]:
    """Return the beginnings of paths that commands make and git ignores."""
    return tuple(line.removesuffix("*/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split())


def code(document: Path) -> str:
    """Return the code spans and blocks of a document, without what a walkthrough has its reader make."""
    text = "\n".join(CODE.findall(document.read_text(encoding="utf-8")))
    return MADE_BY_THE_READER.sub("…", text) if document.name == "add-a-consumer.md" else text


def missing_paths(text: str) -> Iterator[str]:
    """Yield each path that the text names and that is neither there nor made by a command."""
    for path in PATH.findall(text):
        if not path.startswith(generated()) and not exists(path):
            yield path


def exists(path: str) -> bool:
    """Whether a path leads somewhere, from the root or from inside a folder."""
    found = any(ROOT.glob(path.removesuffix("/")))
    return found or any(any((ROOT / folder).rglob(path.removesuffix("/"))) for folder in FOLDERS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_documents_exist(document: Path) -> None:
    """Code in a document names files of this repository, and links lead to them."""
    assert list(missing_paths(code(document))) == []
    links = [link for link in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_paths_in_scripts_exist(script: Path) -> None:
    """The Makefile and the CI script call files and modules that are there."""
    text = script.read_text(encoding="utf-8")
    assert list(missing_paths(text)) == []
    for module in MODULE.findall(text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("document", [*DOCUMENTS, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document: Path) -> None:
    """Whoever follows a document finds the target that it tells them to make."""
    called = CALL.findall(document.read_text(encoding="utf-8")) if document in SCRIPTS else MAKE.findall(code(document))
    assert set(called) <= targets()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_resources_in_documents_are_in_the_template(document: Path) -> None:
    """A logical id that a document names is one of the template's."""
    assert set(RESOURCE.findall(code(document))) <= set(source()["Resources"])


@pytest.mark.parametrize("environment", ["default", "primary", "secondary", "local"])
def test_sam_expands_the_loops(environment: str) -> None:
    """Without this setting `sam build` fails at the first loop of the template."""
    config = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))[environment]
    assert config["global"]["parameters"]["language_extensions"] is True
    assert "CAPABILITY_AUTO_EXPAND" in config["deploy"]["parameters"]["capabilities"]


def test_every_target_is_explained() -> None:
    """`make help` lists every target that is meant to be called."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## \S", text, re.MULTILINE))
    assert explained == targets()


def test_a_missing_path_is_noticed() -> None:
    """The search itself works: it finds what is not there, and only that."""
    text = "`functions/nowhere/handler.py` `template.yaml` `.demo/ledger.json` `layers/` `https://example.com/a.md`"
    assert list(missing_paths(text)) == ["functions/nowhere/handler.py"]
