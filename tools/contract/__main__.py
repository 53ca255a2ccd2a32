"""Write the files that follow from the event types and the template: ``make contract``."""

import json
import sys
from pathlib import Path
from typing import Final

from api import openapi
from tools.contract import parameters
from tools.contract.layout import text
from tools.contract.samples import current
from tools.contract.schemas import BreakingChangeError, registry
from tools.costs import bill, limits, stores

ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = "layers/idempotency/docs/stores.md"


def documents(root: Path = ROOT) -> dict[str, str]:
    """Return each generated file that is checked in, by its path.

    Raises:
        BreakingChangeError: a changed schema is incompatible: see `registry`.
    """

    def read(path: str) -> str:
        return (root / path).read_text(encoding="utf-8")

    found = {
        "infrastructure/schemas.yaml": registry(read("infrastructure/schemas.yaml")),
        "docs/openapi.json": text(openapi.document()),
        "docs/parameters.md": parameters.page(),
        "docs/costs.md": bill.current(read("docs/costs.md")),
        "docs/limits.md": limits.current(read("docs/limits.md")),
        STORES: stores.current(read(STORES)),
    }
    for path in (root / "events").rglob("*.json"):
        name = str(path.relative_to(root))
        sample = json.loads(read(name))
        found[name] = text(current(sample))
    return found


def main() -> None:
    """Write and name every generated file that has changed, but none after a breaking change."""
    try:
        files = documents()
    except BreakingChangeError as error:
        sys.exit(str(error))
    for name, content in files.items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
        print(f"changed  {name}")


if __name__ == "__main__":
    main()
