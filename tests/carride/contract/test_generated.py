"""The files that `make contract` writes are current, and valid for registries and readers."""

import json
import re
from collections.abc import Callable
from typing import Final

import pytest
from jsonschema import Draft4Validator

from api import openapi
from carride.facts import FACTS
from tests.kit.pipe import resource
from tools.contract.__main__ import ROOT, documents
from tools.contract.layout import text
from tools.contract.samples import current
from tools.contract.schemas import (
    BreakingChangeError,
    Schema,
    breaking_changes,
    published,
    registry,
    schema,
)

REGISTRY: Final = (ROOT / "infrastructure/schemas.yaml").read_text()
NAME: Final = {"Fn::Sub": "${AWS::StackName}-events"}
# Characters of a schema in EventBridge's registry: CreateSchema's ``Content``.
LARGEST_CONTENT: Final = 100_000
CREATED: Final = schema(FACTS["CarRideCreated"])


def test_make_contract_was_run() -> None:
    """Every generated file follows from the types; if not, run `make contract`."""
    generated = documents()
    assert {name: (ROOT / name).read_text(encoding="utf-8") for name in generated} == generated


def test_the_layout_changes_no_content_and_keeps_to_its_width() -> None:
    """A generated document reads back unchanged.

    Only a description that is too long by itself exceeds the line.
    """
    laid_out = text(openapi.document())
    assert json.loads(laid_out) == openapi.document()
    assert all(
        len(line.rstrip("]},")) <= 150
        for line in laid_out.splitlines()
        if '"description": "' not in line
    )


@pytest.mark.parametrize("name", ["ride_history_live", "dispatch_live"])
def test_a_field_that_comes_later_appears_in_the_samples(name: str) -> None:
    """`make contract` writes a new field with a default into samples, also inside messages."""
    sample = (ROOT / f"events/{name}.json").read_text()
    older = json.loads(re.sub(r',\s*\\?"currency\\?":\s?\\?"EUR\\?"', "", sample))
    assert current(older) == json.loads(sample) != older


# ── The schema registry ───────────────────────────────────────────────────────────────────────────


def test_the_registry_has_a_schema_of_every_type() -> None:
    """EventBridge's registry takes each: draft 4, self-contained, not too large."""
    schemas = published(REGISTRY)
    assert schemas.keys() >= {f"{name}.v{fact.schema_version}" for name, fact in FACTS.items()}
    for content in schemas.values():
        Draft4Validator.check_schema(content)
        raw = json.dumps(content)
        assert content["$schema"] == "http://json-schema.org/draft-04/schema#"
        assert "$ref" not in raw
        assert '"const"' not in raw
        assert len(raw) <= LARGEST_CONTENT


def test_the_stack_deploys_the_registry() -> None:
    """The template nests the generated one, and gives it the name of the registry."""
    assert resource("CarRideSchemaRegistry")["RegistryName"] == NAME


def test_the_data_has_the_id_that_events_name() -> None:
    """An event's dataschema leads to the schema of its data."""
    assert CREATED["properties"]["data"]["id"] == FACTS["CarRideCreated"].dataschema()


def changed(change: Callable[[Schema], object]) -> Schema:
    """Return a copy of the schema of CarRideCreated whose data were changed."""
    copy: Schema = json.loads(json.dumps(CREATED))
    change(copy["properties"]["data"])
    return copy


BREAKING: Final[dict[str, Callable[[Schema], object]]] = {
    "tip is required": lambda data: data["required"].append("tip"),
    "price is no longer required": lambda data: data["required"].remove("price"),
    "price is gone": lambda data: data["properties"].pop("price"),
    "price was": lambda data: data["properties"]["price"].update(type="number"),
    "status was": lambda data: data["properties"]["status"]["enum"].append("lost"),
    "passengers was": lambda data: data["properties"]["passengers"].update(maximum=9),
}


@pytest.mark.parametrize("found", BREAKING)
def test_a_breaking_change_is_found(found: str) -> None:
    """A change that existing readers or events do not agree with is reported with its field."""
    assert [
        change
        for change in breaking_changes(CREATED, changed(BREAKING[found]))
        if f"data.{found}" in change
    ]


def test_a_breaking_change_is_not_written() -> None:
    """An incompatible schema is not published; the error says what to do."""
    older = changed(lambda data: data["properties"].update(luggage={"type": "integer"}))
    with pytest.raises(
        BreakingChangeError, match=r"CarRideCreated\.v1: data\.luggage is gone(.|\n)*schema_version"
    ):
        registry(_template({"CarRideCreated.v1": older}))


def test_an_optional_field_and_other_prose_break_nothing() -> None:
    """Optional fields can be added, and descriptions can be improved."""

    def improve(data: Schema) -> None:
        data["properties"]["tip"] = {"type": "integer"}
        data["properties"]["price"]["description"] = "Better said."

    assert list(breaking_changes(CREATED, changed(improve))) == []


def test_older_versions_stay_in_the_registry() -> None:
    """The registry keeps the schemas of events in archives, with quotes in their prose."""
    older = {"CarRideLost.v2": {"description": "Nobody's ride."}}
    assert published(registry(_template(older))) == published(REGISTRY) | older


def _template(schemas: dict[str, Schema]) -> str:
    resources = {
        name.replace(".", ""): {"Properties": {"SchemaName": name, "Content": json.dumps(content)}}
        for name, content in schemas.items()
    }
    return json.dumps({"Resources": resources})
