"""Which modules of the layer are public.

The guide's table says it, and the application keeps to it.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAliasType

import pytest

import carride_idempotency
from carride_idempotency import Consumer, testing

ROOM: Final = Path(__file__).parents[1]
PACKAGE: Final = Path(carride_idempotency.__file__).parent
PAGES: Final = ROOM / "docs"
MADE_BY_THE_LAYER: Final = frozenset({"AsyncOperation", "Operation"})
"""Classes whose objects only the layer makes, so that their constructors are private."""


MOST_FURTHER_MODULES: Final = 8
MOST_NAMES: Final = 72
READ_ONLY: Final = frozenset(
    {
        "AnyCaller",
        "AnyOperation",
        "BatchResponse",
        "BlockContext",
        "Clock",
        "Concurrency",
        "EventResponse",
        "HttpWork",
        "MessageWork",
        "Observers",
        "OutcomeLog",
        "Probe",
        "Raw",
        "TransportId",
    }
)
"""Types that a signature has and nobody writes: a callable, a number or a result is passed there. A
type checker knows them without an import."""


def public_modules() -> dict[str, str]:
    """Return the modules of the table in the layer's guide, each with its reason."""
    guide = (ROOM / "README.md").read_text(encoding="utf-8")
    table = guide.partition("## Public modules\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([a-z._]+)` \| (.+) \|$", table, re.MULTILINE))


def test_few_modules_are_public_and_each_has_its_reason() -> None:
    """What is promised is small: a module that nobody outside needs can change."""
    modules = public_modules()
    assert 0 < len(modules) <= MOST_FURTHER_MODULES
    assert len(carride_idempotency.__all__) <= MOST_NAMES
    assert len({*modules.values()}) == len(modules)
    for name in modules:
        import_module(f"carride_idempotency.{name}")


def is_public(module: str, name: str) -> bool:
    """Return whether a name may be imported from a module."""
    if module == "carride_idempotency":
        return name in {*carride_idempotency.__all__, *public_modules()}
    inner = module.removeprefix("carride_idempotency.")
    if f"{inner}.{name}" in public_modules():
        return True
    if inner not in public_modules() or name.startswith("_"):
        return False
    loaded = import_module(module)
    return name in getattr(loaded, "__all__", dir(loaded))


