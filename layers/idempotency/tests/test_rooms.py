"""The rooms of the package: what each imports, and how large it is."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import carride_idempotency

PACKAGE: Final = Path(carride_idempotency.__file__).parent
ENTRIES: Final = frozenset({"__init__", "__main__"})
"""Modules that stand above all rooms: they import names of any, when those are used."""
MOST_MODULES: Final = 17

BASICS: Final = "basics"
UPWARDS: Final = (
    (BASICS,),
    ("stores",),
    ("dead_letters",),
    ("protocol",),
    ("aio",),
    ("entry",),
    ("http", "recovery"),
    ("consumer",),
    ("operators", "testing"),
)
"""The rooms, and the modules that are one, from the lowest level to the highest. All others are
basics."""
LEVELS: Final = {room: level for level, rooms in enumerate(UPWARDS) for room in rooms}


def modules() -> dict[str, Path]:
    """Return the files of the package's modules, by their names in it."""
    found: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_room = len(parts) > 1 and parts[-1] in ENTRIES
        found[".".join(parts[:-1] if is_room else parts)] = path
    return found


MODULES: Final = modules()


def room_of(module: str) -> str:
    """Return the room that a module stands in."""
    first = module.partition(".")[0]
    return first if first in LEVELS else BASICS


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports: at its top, where they are used, or for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        package, _, module = node.module.partition(".")
        if package == "carride_idempotency":
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix(".")
                yield inner if inner in MODULES else module or "__init__"


def is_below(imported: str, module: str) -> bool:
    """Return whether a module may import another one."""
    if imported in ENTRIES:
        return False
    room = room_of(imported)
    return room == room_of(module) or LEVELS[room] < LEVELS[room_of(module)]


def test_rooms_import_downwards() -> None:
    """A room imports itself and the rooms below it."""
    up = [
        f"{module} imports {imported}"
        for module, path in MODULES.items()
        if module not in ENTRIES
        for imported in imports_of(path)
        if not is_below(imported, module)
    ]
    assert up == []


def test_a_folder_can_be_overlooked() -> None:
    """A folder has few modules."""
    sizes = Counter(path.parent for path in MODULES.values() if path.stem not in ENTRIES)
    assert {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES} == {}


@pytest.mark.parametrize("room", ["aio", "entry", "operators", "protocol"])
def test_a_room_itself_imports_nothing(room: str) -> None:
    """A cold start loads the modules that it uses, and no others of their room."""
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    (docstring,) = tree.body
    assert isinstance(docstring, ast.Expr)
