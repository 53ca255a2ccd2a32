"""JSON Schemas of the events, and the template that publishes them in EventBridge's registry.

The registry accepts draft 4 at most. A schema is replaced only by a compatible one; any other
change needs a higher ``schema_version``, which adds a schema. The template keeps every version,
because archives hold events of it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from samtranslator.yaml_helper import yaml_parse

from carride.events import Attributes
from carride.facts import FACTS, Fact
from tools.contract.layout import compact

type Schema = dict[str, Any]

_DRAFT: Final = "http://json-schema.org/draft-04/schema#"
_PROSE: Final = frozenset({"title", "description", "default"})
_DATA_BASE64: Final = {
    "description": "The data as JSON in base64; events from the outbox have it.",
    "type": "string",
    "pattern": "^[A-Za-z0-9+/]+={0,2}$",
}

_REGISTRY: Final = """\
# The event contract, for authors of producers and consumers. \
Written by `make contract`; do not edit.
AWSTemplateFormatVersion: "2010-09-09"
Description: JSON Schema of the detail of every ride event, by type and version.

Parameters:
  RegistryName: { Type: String, Description: Name of the schema registry. }

Resources:
  CarRideSchemaRegistry:
    Type: AWS::EventSchemas::Registry
    Properties:
      RegistryName: !Ref RegistryName
      Description: JSON Schema of the detail of every ride event, by type and version.
"""
_RESOURCE: Final = """
  {logical_id}Schema: {{ Type: AWS::EventSchemas::Schema, \
Properties: {{ SchemaName: {name}, Type: JSONSchemaDraft4,
      RegistryName: !GetAtt CarRideSchemaRegistry.RegistryName, Content: '{content}' }} }}
"""


class BreakingChangeError(Exception):
    """Raised when a changed schema is incompatible with existing readers or events."""


def schema(fact: type[Fact]) -> Schema:
    """Return the schema of the ``detail`` of a fact's event.

    The id of its ``data`` is the event's ``dataschema``.
    """
    references, definitions = msgspec.json.schema_components(
        [Attributes, fact], ref_template="#/definitions/{name}"
    )
    of_envelope, of_data = references
    envelope = resolved(of_envelope, definitions)
    data = resolved(of_data, definitions)
    properties = dict(envelope["properties"])
    properties["type"] = {
        "description": properties["type"]["description"],
        "enum": [fact.__name__],
    }
    properties["data"] = {"id": fact.dataschema(), **data}
    properties["data_base64"] = _DATA_BASE64
    return {
        "$schema": _DRAFT,
        "title": fact.__name__,
        "description": fact.__doc__,
        "type": "object",
        "properties": properties,
        "required": envelope["required"],
        "oneOf": [{"required": ["data"]}, {"required": ["data_base64"]}],
    }


def breaking_changes(old: Schema, new: Schema) -> Iterator[str]:
    """Yield the changes that existing events or readers do not agree with.

    Only a new optional field is compatible.
    """
    old_required = set(old["required"])
    new_required = set(new["required"])
    for name in new_required - old_required:
        yield f"{name} is required now, and existing events lack it"
    for name in old_required - new_required:
        yield f"{name} is no longer required, and existing readers need it"
    for name, before in old["properties"].items():
        after = new["properties"].get(name)
        if after is None:
            yield f"{name} is gone"
        elif "properties" in before:
            for change in breaking_changes(before, after):
                yield f"{name}.{change}"
        elif _rules(before) != _rules(after):
            yield f"{name} was {_rules(before)} and is {_rules(after)}"
    if old.get("oneOf") != new.get("oneOf"):
        yield "the alternatives of oneOf changed"


def published(template: str) -> dict[str, Schema]:
    """Return the schemas in a template of `registry`, by name."""
    found = {}
    for resource in yaml_parse(template)["Resources"].values():
        properties = resource["Properties"]
        if "Content" in properties:
            found[properties["SchemaName"]] = json.loads(properties["Content"])
    return found


def registry(before: str) -> str:
    """Return the template that publishes every event's schema, and the older ones of ``before``.

    Raises:
        BreakingChangeError: a changed schema is incompatible with existing readers or events.
    """
    old = published(before)
    new = {f"{fact.__name__}.v{fact.schema_version}": schema(fact) for fact in FACTS.values()}
    changes = list[str]()
    for name in sorted(old.keys() & new):
        changes += [f"{name}: {change}" for change in breaking_changes(old[name], new[name])]
    if changes:
        raise BreakingChangeError(
            "\n".join([*changes, "Raise the schema_version of these events."])
        )
    resources = [_resource(name, content) for name, content in sorted((old | new).items())]
    return _REGISTRY + "".join(resources)


def _resource(name: str, content: Any) -> str:
    """Return the resource of a schema, whose logical id is its name without dots."""
    logical_id = ""
    for part in name.split("."):
        logical_id += part[0].upper() + part[1:]
    quoted = compact(content).replace("'", "''")
    return _RESOURCE.format(logical_id=logical_id, name=name, content=quoted)


def resolved(part: Any, definitions: Mapping[str, Schema]) -> Any:
    """Return a part of a schema without references, and with nullable types in their short form."""
    match part:
        case {"$ref": str(reference)}:
            return resolved(definitions[reference.rpartition("/")[2]], definitions)
        case {"anyOf": [{"type": str(kind)} as rules, {"type": "null"}]}:
            return rules | {"type": [kind, "null"]}
        case dict():
            return {key: resolved(value, definitions) for key, value in part.items()}
        case list():
            return [resolved(value, definitions) for value in part]
    return part


def _rules(part: Any) -> Any:
    """Return a part of a schema without titles, descriptions and defaults."""
    match part:
        case dict():
            return {key: _rules(value) for key, value in part.items() if key not in _PROSE}
        case list():
            return [_rules(value) for value in part]
    return part
