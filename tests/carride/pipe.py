"""The event that the template's pipe makes of an outbox item."""

import base64
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

from idempotency import marshalling

TEMPLATE: Final = Path(__file__).parents[2] / "template.yaml"

PLACE: Final = re.compile(r"<\$\.dynamodb\.NewImage\.(\w+)\.([A-Z]+)>")
"""The place of an item's attribute in the template, with its name and type."""


def resource(name: str) -> dict[str, Any]:
    """Return the properties of a resource of template.yaml, as they are written there."""
    properties: dict[str, Any] = _resources()[name]["Properties"]
    return properties


@cache
def _resources() -> dict[str, Any]:
    resources: dict[str, Any] = yaml_parse(TEMPLATE.read_text(encoding="utf-8"))["Resources"]
    return resources


def pipe() -> dict[str, Any]:
    """Return the properties of the pipe in the template."""
    return resource("OutboxPipe")


def template() -> str:
    """Return the text that the pipe fills in."""
    text: str = pipe()["TargetParameters"]["InputTemplate"]
    return text


def image(item: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    """Return an item in the form of a stream record, with binary in base64."""
    return {
        name: {"B": base64.b64encode(value).decode()} if isinstance(value, bytes) else marshalling.attribute(value)
        for name, value in item.items()
    }


def piped(item: Mapping[str, object]) -> dict[str, Any]:
    """Return the ``detail`` that the pipe puts on the bus.

    Raises:
        KeyError: the template names an attribute that the item has not.
    """
    attributes = image(item)
    detail: dict[str, Any] = json.loads(PLACE.sub(lambda place: json.dumps(attributes[place[1]][place[2]]), template()))
    return detail
