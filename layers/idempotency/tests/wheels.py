"""Builds the library's distribution, and makes environments that have it, without the network."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

ROOM: Final = Path(__file__).resolve().parents[1]
FILE: Final = re.compile(r'^```python title="(\w+\.py)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
"""A block of a page that is a file, and its content."""
CLIENT: Final = (
    *("httpx2", "httpcore2", "anyio", "idna", "h11", "truststore"),
    "typing-extensions",
)
"""What asks a service in its own process."""
UV: Final = shutil.which("uv") or str(ROOM.parents[1] / ".venv-uv" / "bin" / "uv")


def run(*command: str | Path, cwd: Path = ROOM, **environment: str) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """Build wheel, sdist and layer into a folder; return it."""
    run(sys.executable, ROOM / "tools" / "dist", folder)
    return folder


def install(built: Path, folder: Path, python: str = sys.executable) -> tuple[Path, Path]:
    """Make an environment with the wheel alone; return its Python and its ``site-packages``."""
    run(python, "-m", "venv", "--without-pip", folder)
    own = folder / "bin" / "python"
    (site,) = folder.glob("lib/*/site-packages")
    run(UV, "pip", "install", "--offline", "--no-deps", "--python", own, *built.glob("*.whl"))
    return own, site


def write_files(page: str, folder: Path) -> None:
    """Write the files of a page of the documentation into a folder."""
    text = (ROOM / "docs" / page).read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (folder / name).write_text(content, encoding="utf-8")


def link(folder: Path, *names: str) -> None:
    """Link distributions, and what they need, from the environment of the tests."""
    for found in map(distribution, names):
        for name in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(found.locate_file(name))))
        link(
            folder,
            *(re.split(r"[^\w.-]", need)[0] for need in found.requires or () if ";" not in need),
        )
