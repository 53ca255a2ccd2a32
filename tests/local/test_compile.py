"""What is deployed: byte code, and shared objects for the functions' processor.

`make build` runs `tools/scripts/compile`.
"""

import marshal
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from local.local_aws import ROOT

SOURCES = {
    "AFunction/handler.py": "RAN = True\n",
    "ALayer/python/package/__init__.py": "def work(): raise OSError\n",
}
ELF = b"\x7fELF" + bytes(14)
"""The header of an ELF file up to its machine."""
MACHINES = {"x86_64": b"\x3e\x00", "arm64": b"\xb7\x00"}
_UNCHECKED = b"\x01\x00\x00\x00"
_HEADER = 16


def run(folder: Path, processor: str) -> subprocess.CompletedProcess[str]:
    """Compile the build in this folder, whose functions are for a processor."""
    definition = f'[function_build_definitions.one]\narchitecture = "{processor}"\n'
    (folder / ".aws-sam" / "build.toml").write_text(definition)
    (folder / "tools" / "scripts").mkdir(parents=True, exist_ok=True)
    script = shutil.copy(ROOT / "tools" / "scripts" / "compile", folder / "tools" / "scripts")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)


def compiled(folder: Path, sources: dict[str, str]) -> tuple[int, dict[str, bytes]]:
    """Compile a build in this folder.

    Return the exit status, and the byte code by its path in the build.
    """
    build = folder / ".aws-sam" / "build"
    for name, source in sources.items():
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        (build / name).write_text(source)
    return run(folder, "x86_64").returncode, {
        str(path.relative_to(build)): path.read_bytes() for path in build.rglob("*.pyc")
    }


def test_the_same_source_gives_the_same_bytes_which_are_used_whatever_the_times_are(
    tmp_path: Path,
) -> None:
    """Another machine's build deploys nothing anew.

    Packing changes times; tracebacks name Lambda's folders.
    """
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    (status, one), (_, other) = (compiled(tmp_path / name, SOURCES) for name in ("one", "other"))
    assert (status, one) == (0, other)
    names = set()
    for content in one.values():
        assert content[4:8] == _UNCHECKED
        code = marshal.loads(content[_HEADER:])  # noqa: S302 - compiled in this test
        assert isinstance(code, CodeType)
        names.add(code.co_filename)
    assert names == {"/var/task/handler.py", "/opt/python/package/__init__.py"}


def test_code_that_is_no_python_fails_the_build(tmp_path: Path) -> None:
    """Not the first cold start."""
    assert compiled(tmp_path, {"BFunction/handler.py": "def\n"})[0] == 1


@pytest.mark.parametrize("asked_for", MACHINES)
@pytest.mark.parametrize("built_for", MACHINES)
def test_a_layer_for_another_processor_fails_the_build(
    asked_for: str, built_for: str, tmp_path: Path
) -> None:
    """The functions could not load it."""
    layer = tmp_path / ".aws-sam" / "build" / "SigV4aLayer" / "python"
    layer.mkdir(parents=True)
    (layer / "_fast.so").write_bytes(ELF + MACHINES[built_for])
    done = run(tmp_path, asked_for)
    assert (done.returncode == 0) is (asked_for == built_for)
    assert (f"_fast.so is not for {asked_for}" in done.stderr) is (asked_for != built_for)
