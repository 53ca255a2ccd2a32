"""Generates docs/parameters.md from the descriptions in template.yaml."""

from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

ROOT: Final = Path(__file__).resolve().parents[2]

_HEAD: Final = """\
# Parameters

Written by `make contract` from the descriptions in `template.yaml`. \
Set a parameter in `parameter_overrides` of
`samconfig.toml`, which `sam build` and `sam deploy` both read. \
A parameter that is left out keeps its last value.

| parameter | default | meaning |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page about the template's parameters, in the template's order."""
    template = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    return _HEAD + "".join(_row(name, spec) for name, spec in template["Parameters"].items())


def _row(name: str, spec: dict[str, Any]) -> str:
    others = [f"`{value}`" for value in spec.get("AllowedValues", []) if value != spec["Default"]]
    allowed = f" Others: {', '.join(others)}." if others else ""
    default = f"`{spec['Default']}`" if spec["Default"] != "" else "none"
    return f"| `{name}` | {default} | {spec['Description']}{allowed} |\n"
