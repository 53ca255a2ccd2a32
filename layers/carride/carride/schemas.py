"""JSON Schemas of the events: ``python -m carride.schemas events/schemas infrastructure/schemas.yaml``.

Draft 4, because EventBridge's schema registry takes no later one. A schema that is there is replaced only by one that
old and new readers agree on; anything else needs a higher ``schema_version`` and so makes a file of its own. The
template publishes every file that there is, older versions too: archives hold their events.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from carride.events import FACTS, Attributes, Fact

type Schema = dict[str, Any]

_DRAFT: Final = "http://json-schema.org/draft-04/schema#"
_PROSE: Final = frozenset({"title", "description"})
_FIRST_LINE: Final = "  # Written by `python -m carride.schemas events/schemas infrastructure/schemas.yaml`, from here …"
_LAST_LINE: Final = "  # … to here."


class BreakingChangeError(Exception):
    """Raised when a schema would be replaced by one that existing readers or existing events do not agree with."""


def file_name(fact: type[Fact]) -> str:
    """Return the name of the file with a fact's schema."""
    return f"{fact.__name__}.v{fact.schema_version}.json"


def schema(fact: type[Fact]) -> Schema:
    """Return the schema of the ``detail`` that tells a fact; its ``data`` has the id that ``dataschema`` names."""
    references, definitions = msgspec.json.schema_components([Attributes, fact], ref_template="#/definitions/{name}")
    envelope, data = (_resolved(reference, definitions) for reference in references)
    in_base64 = {
        "description": "The data, as JSON in base64: so the outbox's events have it.",
        "type": "string",
        "pattern": "^[A-Za-z0-9+/]+={0,2}$",
    }
    fact_type = {"description": envelope["properties"]["type"]["description"], "enum": [fact.__name__]}
    return {
        "$schema": _DRAFT,
        "title": fact.__name__,
        "description": fact.__doc__,
        "type": "object",
        "properties": envelope["properties"]
        | {"type": fact_type, "data": {"id": fact.dataschema(), **data}, "data_base64": in_base64},
        "required": envelope["required"],
        "oneOf": [{"required": ["data"]}, {"required": ["data_base64"]}],
    }


def breaking_changes(old: Schema, new: Schema) -> Iterator[str]:
    """Yield what makes ``new`` no replacement for ``old``, for events that exist or for readers that do.

    Compatible is only what both sides can ignore: another optional field.
    """
    old_required, new_required = set(old["required"]), set(new["required"])
    yield from (f"{name} is required now, and events that exist lack it" for name in new_required - old_required)
    yield from (f"{name} is required no more, and readers that exist need it" for name in old_required - new_required)
    for name, before in old["properties"].items():
        after = new["properties"].get(name)
        if after is None:
            yield f"{name} is gone"
        elif "properties" in before:
            yield from (f"{name}.{change}" for change in breaking_changes(before, after))
        elif _rules(before) != _rules(after):
            yield f"{name} was {_rules(before)} and is {_rules(after)}"
    if old.get("oneOf") != new.get("oneOf"):
        yield "what is one of several can be other ones"


def write(folder: Path) -> None:
    """Write the schema of every event.

    Raises:
        BreakingChangeError: one that is there cannot be replaced; nothing is written.
    """
    schemas = {folder / file_name(fact): schema(fact) for fact in FACTS.values()}
    broken = [
        f"{path.name}: {change}"
        for path, new in schemas.items()
        if path.exists()
        for change in breaking_changes(json.loads(path.read_text()), new)
    ]
    if broken:
        raise BreakingChangeError("\n".join([*broken, "Raise the schema_version of these events."]))
    for path, new in schemas.items():
        path.write_text(json.dumps(new, indent=2) + "\n")


def register(template: Path, folder: Path) -> None:
    """Write the schemas of a folder into the template, one resource a file, between the two lines that say so.

    Raises:
        ValueError: the template has no such lines.
    """
    before, first, rest = template.read_text().partition(f"{_FIRST_LINE}\n")
    _, last, after = rest.partition(f"{_LAST_LINE}\n")
    if not last:
        raise ValueError(f"{template} lacks the lines between which schemas stand: {_FIRST_LINE!r} and {_LAST_LINE!r}")
    resources = "\n".join(_resource(path) for path in sorted(folder.glob("*.json")))
    template.write_text(f"{before}{first}{resources}{last}{after}")


def _resource(path: Path) -> str:
    """Return the resource that publishes a schema, as YAML; JSON on one line, in quotes."""
    content: Schema = json.loads(path.read_text())
    name, version = path.stem.split(".")
    in_quotes = json.dumps(content, separators=(",", ":")).replace("'", "''")
    return f"""\
  {name}{version.upper()}Schema:
    Type: AWS::EventSchemas::Schema
    Properties:
      RegistryName: !GetAtt CarRideSchemaRegistry.RegistryName
      SchemaName: {path.stem}
      Type: JSONSchemaDraft4
      Content: '{in_quotes}'
"""


def _resolved(part: Any, definitions: Mapping[str, Schema]) -> Any:
    """Return a part of a schema with what it refers to in place, so that it stands by itself."""
    match part:
        case {"$ref": str(reference)}:
            return _resolved(definitions[reference.rpartition("/")[2]], definitions)
        case dict():
            return {key: _resolved(value, definitions) for key, value in part.items()}
        case list():
            return [_resolved(value, definitions) for value in part]
    return part


def _rules(part: Any) -> Any:
    """Return a part of a schema without its prose."""
    match part:
        case dict():
            return {key: _rules(value) for key, value in part.items() if key not in _PROSE}
        case list():
            return [_rules(value) for value in part]
    return part


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]))
        for argument in sys.argv[2:]:
            register(Path(argument), Path(sys.argv[1]))
    except BreakingChangeError as error:
        sys.exit(str(error))
