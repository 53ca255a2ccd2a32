"""Write the template without loops, anchors and AWS::LanguageExtensions: `make build` runs this.

CloudFormation then has only SAM's transform to do. `sam deploy -t` on a file of these deploys what
it deploys from the built template; it is for an account where the other transform fails. A policy
for deletion takes no condition without that transform, so there is one file for stage `prod`, and
one for the others. Each refuses the other's stages.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

import yaml
from samtranslator.yaml_helper import yaml_parse

from tools.transformed import ROOT, expanded

BUILT: Final = ROOT / ".aws-sam" / "build" / "template.yaml"
FILES: Final = {"expanded.yaml": False, "expanded-prod.yaml": True}
"""The name of each file, and whether it is for stage `prod`."""
_POLICIES: Final = ("DeletionPolicy", "UpdateReplacePolicy")


class _WithoutAnchors(yaml.SafeDumper):
    """Writes a value that occurs twice twice."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Return that no value becomes an anchor."""
        return True


def template(path: Path, *, is_prod: bool) -> dict[str, Any]:
    """Return a template as SAM's transform alone understands it, for stage `prod` or the others."""
    found = expanded(yaml_parse(path.read_text(encoding="utf-8")))
    found["Transform"] = "AWS::Serverless-2016-10-31"
    _drop_unused(found)
    _allow_stages(found["Parameters"]["Stage"], is_prod=is_prod)
    for resource in found["Resources"].values():
        for policy in _POLICIES:
            if policy in resource:
                resource[policy] = _decided(resource[policy], is_prod=is_prod)
    return found


def _drop_unused(found: dict[str, Any]) -> None:
    """Remove the mappings that only loops read."""
    text = json.dumps(found)
    for name in list(found["Mappings"]):
        if f'"Fn::FindInMap": ["{name}"' not in text:
            del found["Mappings"][name]


def _allow_stages(stage: dict[str, Any], *, is_prod: bool) -> None:
    """Leave a stage only the values that the policies for deletion are right for."""
    if is_prod:
        stage["AllowedValues"] = ["prod"]
        stage["Default"] = "prod"
    else:
        stage["AllowedValues"].remove("prod")


def _decided(policy: Any, *, is_prod: bool) -> Any:
    """Return a policy for deletion with its condition decided."""
    match policy:
        case {"Fn::If": ["IsProd", in_production, otherwise]}:
            return in_production if is_prod else otherwise
        case _:
            return policy


def write(path: Path, folder: Path) -> None:
    """Write both files for a template into a folder."""
    for name, is_prod in FILES.items():
        content = template(path, is_prod=is_prod)
        text = yaml.dump(content, Dumper=_WithoutAnchors, sort_keys=False, width=120)
        (folder / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=" ".join(str(__doc__).split()))
    parser.add_argument("--template", type=Path, default=BUILT, help="the template to expand")
    parser.add_argument("--into", type=Path, help="the folder to write to; the template's")
    options = parser.parse_args()
    into = options.into or options.template.parent
    into.mkdir(parents=True, exist_ok=True)
    write(options.template, into)


if __name__ == "__main__":
    main()
