"""The template as CloudFormation deploys it, for one choice of parameters.

It is transformed, its conditions are decided, and the resources of nested stacks are merged with
its own.
"""

import copy
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

ROOT: Final = Path(__file__).resolve().parent.parent
TEMPLATE: Final = ROOT / "template.yaml"

ROLES: Final[dict[str, dict[str, str]]] = {
    "standalone": {"Role": "standalone"},
    "primary": {"Role": "primary", "PeerRegion": "eu-west-1", "GlobalEndpoint": "present"},
    "secondary": {
        "Role": "secondary",
        "PeerRegion": "us-east-1",
        "GlobalEndpointId": "abcdefgh.xyz",
        "OutboxStreamArn": "arn:aws:dynamodb:eu-west-1:123456789012:table/carride-OutboxTable"
        "/stream/2026-01-01T00:00",
    },
}
"""Parameters that `./carride failover deploy` sets, by the stack's role among the regions."""

NO_VALUE: Final = {"Ref": "AWS::NoValue"}
_TABLE: Final = re.compile(r"\$\{AWS::StackName\}-(\w+)")
_PEER_BUS: Final = re.compile(r":events:\$\{PeerRegion\}:.*:event-bus/\$\{(\w+)\}$")

type Properties = dict[str, Any]


@dataclass(frozen=True)
class Stack:
    """The transformed template of one choice of parameters, with its conditions decided."""

    parameters: dict[str, str]
    mappings: dict[str, Any]
    conditions: dict[str, bool]
    resources: dict[str, Properties]
    outputs: dict[str, Properties]

    def of_type(self, resource_type: str) -> dict[str, Properties]:
        """Return the properties of every resource of a type by logical id."""
        return {
            name: resource.get("Properties", {})
            for name, resource in self.resources.items()
            if resource["Type"] == resource_type
        }

    def functions(self) -> dict[str, Properties]:
        """Return every function's properties by logical id, but for the simulated gateway's."""
        found = self.of_type("AWS::Lambda::Function")
        return {
            name: properties
            for name, properties in found.items()
            if name != "SimulatedGatewayFunction"
        }


def source(path: Path = TEMPLATE) -> dict[str, Any]:
    """Return the template before SAM's transform, with nested stacks merged."""
    return copy.deepcopy(_parsed(path))


@cache
def _parsed(path: Path) -> dict[str, Any]:
    written: dict[str, Any] = yaml_parse(path.read_text(encoding="utf-8"))
    return _merged(written, path.parent)


def _written(text: str, given: Mapping[str, Any]) -> str:
    """Return a text with a nested template's parameters in place of their names."""

    def value_of(found: re.Match[str]) -> str:
        match given.get(found[1]):
            case str(value):
                return value
            case {"Ref": str(name)} | {"Fn::If": [_, {"Ref": str(name)}, ""]}:
                return f"${{{name}}}"
            case {"Fn::GetAtt": [str(name), str(attribute)]}:
                return f"${{{name}.{attribute}}}"
            case _:
                return found[0]

    return re.sub(r"\$\{(\w+)\}", value_of, text)


def _filled(value: Any, given: Mapping[str, Any]) -> Any:
    """Return part of a nested template with its parameters in place of their names."""
    match value:
        case {"Ref": str(name)} if name in given:
            return given[name]
        case {"Fn::Sub": str(text)}:
            return {"Fn::Sub": _written(text, given)}
        case {"Fn::Sub": [str(text), dict(own)]}:
            return {"Fn::Sub": [_written(text, given), _filled(own, given)]}
        case dict():
            return {key: _filled(inner, given) for key, inner in value.items()}
        case list():
            return [_filled(inner, given) for inner in value]
        case _:
            return value


def _unjoined(value: Any) -> Any:
    """Return a nested template's parameter as its template sees it: a joined list is the list."""
    if isinstance(value, dict) and "Fn::Join" in value:
        return value["Fn::Join"][1]
    return value


