"""The template as CloudFormation gets it: after the SAM transform, with the conditions of one choice of parameters."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

ROOT: Final = Path(__file__).resolve().parents[2]
TEMPLATE: Final = ROOT / "template.yaml"

type Properties = dict[str, Any]


class NoManagedPolicies:
    """The template names no AWS managed policy, so the transform needs no account to look one up in."""

    def load(self) -> dict[str, str]:
        """Return the ARN of each managed policy by its name: none."""
        return {}


@dataclass(frozen=True)
class Stack:
    """The transformed template of one choice of parameters."""

    parameters: dict[str, str]
    conditions: dict[str, bool]
    resources: dict[str, Properties]
    outputs: dict[str, Properties]

    def of_type(self, resource_type: str) -> dict[str, Properties]:
        """Return the properties of every resource of that type by its logical id."""
        return {
            name: resource.get("Properties", {})
            for name, resource in self.resources.items()
            if resource["Type"] == resource_type
        }

    def choose(self, value: object) -> object:
        """Follow ``Fn::If`` and references to parameters down to the value that this choice of parameters gives."""
        match value:
            case {"Fn::If": [str(condition), chosen, otherwise]}:
                return self.choose(chosen if self.conditions[condition] else otherwise)
            case {"Ref": str(name)} if name in self.parameters:
                return self.parameters[name]
            case _:
                return value


def source() -> dict[str, Any]:
    """Return the template as written."""
    parsed: dict[str, Any] = yaml_parse(TEMPLATE.read_text(encoding="utf-8"))
    return parsed


def stack(**chosen: str) -> Stack:
    """Return the transformed template for the given parameters and the defaults of the others."""
    template = _packaged(source())
    parameters = {name: str(spec["Default"]) for name, spec in template["Parameters"].items()} | chosen
    result = transform(template, parameters, NoManagedPolicies())
    conditions = {name: _holds(condition, parameters) for name, condition in template["Conditions"].items()}
    return Stack(parameters, conditions, result["Resources"], result["Outputs"])


def every_choice() -> Iterator[dict[str, str]]:
    """Yield every combination of the parameters that change what is deployed."""
    specs = source()["Parameters"]
    names = ("Stage", "Architecture")
    for values in itertools.product(*(specs[name]["AllowedValues"] for name in names)):
        yield dict(zip(names, values, strict=True))


def _packaged(template: dict[str, Any]) -> dict[str, Any]:
    """Put the place of an upload where local folders stand, as `sam package` does before the transform."""
    for resource in template["Resources"].values():
        for key in ("CodeUri", "ContentUri"):
            if key in resource.get("Properties", {}):
                resource["Properties"][key] = "s3://bucket/key"
    return template


def _holds(condition: dict[str, list[Any]], parameters: dict[str, str]) -> bool:
    match condition:
        case {"Fn::Equals": [{"Ref": name}, value]}:
            return bool(parameters[name] == value)
        case {"Fn::Not": [negated]}:
            return not _holds(negated, parameters)
        case _:
            raise NotImplementedError(f"teach this function the condition {condition}")


def attribute(logical_id: str, name: str = "Arn") -> dict[str, list[str]]:
    """Return the intrinsic that gives an attribute of a resource."""
    return {"Fn::GetAtt": [logical_id, name]}