def imports_in(code: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import of the package in a piece of a page."""
    with suppress(SyntaxError):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.module, each.name) for each in node.names)


@pytest.mark.parametrize(
    "page", [ROOM / "README.md", *PAGES.glob("*.md")], ids=lambda path: path.name
)
def test_a_name_is_importable_from_where_a_page_says(page: Path) -> None:
    """Imports in blocks of code, and names with their module in the text, are public."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    named = {each for block in blocks for each in imports_in(block)}
    for dotted in re.findall(r"\b(carride_idempotency\.[\w.]*\w)\b(?!/)", text):
        module, _, name = dotted.rpartition(".")
        named.add((module, name))
    ours = {each for each in named if each[0].startswith("carride_idempotency")}
    assert [each for each in sorted(ours) if not is_public(*each)] == []


def test_a_consumers_settings_are_about_its_operations() -> None:
    """How time passes and pauses differ is no setting: the library's tests replace it."""
    assert not {"clock", "sleep", "jitter"} & {*inspect.signature(Consumer).parameters}


def annotations_of(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the annotations of what is public in a class, a function or an alias."""
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        for member in node.body:
            is_constructor = isinstance(member, ast.FunctionDef) and member.name == "__init__"
            if not (is_constructor and node.name in MADE_BY_THE_LAYER):
                yield from annotations_of(member)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if not node.name.startswith("_") or node.name == "__init__":
            yield from annotations_in(node)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        if not node.target.id.startswith("_"):
            yield node.annotation
    elif isinstance(node, ast.TypeAlias):
        yield node.value


def annotations_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield the annotations of a function's arguments and result."""
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for annotation in (*[each.annotation for each in named], function.returns):
        if annotation is not None:
            yield annotation


def names_in(annotation: ast.AST) -> Iterator[str]:
    """Yield the names in an annotation, also in its strings."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            with suppress(SyntaxError):
                yield from names_in(ast.parse(node.value, mode="eval").body)


def types_in_signatures() -> Iterator[tuple[str, str]]:
    """Yield each public name with each of the layer's names that its signatures have."""
    for module, names in public_definitions().items():
        tree = ast.parse(source_of(module))
        own = names_of_the_layer(tree)
        for node in tree.body:
            name = defined_by(node)
            if name not in names:
                continue
            for annotation in annotations_of(node):
                for used in own.intersection(names_in(annotation)):
                    yield name, used


def source_of(module: str) -> str:
    """Return the text of a module of the layer."""
    path = PACKAGE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


def defined_by(node: ast.AST) -> str:
    """Return the name of a class, a function or an alias; "" for other statements."""
    if isinstance(node, ast.TypeAlias):
        return node.name.id
    return str(getattr(node, "name", ""))


def names_of_the_layer(tree: ast.Module) -> set[str]:
    """Return the types that a module of the layer defines, or imports from another one."""
    types = (ast.ClassDef, ast.TypeAlias)
    own = {defined_by(node) for node in tree.body if isinstance(node, types)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "carride_idempotency"
        ):
            own |= {each.name for each in node.names}
    return own


def public_definitions() -> dict[str, set[str]]:
    """Return the public names of each module that defines one."""
    found: dict[str, set[str]] = {}
    for name in carride_idempotency.__all__:
        value = getattr(carride_idempotency, name)
        module = getattr(value, "__module__", None) or type(value).__module__
        found.setdefault(module.removeprefix("carride_idempotency."), set()).add(name)
    return found


def test_every_type_in_a_public_signature_is_public() -> None:
    """Whoever annotates a variable with such a type imports it from the package itself.

    Those that nobody writes are left out.
    """
    private = {
        used: name
        for name, used in types_in_signatures()
        if used not in carride_idempotency.__all__
    }
    assert private.keys() == READ_ONLY, private


ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def test_help_shows_the_types_of_what_is_passed() -> None:
    """Whoever asks for help on a class or a function sees what each argument takes."""
    untyped = [
        f"{argument} of {name}"
        for name in carride_idempotency.__all__
        if callable(value := getattr(carride_idempotency, name)) and not is_made_by_others(value)
        for argument in inspect.signature(value).parameters.values()
        if argument.annotation is inspect.Parameter.empty or argument.kind in ANY_NUMBER
    ]
    assert untyped == []


def is_made_by_others(value: object) -> bool:
    """Return whether nobody passes arguments to it: an error, a protocol, an alias of a type."""
    if isinstance(value, type):
        is_protocol = getattr(value, "_is_protocol", False)
        is_made_elsewhere = is_protocol or issubclass(value, Exception | dict | Enum)
        return is_made_elsewhere or value.__name__ in MADE_BY_THE_LAYER
    return isinstance(value, TypeAliasType)


def test_dir_has_every_public_name() -> None:
    """An interactive session completes names that no code has imported yet."""
    assert set(carride_idempotency.__all__) <= set(dir(carride_idempotency))
    assert "import_module" not in dir(carride_idempotency)


def test_the_version_is_that_of_the_distribution() -> None:
    """Both are written down, since a copy in a function's package has no metadata."""
    project = tomllib.loads((ROOM / "pyproject.toml").read_text(encoding="utf-8"))
    assert carride_idempotency.__version__ == project["project"]["version"]


def test_the_tutorial_needs_the_package_and_its_testing_helpers_only() -> None:
    """A newcomer imports each name from where it is exported."""
    page = (PAGES / "tutorial.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python.*?\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    exported = {
        "carride_idempotency": carride_idempotency.__all__,
        "carride_idempotency.testing": testing.__all__,
    }
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    found = [node for node in imports if (node.module or "").startswith("carride_idempotency")]
    assert found
    for node in found:
        names = {each.name for each in node.names}
        assert names <= set(exported.get(str(node.module), ())), node.module
