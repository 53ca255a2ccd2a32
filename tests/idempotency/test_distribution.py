"""The distribution: its build is reproducible, and the documentation's files run with it on each supported Python."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

import idempotency

ROOT: Final = Path(__file__).resolve().parents[2]
SITE: Final = Path(idempotency.__file__).parents[1]
MYPY_CACHE: Final = ROOT / ".mypy_cache" / "library"
PAGES: Final = sorted((ROOT / "docs" / "library").glob("*.md"))
FILE: Final = re.compile(r'^```python title="(\w+\.py)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
USE_ALL: Final = """
import sys
import billing, idempotency, idempotency.telemetry
from idempotency.stores.transport import botocore_transport
from idempotency.testing import Invocation
for name in idempotency.__all__:
    getattr(idempotency, name)
handler = billing.billing(idempotency.MemoryStore(apply=[].extend))
for _ in range(2):
    handler({"id": "e1", "detail": {"orderID": "order-1", "total": 20}}, Invocation(lambda: 0))
idempotency.open_store("dynamodb:Table"), botocore_transport()
print(*{name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__", "billing"})
"""
"""Uses every public name, the tutorial's handler and both transports; prints the packages that were imported."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel, sdist and layer."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, ROOT / "scripts" / "dist", folder)
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all pages, under the names that the pages give them."""
    folder = tmp_path_factory.mktemp("pages")
    files = [file for page in PAGES for file in FILE.findall(page.read_text(encoding="utf-8"))]
    assert len(dict(files)) == len(files), "two files have one name"
    for name, content in files:
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpreter(uv: str, version: str) -> str:
    """Return a Python of this version that uv or the machine has; skip the test without one."""
    command = [uv, "python", "find", "--offline", "--no-project", version]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    path = found or next(map(str, pyenv.glob(f"versions/{version}.*/bin/python")), None)
    if path is None:
        pytest.skip(f"this machine has no Python {version}")
    return path


def link(folder: Path, *names: str) -> None:
    """Link distributions, and what they need, from the environment of the tests."""
    for found in map(distribution, names):
        for name in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(found.locate_file(name))))
        link(folder, *(re.split(r"[^\w.-]", need)[0] for need in found.requires or () if ";" not in need))


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_files_of_the_documentation_run_with_the_wheel_and_botocore(
    version: str, built: Path, pages: Path, tmp_path: Path
) -> None:
    """Their tests pass, their types are strict, and the library imports only the standard library and botocore."""
    uv = shutil.which("uv") or str(ROOT / ".venv-uv" / "bin" / "uv")
    run(interpreter(uv, version), "-m", "venv", "--without-pip", tmp_path)
    python, site, tools = tmp_path / "bin" / "python", *tmp_path.glob("lib/*/site-packages"), tmp_path / "tools"
    run(uv, "pip", "install", "--offline", "--no-deps", "--python", python, *built.glob("*.whl"))
    run(python, "-m", "compileall", "-q", site)
    link(site, "botocore")
    path = f"{site}{os.pathsep}{pages}"
    packages = set(run(python, "-S", "-c", USE_ALL, PYTHONPATH=path, IDEMPOTENCY_TRANSPORT="auto").split())
    assert packages == {"idempotency", "botocore", "jmespath", "dateutil", "six", "urllib3"}

    tools.mkdir()
    link(tools, "pytest", "opentelemetry-api")
    (site / "tools.pth").write_text(str(tools), encoding="utf-8")
    printed = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=pages, IDEMPOTENCY_STORE="dynamodb:Table")
    tests = sum(file.read_text(encoding="utf-8").count("def test_") for file in pages.glob("test_*.py"))
    assert f"{tests} passed" in printed
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", MYPY_CACHE)
    run(*mypy, *pages.glob("*.py"), cwd=pages)


def test_build_is_reproducible_and_complete(built: Path, tmp_path: Path) -> None:
    """The same source gives the same bytes; each of the three has the package, and the page leads nowhere else."""
    run(sys.executable, ROOT / "scripts" / "dist", tmp_path)
    files = sorted(file.name for file in built.iterdir())
    assert len(files) == 3
    assert [(tmp_path / name).read_bytes() == (built / name).read_bytes() for name in files] == [True] * 3
    (wheel,), (layer,) = built.glob("*.whl"), built.glob("*.zip")
    names = ZipFile(wheel).namelist()
    assert ZipFile(layer).namelist() == [f"python/{name}" for name in names]
    source = {str(path.relative_to(SITE)) for path in (SITE / "idempotency").rglob("*.py")}
    assert source | {"idempotency/py.typed"} <= set(names)
    (metadata,) = (ZipFile(wheel).read(name).decode() for name in names if name.endswith("METADATA"))
    assert "](.." not in metadata


@pytest.mark.parametrize("fence", ["hcl", "ts"])
def test_recipes_name_what_the_store_needs(fence: str) -> None:
    """Each recipe makes the key, the TTL attribute and the permissions that the store uses."""
    text = (ROOT / "docs" / "library" / "recipes.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(rf"```{fence}\n(.*?)```", text, re.DOTALL)
    needed = {'"idempotencyKey"', '"expiryTimestamp"', '"dynamodb:GetItem", "dynamodb:PutItem"'}
    assert {name for name in needed if name not in recipe} == set()
