"""The rooms of the repository: what each may import, and what the library pins."""

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

import carride_idempotency
from tools.transformed import ROOT

LIBRARY: Final = "layers/idempotency"
FUNCTIONS: Final = frozenset(
    path.stem for path in (ROOT / "functions").glob("*/*") if path.stem != "__pycache__"
)
"""The modules of the functions' folders, by which they import each other."""
LAYERS: Final = frozenset({"carride_idempotency", "carride"})
DOMAIN: Final = frozenset(
    {"assignment_table", "assignments", "payments", "settlement", "simulated_rides", "api"}
)
"""Modules of functions that hold rules of the domain, which operators judge by as well."""

MAY_IMPORT: Final = {
    f"{LIBRARY}/src": frozenset({"carride_idempotency"}),
    f"{LIBRARY}/simulation": frozenset({"carride_idempotency", "mutants", "shop", "virtual_time"}),
    f"{LIBRARY}/tests": frozenset(
        {
            "carride_idempotency",
            "mutants",
            "shop",
            "virtual_time",
            f"{LIBRARY}/tests",
            f"{LIBRARY}/tools",
        }
    ),
    f"{LIBRARY}/tools": frozenset[str](),
    "layers/carride": LAYERS,
    "functions": LAYERS | FUNCTIONS,
    "engine/tests": frozenset({"engine", "engine/tests"}),
    "engine": frozenset({"engine"}),
    "ops/tests": LAYERS | DOMAIN | {"ops", "ops/tests", "tests/kit"},
    "ops": LAYERS | DOMAIN | {"ops"},
    "examples": frozenset({"carride_idempotency"}),
    "tools": LAYERS | DOMAIN | {"tools"},
    "tests/kit": LAYERS | {"tests/kit", "tools"},
    "local": LAYERS | FUNCTIONS | {"engine", "local", "ops"},
    "infrastructure": frozenset[str](),
}
"""What the files of a room may import of this repository. The application's tests stand above all
rooms. They cannot import the library's tests, which have their names."""
NAMED: Final = frozenset(
    {"conftest", "engine", "examples", "local", "mutants", "ops", "shop", "tools", "virtual_time"}
)
"""Packages and modules at the top of a room."""
USERS: Final = ("functions", "layers/carride", "local", "ops", "tools")
PATCHES: Final = "local/faults.py"
"""Injects faults into a running function by replacing what is private."""


@cache
def files() -> tuple[str, ...]:
    """Return the Python files that git tracks."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(name for name in listed.splitlines() if (ROOT / name).is_file())


def room_of(file: str) -> str:
    """Return the room of a file: the longest folder of the table that holds it."""
    rooms = [room for room in MAY_IMPORT if file.startswith(f"{room}/")]
    return max(rooms, key=len, default="tests")


def imports_of(file: str) -> Iterator[str]:
    """Yield what a file imports of this repository: a package, or for tests their room."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ours(file, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ours(file, node.module)


def ours(file: str, module: str) -> Iterator[str]:
    """Yield the room's name of a module of this repository; nothing for others."""
    top, _, rest = module.partition(".")
    inside_library = file.startswith(f"{LIBRARY}/")
    if top == "tools" and inside_library:
        yield f"{LIBRARY}/tools"
    elif top == "tests":
        second = rest.partition(".")[0]
        yield f"{LIBRARY}/tests" if inside_library else f"tests/{second}"
    elif top in {"engine", "ops"} and rest.startswith("tests"):
        yield f"{top}/tests"
    elif top in {
        "engine",
        "ops",
        "local",
        "tools",
        "conftest",
        "examples",
        "mutants",
        "shop",
    } or top in {"virtual_time", *LAYERS, *FUNCTIONS}:
        yield top


def is_allowed(room: str, imported: str) -> bool:
    """Return whether a file of a room may import this."""
    return room == "tests" or imported in MAY_IMPORT[room]


def test_imports_point_down() -> None:
    """A room imports only what lies below it, in its tests as well."""
    up = [
        f"{file} imports {imported}"
        for file in files()
        for imported in imports_of(file)
        if not is_allowed(room_of(file), imported)
    ]
    assert up == []


# ── The library ───────────────────────────────────────────────────────────────────────────────────


RELEASED_TOGETHER: Final = {
    "functions": frozenset(
        {
            "clock",
            "http",  # the API's document says what the handler of requests does
        }
    ),
    "layers/carride": frozenset[str](),
    "local": frozenset({"clock"}),
    "ops": frozenset(
        {
            "clock",
            "dead_letters",
            "fingerprint",
            "keys",
            "observation",
            "operators.changing",  # the parts of the library's own command
            "operators.choosing",
            "operators.explaining",
            "operators.forms",
            "operators.plans",
            "operators.queues",
            "operators.reading",
            "operators.records",
            "operators.redriving",
            "operators.site",
            "policy",
            "record_items",
            "recovery",
            "stores.dynamodb",
            "stores.memory",
            "stores.retries",
        }
    ),
    "tools": frozenset[str](),
}
"""What rooms use of the library that is not promised to anybody: both are released from one commit,
and this repository's tests hold them together. A stranger's application needs none of it."""


def public_modules() -> set[str]:
    """Return the modules of the table in the library's README."""
    guide = (ROOT / LIBRARY / "README.md").read_text(encoding="utf-8")
    table = guide.partition("## Public modules\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([a-z._]+)` \|", table, re.MULTILINE))


def modules_imported_by(file: str) -> Iterator[str]:
    """Yield the library's modules that a file imports, without the package's name."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        package, _, module = node.module.partition(".")
        if package != "carride_idempotency":
            continue
        for name in node.names:
            if module:
                yield module_of(module, name.name)
            elif name.name not in {*carride_idempotency.__all__, "__version__"}:
                yield name.name


def module_of(module: str, name: str) -> str:
    """Return what `from module import name` imports: a module of a package, or from the module."""
    package = ROOT / LIBRARY / "src" / "carride_idempotency" / module.replace(".", "/")
    return f"{module}.{name}" if (package / f"{name}.py").is_file() else module


@pytest.mark.parametrize("room", USERS)
def test_a_room_imports_what_is_promised_or_named_here(room: str) -> None:
    """A module that is not in the table of the library's README can change without notice."""
    private = {
        module
        for file in files()
        if file.startswith(f"{room}/") and "/tests/" not in file and file != PATCHES
        for module in modules_imported_by(file)
        if module not in public_modules()
    }
    assert private == RELEASED_TOGETHER[room]


def test_both_locks_pin_the_same_versions() -> None:
    """The library's own environment has what it is tested with beside the application."""
    project = tomllib.loads((ROOT / LIBRARY / "pyproject.toml").read_text(encoding="utf-8"))
    tools = {re.split(r"[^\w-]", need)[0] for need in project["dependency-groups"]["dev"]}
    here = locked("")
    there = locked(LIBRARY)
    shared = tools & here.keys()
    assert [name for name in shared if not there[name] <= here[name]] == []


def locked(folder: str) -> dict[str, set[str]]:
    """Return the versions of each package in a lock file."""
    packages = tomllib.loads((ROOT / folder / "uv.lock").read_text(encoding="utf-8"))["package"]
    found = defaultdict[str, set[str]](set)
    for package in packages:
        found[package["name"]].add(package.get("version", ""))
    return dict(found)
