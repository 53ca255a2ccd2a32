"""Write the files that follow from the event types and the template: ``make contract``."""

import json
import sys
from pathlib import Path
from typing import Final

from api import openapi
from tools import capacity, costs
from tools.contract import parameters
from tools.contract.layout import text
from tools.contract.samples import current
from tools.contract.schemas import BreakingChangeError, registry

ROOT: Final = Path(__file__).resolve().parents[2]


def documents(root: Path = ROOT) -> dict[str, str]:
    """Return each generated file that is checked in by its path.

    Raises BreakingChangeError, see `registry`.
    """
    return {
        "infrastructure/schemas.yaml": registry(
            (root / "infrastructure/schemas.yaml").read_text(encoding="utf-8")
        ),
        "docs/openapi.json": text(openapi.document()),
        "docs/parameters.md": parameters.page(),
        "docs/costs.md": costs.current((root / "docs/costs.md").read_text(encoding="utf-8")),
        "docs/limits.md": capacity.current((root / "docs/limits.md").read_text(encoding="utf-8")),
        **{
            str(path.relative_to(root)): text(current(json.loads(path.read_text(encoding="utf-8"))))
            for path in (root / "events").rglob("*.json")
        },
    }


def main() -> None:
    """Write and name every generated file that has changed, but none after a breaking change."""
    try:
        files = documents()
    except BreakingChangeError as error:
        sys.exit(str(error))
    for name, content in files.items():
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
            print(f"changed  {name}")


if __name__ == "__main__":
    main()
