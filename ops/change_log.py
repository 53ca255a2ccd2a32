"""The log of changes of this machine: a line of JSON for each command that has changed a stack."""

import os
from pathlib import Path
from typing import Final

from ops.regions import ROOT

CHANGES: Final = Path(os.environ.get("CARRIDE_CHANGES", ROOT / ".carride" / "changes.jsonl"))
"""The file. `ops.cli.line` writes it, a line when a command ends."""


def changed_ms() -> float:
    """Return when the last command ended that is in the log; 0 if there is none."""
    try:
        return CHANGES.stat().st_mtime * 1000
    except OSError:
        return 0
