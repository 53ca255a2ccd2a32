"""Which modules of the layer are public.

The guide's table says it, and the application keeps to it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import carride_idempotency

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(carride_idempotency.__file__).parent
USERS: Final = ("engine", "examples", "functions", "layers/carride", "local", "ops", "tools")
PATCHES: Final = "local/faults.py"
"""Injects faults into a running function by replacing what is private."""


def public_modules() -> set[str]:
    """Return the modules of the table in the layer's guide."""
    guide = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"## Public modules\n(.*?)(?:\n## |\Z)", guide, re.DOTALL)
    names = set()
    for first_cell in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE):
        names.update(re.findall("`([a-z._]+)`", first_cell))
    return names


def imported(file: Path) -> Iterator[str]:
    """Yield the modules of the layer that a file imports, without the package's name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        package, _, module = node.module.partition(".")
        if package != "carride_idempotency":
            continue
        if module:
            yield module
            continue
        for name in node.names:
            if name.name not in carride_idempotency.__all__:
                yield name.name


@pytest.mark.parametrize("room", USERS)
def test_the_application_imports_public_modules_only(room: str) -> None:
    """A module that is not in the guide's table can change without notice."""
    public = public_modules()
    for file in (ROOT / room).rglob("*.py"):
        if file == ROOT / PATCHES or ".venv" in str(file):
            continue
        private = set(imported(file)) - public
        assert not private, f"{file.relative_to(ROOT)} imports what is private"


def test_every_public_module_exists() -> None:
    """The guide's table names no module that is gone."""
    for name in public_modules() - {"carride_idempotency"}:
        path = PACKAGE / name.replace(".", "/")
        assert path.with_suffix(".py").is_file() or path.is_dir(), name
