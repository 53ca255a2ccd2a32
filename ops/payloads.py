"""Shows events as people read them."""

import base64
import json
from typing import Any


def readable(event: Any) -> Any:
    """Return an event with its data as JSON, which the outbox's pipe publishes in base64.

    What is no such event, or has data that cannot be read, stays as it is.
    """
    match event:
        case {"detail": {"data_base64": str(encoded), **rest}} if "data" not in rest:
            data = _decoded(encoded)
            return event if data is None else {**event, "detail": {**rest, "data": data}}
    return event


def _decoded(encoded: str) -> Any:
    """Return the JSON in a text of base64; None if there is none."""
    try:
        return json.loads(base64.b64decode(encoded, validate=True))
    except (ValueError, RecursionError):
        return None
