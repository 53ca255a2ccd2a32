"""What the template's pipe makes of an item of the outbox, as DynamoDB's stream hands it over."""

import base64
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from idempotency import marshalling
from tests.template.stack import Properties, source

PLACE: Final = re.compile(r"<\$\.dynamodb\.NewImage\.(\w+)\.([A-Z]+)>")
"""Where the pipe puts an attribute of the item, by name and type."""


@cache
def pipe() -> Properties:
    """Return the properties of the pipe in the template."""
    properties: Properties = source()["Resources"]["OutboxPipe"]["Properties"]
    return properties


def template() -> str:
    """Return the text that the pipe fills in."""
    text: str = pipe()["TargetParameters"]["InputTemplate"]
    return text


def image(item: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    """Return an item as it stands in a stream record: binary is base64 there."""
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
