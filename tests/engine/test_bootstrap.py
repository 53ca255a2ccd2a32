import sys
from pathlib import Path

import pytest

from local.engine import bootstrap


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", ["code", "two/python", "one/python", "one/python/lib/{}/site-packages", "runtime"]),
        ("darwin", ["code", "runtime", "two/python", "one/python", "one/python/lib/{}/site-packages"]),
    ],
)
def test_modules_are_looked_for_as_on_lambda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, expected: list[str]
) -> None:
    """The function goes first, then the layers, the last on top; only off Linux does the runtime go before them."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (f"one/python/lib/{version}/site-packages", "two/python", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys, "path", ["own folder", "runtime"])
    layers = [str(tmp_path / name) for name in ("one", "empty", "two")]
    found = bootstrap.search_path("code", layers)
    assert [path.removeprefix(f"{tmp_path}/") for path in found] == [path.format(version) for path in expected]
