"""Symbols that documents name exist: `Class.member`, `package.module`, "`X` in `file`"."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("engine", "functions", "layers", "local", "ops", "tests", "tools")
PACKAGES: Final = {
    "carride": ROOT / "layers" / "carride",
    "carride_idempotency": ROOT / "layers" / "idempotency" / "src",
    **dict.fromkeys(("engine", "local", "ops", "tools"), ROOT),
}


def files_in(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder whose path ends so, without those of environments."""
    for path in folder.rglob(pattern):
        if not any(part.startswith(".venv") for part in path.parts):
            yield path


DOCUMENTS: Final = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(
            path
            for room in (*ROOMS, "events", "examples")
            for path in files_in(ROOT / room, "*.md")
        ),
    ]
)
DOTTED: Final = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`")
CLASS: Final = re.compile(r"^ *class (\w+)", re.MULTILINE)
FILE: Final = r"`([\w./-]+\.(?:py|yaml))`"
SYMBOL: Final = r"`([A-Za-z_][\w.]*)`"
LISTED_BEFORE_THEIR_FILE: Final = re.compile(
    rf"((?:{SYMBOL}(?: \([^()]*\))?(?:,| and) )*{SYMBOL}(?: \([^()]*\))?) in {FILE}"
)
BEHIND_ITS_FILE: Final = re.compile(rf"{FILE}, {SYMBOL}(?!,? in `)")
FILE_NAME: Final = re.compile(r"\.(?:py|md|json|jsonl|yaml|yml|toml|txt|lock)$")


def class_of(name: str) -> str:
    """Return the class that a document means: an `operation` is an `Operation`."""
    return name if name[0].isupper() else name.capitalize()


@cache
def files_of_classes() -> dict[str, list[Path]]:
    """Return the files of all rooms that define a class, by the class's name."""
    found = defaultdict[str, list[Path]](list)
    for room in ROOMS:
        for path in files_in(ROOT / room, "*.py"):
            for name in CLASS.findall(path.read_text(encoding="utf-8")):
                found[name].append(path)
    return dict(found)


@cache
def classes_in(path: Path) -> list[ast.ClassDef]:
    """Return the classes that a file defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


@cache
def members_of(name: str) -> frozenset[str]:
    """Return the members of the classes with a name, and those of their bases."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        for path in files_of_classes().get(each, []):
            for node in classes_in(path):
                if node.name == each:
                    found |= set(names_bound_in(node.body))
                    waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return frozenset(found)


def names_bound_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the functions, classes and variables that a class or a module defines."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield from assigned_to_self(node)
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.TypeAlias):
            yield node.name.id


def assigned_to_self(node: ast.AST) -> Iterator[str]:
    """Yield the attributes that a method gives to its instance."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each.attr


def is_defined(symbol: str, path: Path) -> bool:
    """Return whether a file defines a symbol: Python's last name, or a template's key."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return re.search(rf"^ *{symbol}:", text, re.MULTILINE) is not None
    last = symbol.rpartition(".")[2]
    bound = set(names_bound_in(ast.parse(text).body))
    inside = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            inside.update(names_bound_in(node.body))
    return last in bound | inside


def files_called(name: str) -> list[Path]:
    """Return the files that a document's path means: from the root, or by their last parts."""
    if (ROOT / name).exists():
        return [ROOT / name]
    return [path for room in (*ROOMS, "infrastructure") for path in files_in(ROOT / room, name)]


def is_module(dotted: str) -> bool:
    """Return whether a dotted name is one of our modules, or a name that one of them defines."""
    package, *parts = dotted.split(".")
    path = PACKAGES[package].joinpath(package, *parts)
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    module = module if module.exists() else path.parent / "__init__.py"
    return module.exists() and is_defined(parts[-1], module)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_symbols_in_a_document_exist(path: Path) -> None:
    """A dotted name is a member of its class, or a module.

    A symbol is in the file that is said to hold it.
    """
    text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    for dotted in DOTTED.findall(text):
        owner, _, member = dotted.partition(".")
        if FILE_NAME.search(dotted):
            continue
        if owner in sys.stdlib_module_names:
            continue
        if owner in PACKAGES:
            assert is_module(dotted), dotted
        elif class_of(owner) in files_of_classes():
            assert member.partition(".")[0] in members_of(class_of(owner)), dotted
    for symbol, file in symbols_with_files(text):
        assert any(is_defined(symbol, found) for found in files_called(file)), f"{symbol} in {file}"


def symbols_with_files(text: str) -> Iterator[tuple[str, str]]:
    """Yield each symbol for which a text names the file that holds it."""
    for found in LISTED_BEFORE_THEIR_FILE.finditer(text):
        file = found[LISTED_BEFORE_THEIR_FILE.groups]
        for symbol in re.findall(SYMBOL, found[1]):
            if not FILE_NAME.search(symbol):
                yield symbol, file
    for file, symbol in BEHIND_ITS_FILE.findall(text):
        if not FILE_NAME.search(symbol):
            yield symbol, file
