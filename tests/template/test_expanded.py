"""The template without loops and language extensions deploys what the template deploys.

The SAM CLI's own expansion of the loops is the judge.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tools.expanded import FILES, template, write
from tools.transformed import ROOT, TEMPLATE, stack

pytestmark = pytest.mark.integration

EXPAND: Final = """
import json, sys
from samcli.lib.cfn_language_extensions.sam_integration import expand_language_extensions
from samcli.yamlhelper import yaml_parse
written = yaml_parse(open(sys.argv[1], encoding="utf-8").read())
result = expand_language_extensions(written, json.loads(sys.argv[2]), enabled=True)
json.dump(result.expanded_template, sys.stdout)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both files."""
    folder = tmp_path_factory.mktemp("expanded")
    write(TEMPLATE, folder)
    (folder / "infrastructure").symlink_to(ROOT / "infrastructure")
    return folder


def by_the_sam_cli(**parameters: str) -> dict[str, Any]:
    """Return the template as the SAM CLI expands it."""
    done = subprocess.run(
        [ROOT / ".venv-sam" / "bin" / "python", "-c", EXPAND, TEMPLATE, json.dumps(parameters)],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", FILES)
def test_no_loop_no_anchor_and_no_extension_is_left(files: Path, name: str) -> None:
    """Only SAM's transform is declared, and nothing in the file needs another one."""
    text = (files / name).read_text(encoding="utf-8")
    assert "Transform: AWS::Serverless-2016-10-31\n" in text
    assert not [
        word for word in ("Fn::ForEach", "LanguageExtensions", "&id", "Shared:") if word in text
    ]


@pytest.mark.parametrize(
    ("name", "stage"), [("expanded.yaml", "dev"), ("expanded-prod.yaml", "prod")]
)
def test_it_has_the_resources_of_the_sam_clis_expansion(files: Path, name: str, stage: str) -> None:
    """Every resource and output has the same name, type, condition and policies for deletion."""
    expected = by_the_sam_cli(Stage=stage)
    found = template(TEMPLATE, is_prod=FILES[name])
    assert set(found["Outputs"]) == set(expected["Outputs"])
    assert set(found["Resources"]) == set(expected["Resources"])
    for logical_id, resource in expected["Resources"].items():
        own = found["Resources"][logical_id]
        for key in ("Type", "Condition", "DependsOn"):
            assert own.get(key) == resource.get(key), logical_id


@pytest.mark.parametrize(
    ("name", "stage"), [("expanded.yaml", "dev"), ("expanded-prod.yaml", "prod")]
)
def test_it_deploys_the_same(files: Path, name: str, stage: str) -> None:
    """Transformed and with its conditions decided, it has the resources of the template."""
    protected = {"dev": "no", "prod": "yes"}[stage]
    same = stack(files / name, Stage=stage, Protected=protected)
    original = stack(Stage=stage, Protected=protected)
    assert same.resources == original.resources
    assert same.outputs == original.outputs


def test_each_file_refuses_the_stages_of_the_other(files: Path) -> None:
    """A stack in production cannot lose its policies for deletion by the wrong file."""
    allowed = {
        name: template(TEMPLATE, is_prod=is_prod)["Parameters"]["Stage"]["AllowedValues"]
        for name, is_prod in FILES.items()
    }
    assert allowed == {"expanded.yaml": ["local", "dev"], "expanded-prod.yaml": ["prod"]}
