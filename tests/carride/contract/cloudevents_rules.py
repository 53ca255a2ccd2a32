"""What CloudEvents 1.0.2 and its JSON format demand of an event, as a schema and as the SDK reads it."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from jsonschema import Draft7Validator, FormatChecker

_OPTIONAL_TEXT: Final = {"type": ["string", "null"], "minLength": 1}

RULES: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["id", "source", "specversion", "type"],
    # Attribute names are lower-case letters and digits, and should be at most 20; `data_base64` is the one exception.
    "propertyNames": {"pattern": "^([a-z0-9]{1,20}|data_base64)$"},
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1, "format": "uri-reference"},
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "minLength": 1},
        "datacontenttype": _OPTIONAL_TEXT,
        "dataschema": {**_OPTIONAL_TEXT, "format": "uri"},
        "subject": _OPTIONAL_TEXT,
        "time": {**_OPTIONAL_TEXT, "format": "date-time"},
        "data": {},
        "data_base64": {"type": ["string", "null"], "contentEncoding": "base64"},
    },
    # Extensions are of the types of attributes: a string, a boolean or a 32-bit integer.
    "additionalProperties": {
        "type": ["string", "boolean", "integer", "null"],
        "minimum": -(2**31),
        "maximum": 2**31 - 1,
    },
    "not": {"required": ["data", "data_base64"]},
}

FORMATS: Final = FormatChecker(())
"""The formats that are used here; jsonschema checks them by itself only where further packages are installed."""


@FORMATS.checks("date-time", ValueError)
def _is_date_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).utcoffset() is not None


@FORMATS.checks("uri", ValueError)
def _is_uri(value: object) -> bool:
    return not isinstance(value, str) or bool(urlsplit(value).scheme)


@FORMATS.checks("uri-reference", ValueError)
def _is_uri_reference(value: object) -> bool:
    return not isinstance(value, str) or re.fullmatch(r"[!#$%&'()*+,./:;=?@\[\]\w~-]+", value, re.ASCII) is not None


_validator: Final = Draft7Validator(RULES, format_checker=FORMATS)


def data_of(detail: Mapping[str, Any]) -> object:
    """Return an event's data, from whichever of its two members it is in."""
    if "data_base64" in detail:
        return json.loads(base64.b64decode(detail["data_base64"]))
    return detail["data"]


def assert_cloud_event(detail: Mapping[str, Any]) -> None:
    """Fail unless the detail is a CloudEvents event by the rules, which the SDK reads and writes unchanged."""
    _validator.validate(detail)
    text = json.dumps(detail)
    event = JSONFormat().read(CloudEvent, text)
    assert (event.get_id(), event.get_type()) == (detail["id"], detail["type"])
    data = event.get_data()
    assert (json.loads(data) if isinstance(data, bytes) else data) == data_of(detail)
    assert JSONFormat().read(CloudEvent, JSONFormat().write(event)).get_attributes() == event.get_attributes()
