"""Generates docs/parameters.md from the descriptions in template.yaml."""

from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

ROOT: Final = Path(__file__).resolve().parent.parent

_HEAD: Final = """\
# Parameters

Written by `make contract` from the descriptions in `template.yaml`. Set a parameter in `parameter_overrides` of
`samconfig.toml`, which `sam build` and `sam deploy` both read. A parameter that is left out keeps its last value.

| parameter | default | meaning |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page about the template's parameters, by the groups in which the console shows them."""
    template = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    groups = template["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    return _HEAD + "".join(
        f"| **{group['Label']['default']}** | | |\n"
        + "".join(_row(name, template["Parameters"][name]) for name in group["Parameters"])
        for group in groups
    )


def _row(name: str, spec: dict[str, Any]) -> str:
    others = [f"`{value}`" for value in spec.get("AllowedValues", []) if value != spec["Default"]]
    allowed = f" Others: {', '.join(others)}." if others else ""
    default = f"`{spec['Default']}`" if spec["Default"] != "" else "none"
    return f"| `{name}` | {default} | {spec['Description']}{allowed} |\n"
