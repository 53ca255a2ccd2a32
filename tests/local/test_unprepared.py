"""What `sam local invoke` finds after `make build` and before `make local-env`."""

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from local.local_aws import ROOT
from tools.transformed import source

pytestmark = pytest.mark.integration


def test_after_a_build_each_function_says_what_to_run(tmp_path: Path) -> None:
    """The files that samconfig.toml names are there, and no function of them reaches an account."""
    names = {
        name
        for name, each in source()["Resources"].items()
        if each["Type"] == "AWS::Serverless::Function"
    }
    build = tmp_path / ".aws-sam" / "build" / "template.yaml"
    build.parent.mkdir(parents=True)
    script = ROOT / "tools" / "scripts" / "unprepared"
    for functions in (sorted(names)[:1], names):  # a function is added, and built
        built = {name: {"Type": "AWS::Serverless::Function"} for name in functions}
        build.write_text(yaml.safe_dump({"Resources": built}))
        subprocess.run([sys.executable, script, tmp_path], check=True)
    config = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))
    for command in ("local_invoke", "local_start_api"):
        named = config["default"][command]["parameters"]
        assert json.loads((tmp_path / named["env_vars"]).read_text()) == {}
        template = json.loads((tmp_path / named["template_file"]).read_text())
        assert set(template["Resources"]) == names
    for resource in template["Resources"].values():
        module, _, function = resource["Properties"]["Handler"].partition(".")
        code = Path(resource["Properties"]["CodeUri"]) / f"{module}.py"
        assert "make local-env" in runpy.run_path(str(code))[function]({"detail": {}}, None)


def test_a_build_leaves_what_local_env_has_written(tmp_path: Path) -> None:
    """A stack that was named stays the one that containers use."""
    written = tmp_path / ".aws-sam" / "local" / "sam-local.json"
    written.parent.mkdir(parents=True)
    written.write_text("{}")
    script = ROOT / "tools" / "scripts" / "unprepared"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    assert written.read_text() == "{}"
    assert list(written.parent.iterdir()) == [written]
