"""The template as it is deployed, written down so that a change shows in a review: ``make snapshot`` renews it.

`standalone.yaml` holds every resource of a deployment with default parameters. The other roles' files hold what is
different from it, and name what is not there. The hashes by which SAM tells versions apart are left out: they change
with the code.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any, Final

import yaml

from tests.infrastructure.stack import ROLES, ROOT, Properties, stack

SNAPSHOTS: Final = ROOT / "tests" / "infrastructure" / "snapshots"

_DEFAULT: Final = "standalone"
_HASH: Final = re.compile(r"\b(\w+(?:FunctionVersion|Layer))[0-9a-f]{10}\b")
_HEAD: Final = "# Written by `make snapshot`; read it in diffs.\n"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, and every value where it stands."""

    def ignore_aliases(self, data: object) -> bool:
        """Return that no value is replaced by a reference to an equal one."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


def _mapping(dumper: yaml.SafeDumper, mapping: dict[str, Any]) -> yaml.MappingNode:
    short = len(mapping) == 1 and not mapping.keys().isdisjoint({"Ref", "Fn::GetAtt"})
    return dumper.represent_mapping("tag:yaml.org,2002:map", mapping, flow_style=short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dict, _mapping)


def snapshots() -> dict[Path, str]:
    """Return the text of each snapshot, by its file."""
    default = stack(**ROLES[_DEFAULT]).resources
    texts = {_DEFAULT: _written(default)}
    for role in ROLES.keys() - {_DEFAULT}:
        deployed = stack(**ROLES[role]).resources
        different = {name: resource for name, resource in deployed.items() if resource != default.get(name)}
        texts[role] = _written({"NotThere": sorted(default.keys() - deployed.keys()), **different})
    return {SNAPSHOTS / f"{role}.yaml": text for role, text in texts.items()}


def _written(resources: dict[str, Properties] | dict[str, Any]) -> str:
    text = yaml.dump(resources, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return _HEAD + _HASH.sub(r"\1", text)


def main() -> None:
    """Renew the snapshots."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")  # the transform wants one, and uses it for nothing
    logging.getLogger("samtranslator").setLevel(logging.ERROR)
    SNAPSHOTS.mkdir(exist_ok=True)
    for path, text in snapshots().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
