"""The build of the application for the local AWS."""

import os
from pathlib import Path
from typing import Any

import pytest

from engine.process import Engine
from local import artifacts


def test_a_build_is_repeated_only_when_something_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that changed, and a build by another program, lead to one more build each."""
    built = tmp_path / ".aws-sam" / "build" / "template.yaml"
    sources = [
        tmp_path / "template.yaml",
        tmp_path / "samconfig.toml",
        tmp_path / "layers" / "rides" / "module.py",
    ]
    for file in (built, *sources):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    builds = []

    def sam(*_command: Any, **_options: Any) -> None:
        builds.append(_command)
        built.write_text(str(len(builds)))

    engine = Engine(Path())
    monkeypatch.setattr(engine, "sam", sam)
    for change in (*sources, built):
        change.write_text(f"    ContentUri: layers/rides/\n# changed {change}")
        os.utime(change, ns=(0, len(builds)))  # another time, however coarse the clock is
        for _ in range(2):
            artifacts.build(engine, tmp_path / ".aws-sam", tmp_path)
    assert len(builds) == len(sources) + 1