def _merged(template: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a template with its nested templates' resources and conditions in their place.

    A condition of a nested template that has the name of one of the template has to mean the same.
    """
    found: dict[str, Any] = {}
    conditions: dict[str, Any] = {}
    outputs: dict[tuple[str, str], Any] = {}
    for name, resource in template["Resources"].items():
        if resource["Type"] != "AWS::CloudFormation::Stack":
            found[name] = resource
            continue
        nested = _nested(resource["Properties"], folder)
        for inner, each in nested["Resources"].items():
            found[inner] = dict(each)
            if "Condition" in resource:
                found[inner].setdefault("Condition", resource["Condition"])
        conditions |= nested.get("Conditions", {})
        for output, each in nested.get("Outputs", {}).items():
            outputs[name, f"Outputs.{output}"] = each["Value"]

    def linked(value: Any) -> Any:
        match value:
            case {"Fn::GetAtt": [str(name), str(attribute)]} if (name, attribute) in outputs:
                return outputs[name, attribute]
            case dict():
                return {key: linked(inner) for key, inner in value.items()}
            case list():
                return [linked(inner) for inner in value]
            case _:
                return value

    conditions |= template["Conditions"]
    merged = {"Conditions": conditions, "Resources": found, "Outputs": template["Outputs"]}
    return template | dict(linked(merged))


def _nested(properties: Properties, folder: Path) -> dict[str, Any]:
    """Return a nested template, with its parameters in place of their names."""
    given = {}
    for name, value in properties["Parameters"].items():
        given[name] = _unjoined(value)
    path = folder / properties["TemplateURL"]
    template = yaml_parse(path.read_text(encoding="utf-8"))
    nested: dict[str, Any] = _filled(template, given)
    return nested


@cache
def stack(path: Path = TEMPLATE, /, **chosen: str) -> Stack:
    """Return the transformed template for the given parameters and the defaults of the others.

    Raises:
        LookupError: the template has no such parameter.
    """
    template = _packaged(source(path))
    defaults = {name: str(spec["Default"]) for name, spec in template["Parameters"].items()}
    if unknown := chosen.keys() - defaults.keys():
        raise LookupError(f"{path.name} has no parameters {sorted(unknown)}")
    parameters = defaults | chosen
    logging.getLogger("samtranslator").setLevel(logging.ERROR)
    # The transform wants one, and uses it for nothing.
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    result = transform(template, parameters, SimpleNamespace(load=dict))  # no managed policies
    declared = template["Conditions"]
    mappings = template["Mappings"]
    conditions = {
        name: holds(condition, parameters, declared) for name, condition in declared.items()
    }

    def decided(value: Any) -> Any:
        match value:
            case {"Fn::If": [str(condition), chosen, otherwise]}:
                return decided(chosen if conditions[condition] else otherwise)
            case {"Fn::FindInMap": [str(mapping), {"Ref": str(parameter)}, str(key)]}:
                return mappings[mapping][parameters[parameter]][key]
            case dict():
                found = {key: decided(inner) for key, inner in value.items()}
                return {key: inner for key, inner in found.items() if inner != NO_VALUE}
            case list():
                return [each for each in map(decided, value) if each != NO_VALUE]
            case _:
                return value

    def deployed(section: str) -> dict[str, Any]:
        """Return what a section has under the conditions that hold."""
        found = dict[str, Any]()
        for name, each in result[section].items():
            if "Condition" in each and not conditions[each["Condition"]]:
                continue
            found[name] = decided(each)
            found[name].pop("Condition", None)
        return found

    return Stack(parameters, mappings, conditions, deployed("Resources"), deployed("Outputs"))


def _packaged(template: dict[str, Any]) -> dict[str, Any]:
    """Put the place of an upload where local files stand, as `sam package` does."""
    uploads = {
        "CodeUri": "s3://bucket/key",
        "ContentUri": "s3://bucket/key",
        "TemplateURL": "https://s3/bucket/key",
    }
    for resource in template["Resources"].values():
        for key, place in uploads.items():
            if key in resource.get("Properties", {}):
                resource["Properties"][key] = place
    return template


def holds(
    condition: dict[str, Any], parameters: dict[str, str], declared: dict[str, dict[str, Any]]
) -> bool:
    """Evaluate a condition of the template."""
    match condition:
        case {"Condition": str(name)}:
            return holds(declared[name], parameters, declared)
        case {"Fn::And": list(parts)}:
            return all(holds(part, parameters, declared) for part in parts)
        case {"Fn::Or": list(parts)}:
            return any(holds(part, parameters, declared) for part in parts)
        case {"Fn::Equals": [left, right]}:
            return _text(left, parameters, declared) == _text(right, parameters, declared)
        case {"Fn::Not": [negated]}:
            return not holds(negated, parameters, declared)
        case _:
            raise NotImplementedError(f"teach this function the condition {condition}")


def _text(value: Any, parameters: dict[str, str], declared: dict[str, dict[str, Any]]) -> str:
    """Return the text that one side of a comparison stands for."""
    match value:
        case {"Ref": str(name)}:
            return parameters[name]
        case {"Fn::If": [str(condition), chosen, otherwise]}:
            met = holds(declared[condition], parameters, declared)
            return _text(chosen if met else otherwise, parameters, declared)
        case _:
            return str(value)


def named(value: Any) -> str:
    """Return the logical id that a value names; empty if it names none.

    An alias stands for its function, an index or a replica for its table.
    """
    match value:
        case {"Ref": "OutboxStreamArn"}:
            return "OutboxTable"
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            return name.removesuffix("Aliaslive")
        case {"Fn::Sub": str(text)} if found := _TABLE.search(text):
            return found[1]
        case {"Fn::Sub": str(text)} if found := _PEER_BUS.search(text):
            return f"{found[1]} of the peer"
        case {"Fn::Sub": str(text)} | str(text):
            names: list[str] = re.findall(r"\$\{(\w+)(?:\.\w+)?\}", text)
            return names[-1].removesuffix("Aliaslive") if names else text
        case _:
            return ""
