import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
LAYERS: Final = ROOT / "layers"
LIBRARY: Final = LAYERS / "idempotency" / "src"
SIMULATOR: Final = ROOT / "functions" / "carride_simulator"
AWS: Final = {"boto3", "botocore", "s3transfer", "aws_lambda_powertools", "urllib3"}
PURE: Final = (
    "carride.ride, carride.facts, carride.events, carride.bus_entry, carride.overdue, "
    "simulated_rides"
)


def imported_by(modules: str) -> set[str]:
    """Return the top-level packages that a fresh process has loaded after these imports."""
    code = f"import sys, {modules}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    folders = (LAYERS / "carride", LIBRARY, SIMULATOR)
    path = ":".join(map(str, folders))
    process = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path},
    )
    return set(process.stdout.split())


def imports_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield every top-level package that the code of a folder imports, anywhere."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield path, (node.module or "").partition(".")[0]


def test_the_domain_knows_no_aws() -> None:
    """Rides, events and their simulation load no AWS library."""
    assert imported_by(PURE).isdisjoint(AWS)


def test_what_is_deployed_uses_no_test_helpers() -> None:
    """Functions and layers import nothing of `carride_idempotency.testing`."""
    folders = (LIBRARY, LAYERS / "carride", ROOT / "functions")
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    helped = [
        path
        for path in sources
        if re.search(r"(from|import) carride_idempotency\.testing", path.read_text())
    ]
    assert {path.parent.name for path in helped} == {"testing"}


def test_a_producer_loads_no_idempotency() -> None:
    """The simulator has only the ride's layer."""
    assert "carride_idempotency" not in imported_by("carride.publisher")


@pytest.mark.parametrize("layer", ["carride", "sigv4a"])
def test_a_layer_ships_what_is_locked(layer: str) -> None:
    """A layer's requirements, and theirs, are pinned to the versions that the tests run with."""
    locked = {
        package["name"]: package
        for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    pins = dict(
        line.split("==") for line in (LAYERS / layer / "requirements.txt").read_text().split()
    )
    assert pins == {name: locked[name]["version"] for name in pins} != {}
    assert {
        needs["name"] for name in pins for needs in locked[name].get("dependencies", ())
    } <= pins.keys()


def test_the_layer_ships_what_it_imports() -> None:
    """Each package that the layer imports is its own, Python's, pinned, or Lambda's."""
    pins = {
        line.split("==")[0]
        for line in (LAYERS / "carride" / "requirements.txt").read_text().splitlines()
    }
    shipped = (
        {name.replace("-", "_") for name in pins}
        | {"boto3", "botocore", "carride", "carride_idempotency"}
        | sys.stdlib_module_names
    )
    types_only = {"mypy_boto3_dynamodb", "mypy_boto3_events", "mypy_boto3_lambda", "mypy_boto3_sqs"}
    assert [
        found for found in imports_in(LAYERS / "carride") if found[1] not in shipped | types_only
    ] == []
