import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft4Validator
from samtranslator.yaml_helper import yaml_parse

from carride.decoding import json_name
from carride.events import FACTS, Fact
from carride.schemas import BreakingChangeError, breaking_changes, file_name, register, schema, write
from tests.infrastructure.stack import TEMPLATE, source

SCHEMAS: Final = Path(__file__).parents[2] / "events" / "schemas"
LARGEST_CONTENT: Final = 100_000
"""Characters of a schema in EventBridge's registry: CreateSchema's ``Content``."""
CREATED: Final = schema(FACTS["CarRideCreated"])


@pytest.mark.parametrize("fact", FACTS.values(), ids=lambda fact: fact.__name__)
def test_what_is_checked_in_is_what_the_types_generate(fact: type[Fact]) -> None:
    """After a change of a type, `python -m carride.schemas events/schemas template.yaml` has to be run."""
    assert json.loads((SCHEMAS / file_name(fact)).read_text()) == schema(fact)


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda path: path.name)
def test_schemas_are_what_the_registry_takes(path: Path) -> None:
    """EventBridge's registry takes JSON Schema of draft 4, and no reference leads out of a file."""
    text = path.read_text()
    Draft4Validator.check_schema(json.loads(text))
    assert json.loads(text)["$schema"] == "http://json-schema.org/draft-04/schema#"
    assert "$ref" not in text
    assert '"const"' not in text


def test_the_template_publishes_every_schema() -> None:
    """What the stack puts into the registry is what is checked in, each file under its name, as draft 4."""
    published = {
        resource["Properties"]["SchemaName"]: resource["Properties"]
        for resource in source()["Resources"].values()
        if resource["Type"] == "AWS::EventSchemas::Schema"
    }
    assert {name: json.loads(properties["Content"]) for name, properties in published.items()} == {
        path.stem: json.loads(path.read_text()) for path in SCHEMAS.iterdir()
    }
    for properties in published.values():
        assert properties["Type"] == "JSONSchemaDraft4"
        assert properties["RegistryName"] == {"Fn::GetAtt": ["CarRideSchemaRegistry", "RegistryName"]}
        assert len(properties["Content"]) <= LARGEST_CONTENT


def test_the_command_leaves_the_template_as_it_is(tmp_path: Path) -> None:
    """Run again on what is checked in, it changes nothing; what it does not find it does not write."""
    copy = tmp_path / "template.yaml"
    copy.write_text(TEMPLATE.read_text())
    register(copy, SCHEMAS)
    assert copy.read_text() == TEMPLATE.read_text()
    copy.write_text("Resources: {}\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        register(copy, SCHEMAS)
    assert copy.read_text() == "Resources: {}\n"


def test_a_new_schema_gets_into_the_template(tmp_path: Path) -> None:
    """A file that is new, or has an apostrophe in its prose, is published as it is."""
    copy = tmp_path / "template.yaml"
    copy.write_text(TEMPLATE.read_text())
    (tmp_path / "CarRideLost.v2.json").write_text('{"description": "Nobody\'s ride."}')
    register(copy, tmp_path)
    (resource,) = (
        resource
        for resource in yaml_parse(copy.read_text())["Resources"].values()
        if resource["Type"] == "AWS::EventSchemas::Schema"
    )
    assert json.loads(resource["Properties"]["Content"]) == {"description": "Nobody's ride."}


def test_the_data_has_the_id_that_events_name() -> None:
    """An event's dataschema leads to the schema of its data."""
    assert CREATED["properties"]["data"]["id"] == FACTS["CarRideCreated"].dataschema()


def data_of(changed: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema that is about the data."""
    data: dict[str, Any] = changed["properties"]["data"]
    return data


def require_more(changed: dict[str, Any]) -> None:
    """Add a field that every event has to have."""
    data_of(changed)["properties"]["tip"] = {"type": "integer"}
    data_of(changed)["required"].append("tip")


def require_less(changed: dict[str, Any]) -> None:
    """Make a field optional."""
    data_of(changed)["required"].remove("price")


def drop(changed: dict[str, Any]) -> None:
    """Take a field away."""
    del data_of(changed)["properties"]["price"]


def retype(changed: dict[str, Any]) -> None:
    """Give a field another type."""
    data_of(changed)["properties"]["price"]["type"] = "number"


def widen(changed: dict[str, Any]) -> None:
    """Add a value that readers do not know."""
    data_of(changed)["properties"]["status"]["enum"].append("paused")


def tighten(changed: dict[str, Any]) -> None:
    """Forbid what events may have."""
    changed["properties"]["id"]["maxLength"] = 10


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (require_more, "data.tip"),
        (require_less, "data.price"),
        (drop, "data.price"),
        (retype, "data.price"),
        (widen, "data.status"),
        (tighten, "id"),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_a_breaking_change_is_found(change: Any, field: str) -> None:
    """What existing readers or existing events do not agree with is named with its field."""
    changed = json.loads(json.dumps(CREATED))
    change(changed)
    assert any(found.startswith(field) for found in breaking_changes(CREATED, changed))


def test_an_optional_field_and_other_prose_break_nothing() -> None:
    """What readers ignore and events may lack can be added, and descriptions can be improved."""
    changed = json.loads(json.dumps(CREATED))
    data_of(changed)["properties"]["tip"] = {"type": "integer"}
    data_of(changed)["properties"]["price"]["description"] = "Better said."
    assert list(breaking_changes(CREATED, changed)) == []


def test_a_breaking_change_is_not_written(tmp_path: Path) -> None:
    """The generator leaves every file as it is when one of them cannot be replaced, and says what to do."""
    write(tmp_path)
    before = json.loads((tmp_path / "CarRideCreated.v1.json").read_text())
    data_of(before)["properties"]["luggage"] = {"type": "integer"}
    (tmp_path / "CarRideCreated.v1.json").write_text(json.dumps(before))
    (tmp_path / "CarAssigned.v1.json").unlink()
    with pytest.raises(
        BreakingChangeError, match=r"CarRideCreated\.v1\.json: data\.luggage is gone(.|\n)*schema_version"
    ):
        write(tmp_path)
    assert not (tmp_path / "CarAssigned.v1.json").exists()


def test_the_command_writes_the_schemas(tmp_path: Path) -> None:
    """The documented command writes one file for each type of event."""
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-m", "carride.schemas", tmp_path],
        check=True,
        env={"PYTHONPATH": str(root / "layers/carride")},
    )
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in SCHEMAS.iterdir()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("order_id", "orderID"), ("price", "price"), ("previous_destination", "previousDestination")],
)
def test_fields_have_the_contracts_names_in_json(name: str, expected: str) -> None:
    """JSON names are camel case, with ID in capitals."""
    assert json_name(name) == expected
