"""Print what a change of the template changes in what is deployed, by role.

`python -m tests.template.snapshot main` compares the transformed template of the working tree with
that of a commit, by default HEAD, without the hashes by which SAM tells versions apart.
"""

import difflib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import yaml

from tools.transformed import ROLES, ROOT, TEMPLATE, stack

_HASH: Final = re.compile(r"\b(\w+(?:FunctionVersion|Layer))[0-9a-f]{10}\b")


def main(commit: str = "HEAD") -> int:
    """Print the differences, and return 0, or 2 if there is no such commit."""
    with tempfile.TemporaryDirectory() as folder:
        # Nested templates are beside the template.
        packed = f"{folder}/packed.tar"
        archive = [
            "git",
            "archive",
            f"--output={packed}",
            commit,
            "template.yaml",
            "infrastructure",
        ]
        if subprocess.run(archive, cwd=ROOT, capture_output=True, check=False).returncode:
            print(
                f"error: git has no template.yaml at {commit!r}: name a commit or a branch",
                file=sys.stderr,
            )
            return 2
        shutil.unpack_archive(packed, folder, filter="data")
        for role in ROLES:
            old, new = (
                _written(template, role) for template in (Path(folder) / "template.yaml", TEMPLATE)
            )
            changes = list(
                difflib.unified_diff(
                    old, new, f"{role} at {commit}", f"{role} now", n=3, lineterm=""
                )
            )
            print("\n".join(changes or [f"{role}: nothing changes"]))
    return 0


def _written(template: Path, role: str) -> list[str]:
    text = yaml.safe_dump(
        stack(template, **ROLES[role]).resources, sort_keys=True, width=120, allow_unicode=True
    )
    return _HASH.sub(r"\1", text).splitlines()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
