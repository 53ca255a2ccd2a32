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
    text = (ROOT / "template.yaml").read_text(encoding="utf-8")
    parameters = yaml_parse(text)["Parameters"]
    rows = [_row(name, parameter) for name, parameter in parameters.items()]
    return _HEAD + "".join(rows)


def _row(name: str, parameter: dict[str, Any]) -> str:
    default = parameter["Default"]
    meaning = parameter["Description"]
    allowed = parameter.get("AllowedValues", [])
    others = [f"`{value}`" for value in allowed if value != default]
    if others:
        listed = ", ".join(others)
        meaning += f" Others: {listed}."
    shown = f"`{default}`"
    if default == "":
        shown = "none"
    return f"| `{name}` | {shown} | {meaning} |\n"
