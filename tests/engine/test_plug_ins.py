import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {path.stem: path.read_text() for path in (ROOT / "local/engine").glob("*.py")}
PLUG_INS = sorted(name for name, text in SOURCES.items() if "\n\nStock MiniStack " in text)


@pytest.mark.parametrize("module", PLUG_INS)
def test_every_plug_in_has_a_canary_and_is_documented(module: str) -> None:
    """A module that says what stock MiniStack lacks is applied, and a canary names it."""
    canaries = "".join(path.read_text() for path in (ROOT / "tests/engine").glob("*.[py]*"))
    assert re.search(rf'"{module}"|module: {module}\n', canaries)
    assert f'"{module}"' in SOURCES["plug_ins"]
