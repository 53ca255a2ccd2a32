"""The distribution: its build is reproducible, and the documentation's files run with it."""

import os
import re
import subprocess
import sys
import tarfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest
from readme_renderer import markdown

from tests.wheels import CLIENT, ROOM, UV, build, install, link, run, write_files

pytestmark = pytest.mark.proof

PAGES: Final = ROOM / "docs"
FASTAPI_PAGE: Final = "webhooks.md"
"""Its packages are compiled, so that its files run with this Python alone."""
USE: Final = """
import sys
import billing, carride_idempotency, carride_idempotency.telemetry
from carride_idempotency.stores.transport import botocore_transport
from carride_idempotency.testing import DeadLetterBox, Invocation
for name in carride_idempotency.__all__:
    getattr(carride_idempotency, name)
handler = billing.billing(carride_idempotency.MemoryStore(apply=[].extend), DeadLetterBox())
for _ in range(2):
    handler({"id": "e1", "detail": {"orderID": "order-1", "total": 20}}, Invocation(lambda: 0))
carride_idempotency.open_store("dynamodb:Table"), botocore_transport()
loaded = {name.partition(".")[0] for name in sys.modules}
print(*loaded - sys.stdlib_module_names - {"__main__", "billing"})
"""
"""Uses every public name, the tutorial's handler and both transports; prints the packages that were
imported."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel, sdist and layer."""
    return build(tmp_path_factory.mktemp("dist"))


def interpreter(version: str) -> str:
    """Return a Python of this version that uv or pyenv has; skip the test without one."""
    command = [UV, "python", "find", "--offline", "--no-project", version]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    path = found or next(map(str, pyenv.glob(f"versions/{version}.*/bin/python")), None)
    assert path or version != os.environ.get("REQUIRED_PYTHON"), "it must be there in this run"
    return path or pytest.skip(f"this machine has no Python {version}")


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("3.12", marks=pytest.mark.thorough),
        "3.13",
        pytest.param("3.14", marks=pytest.mark.thorough),
    ],
)
def test_files_of_the_documentation_run_with_the_wheel_alone(
    version: str, built: Path, tmp_path: Path
) -> None:
    """Their tests pass, their types are strict, and the library needs only botocore."""
    python, site = install(built, tmp_path, interpreter(version))
    pages = tmp_path / "pages"
    tools = tmp_path / "tools"
    run(python, "-m", "compileall", "-q", site)
    pages.mkdir()
    is_this_python = version == f"{sys.version_info.major}.{sys.version_info.minor}"
    for page in PAGES.glob("*.md"):
        if page.name != FASTAPI_PAGE or is_this_python:
            write_files(page.name, pages)

    link(site, "botocore")
    path = f"{site}{os.pathsep}{pages}"
    packages = set(
        run(python, "-S", "-c", USE, PYTHONPATH=path, IDEMPOTENCY_TRANSPORT="auto").split()
    )
    assert packages == {"carride_idempotency", "botocore", "jmespath", "dateutil", "six", "urllib3"}

    tools.mkdir()
    link(tools, "pytest", "opentelemetry-api", "aws-lambda-powertools", "starlette", *CLIENT)
    if is_this_python:
        link(tools, "fastapi")
    (site / "tools.pth").write_text(str(tools), encoding="utf-8")
    run(python, "-c", "import app", cwd=pages, IDEMPOTENCY_STORE="dynamodb:Table")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=pages)
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        ROOM / ".mypy_cache" / "pages",
    )
    run(*mypy, "--python-executable", python, *pages.glob("*.py"), cwd=pages)


def test_build_is_reproducible_and_complete(built: Path, tmp_path: Path) -> None:
    """The same source gives the same bytes; wheel and layer have the package."""
    build(tmp_path)
    layer, wheel, sdist = sorted(built.iterdir())
    assert [
        (tmp_path / file.name).read_bytes() == file.read_bytes() for file in (layer, wheel, sdist)
    ] == [True] * 3
    names = ZipFile(wheel).namelist()
    assert ZipFile(layer).namelist() == [f"python/{name}" for name in names]
    source = {str(path.relative_to(ROOM / "src")) for path in (ROOM / "src").rglob("*.py")}
    assert source | {"carride_idempotency/py.typed"} <= set(names)


def test_the_source_distribution_is_the_whole_room(built: Path, tmp_path: Path) -> None:
    """It has every file that git tracks here, pages and tests too, and builds the same wheel."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    tracked = set(run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines())
    there = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert tracked <= there
    run(sys.executable, unpacked / "tools" / "dist", tmp_path / "again")
    (wheel,) = built.glob("*.whl")
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_publisher_takes_what_is_built(built: Path) -> None:
    """Its twine finds nothing to say about the files."""
    files = [*built.glob("*.whl"), *built.glob("*.tar.gz")]
    run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files)


def test_the_readme_renders_on_an_index(built: Path) -> None:
    """An index has the README alone: a link is absolute, or only its text is there."""
    metadata = metadata_of(built)
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    page = markdown.render(payload.decode())
    assert page is not None
    assert all(tag in page for tag in ("<h1", "<table>", "<pre"))
    links = re.findall(r'(?:href|src)="([^#"][^"]*)"', page)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "](" not in page
    home = dict(url.split(", ") for url in metadata.get_all("Project-URL", [])).get("Source")
    ours = [link for link in links if re.search(r"/carride\b", link)]
    assert [link for link in ours if home is None or not link.startswith(home)] == []


def metadata_of(folder: Path) -> Message:
    """Read the metadata of the wheel in a folder."""
    (wheel,) = folder.glob("*.whl")
    name = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info/METADATA"
    return message_from_bytes(ZipFile(wheel).read(name))


def test_it_installs_beside_the_package_that_is_called_idempotency(
    built: Path, tmp_path: Path
) -> None:
    """Another project has that name on PyPI.

    The two share no file, and both can be used in one process.
    """
    python, site = install(built, tmp_path)
    link(site, "botocore", "idempotency", "pytest")
    (wheel,) = built.glob("*.whl")
    theirs = {file.as_posix() for file in distribution("idempotency").files or ()}
    assert theirs.isdisjoint(ZipFile(wheel).namelist())
    use = (
        "import idempotency, carride_idempotency as ours; "
        "print(idempotency.__file__, ours.Consumer.__module__)"
    )
    assert run(python, "-c", use).endswith("idempotency/__init__.py carride_idempotency.consumer\n")
    (tmp_path / "test_nothing.py").write_text(
        "def test_plugin(crash_everywhere): assert crash_everywhere\n"
    )
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_nothing.py", cwd=tmp_path)


@pytest.mark.parametrize("fence", ["hcl", "ts"])
def test_recipes_name_what_the_store_needs(fence: str) -> None:
    """Each recipe makes the key, the TTL attribute and the permissions that the store uses."""
    (recipe,) = re.findall(
        rf"```{fence}\n(.*?)```", (PAGES / "recipes.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for name in ('"idempotencyKey"', '"expiryTimestamp"', '"dynamodb:GetItem", "dynamodb:PutItem"'):
        assert name in recipe
