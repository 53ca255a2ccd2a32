import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "local/engine").glob("*.py")
MODULES = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in SOURCES}
PLUG_INS = sorted(name for name, text in MODULES.items() if "Stock MiniStack" in text)


@pytest.mark.parametrize("module", PLUG_INS)
def test_every_plug_in_has_a_canary_and_is_documented(module: str) -> None:
    """A plug-in says what AWS does and where it plugs in; a canary and the documentation name its module."""
    canaries = "".join(path.read_text() for path in (ROOT / "tests/engine").glob("*.[py]*"))
    assert "AWS: " in MODULES[module]
    assert "Plugs into " in MODULES[module]
    assert re.search(rf'"{module}"|module: {module}\n', canaries)
    assert f"`{module}`" in (ROOT / "local/engine/README.md").read_text()
    assert f'"{module}"' in (ROOT / "local/engine/plug_ins.py").read_text()
