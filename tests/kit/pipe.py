"""The event that the template's pipe makes of an outbox item."""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from carride_idempotency import marshalling
from tools.transformed import source

PLACE: Final = re.compile(r"<\$\.dynamodb\.NewImage\.(\w+)\.([A-Z]+)>")
"""The place of an item's attribute in the template, with its name and type."""


def resource(name: str) -> dict[str, Any]:
    """Return the properties of a resource of template.yaml."""
    properties: dict[str, Any] = source()["Resources"][name]["Properties"]
    return properties


PIPE: Final = resource("OutboxPipe")
TEMPLATE: Final[str] = PIPE["TargetParameters"]["InputTemplate"]  # the text that the pipe fills in


def image(item: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    """Return an item in the form of a stream record, with binary in base64."""
    return {
        name: {"B": base64.b64encode(value).decode()}
        if isinstance(value, bytes)
        else marshalling.attribute(value)
        for name, value in item.items()
    }


def piped(item: Mapping[str, object]) -> dict[str, Any]:
    """Return the ``detail`` that the pipe puts on the bus.

    KeyError for an attribute that the item has not.
    """
    attributes = image(item)
    detail: dict[str, Any] = json.loads(
        PLACE.sub(lambda place: json.dumps(attributes[place[1]][place[2]]), TEMPLATE)
    )
    return detail
