"""Build the project's template for the local AWS."""

import fcntl
import hashlib
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.process import ROOT, Engine, EngineError

PARAMETERS: Final = {
    "Stage": "local",
    # Functions run on this machine's Python, hence on its processor.
    "Architecture": "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64",
}
"""Template parameters of this machine."""

_CODE_IN: Final = re.compile(r"^ +(?:CodeUri|ContentUri): (\S+)$", re.MULTILINE)
"""The folders that ``sam build`` copies."""

FOLDER: Final = ROOT / ".aws-sam" / "local"
"""Where the code for this machine is built. `make build` builds what is deployed in the folder
beside it, for another processor."""


def build(engine: Engine, folder: Path = FOLDER, root: Path = ROOT) -> None:
    """Run ``sam build``, unless nothing has changed since this machine's last build."""
    last_build = folder / "last-build"
    with _locked(folder, fcntl.LOCK_EX):
        if last_build.exists() and last_build.read_text("utf-8") == _state(folder, root):
            return
        folders = ("--build-dir", str(folder / "build"), "--cache-dir", str(folder / "cache"))
        engine.sam("build", "--config-env", "local", *folders, parameters=PARAMETERS, folder=root)
        _compile(root, folder / "build")
        last_build.write_text(_state(folder, root), encoding="utf-8")


def _compile(root: Path, build: Path) -> None:
    """Compile the built code as `make build` does; a project without the script keeps its source.

    Raises:
        EngineError: it could not be compiled.
    """
    script = root / "tools" / "scripts" / "compile"
    if not script.exists():
        return
    command = [ROOT / ".venv-sam/bin/python", script, build]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise EngineError("the code that was built could not be compiled: the lines above say why")


@contextmanager
def built() -> Iterator[Path]:
    """Yield the folder of the last build; no other process builds meanwhile."""
    with _locked(FOLDER, fcntl.LOCK_SH):
        yield FOLDER / "build"


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    """Lock the folder of the build against other processes.

    One may write it, or many may read it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, kind)
        yield


def _state(folder: Path, root: Path) -> str:
    """Return a hash of the sources and of the build's time, which ``sam build`` changes."""
    sources = [root / "template.yaml", root / "samconfig.toml"]
    folders = _CODE_IN.findall(sources[0].read_text(encoding="utf-8"))
    for name in (*folders, "infrastructure"):
        files = sorted((root / name).rglob("*"))
        sources += [path for path in files if path.is_file() and path.suffix != ".pyc"]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(repr((path, path.read_bytes())).encode())
    template = folder / "build" / "template.yaml"
    built_at = template.stat().st_mtime_ns if template.exists() else 0
    return f"{digest.hexdigest()} {built_at}"
