"""A hash of a payload, by which two operations that share a key are told apart."""

import hashlib
import json
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

VERSION: Final = "1"
"""Fingerprints of different versions are never compared, so that a change of the form is no mismatch."""


def fingerprint(payload: object) -> str:
    """Return ``version:hash`` of a payload's content.

    The order of keys, how a whole number is written (``7`` or ``7.0``) and the classes that carry the data make no
    difference: none of them survives every road by which an event can come back.

    Raises:
        ValueError: the payload holds a number that is not finite.
        TypeError: the payload holds a value that is neither JSON nor a dataclass, Struct, pydantic model, enum, date,
            time, UUID, Decimal, bytes or set of such.
    """
    text = _canonical(payload)
    if ".0" in text or "e+" in text:
        text = _canonical(_whole(json.loads(text)))
    return f"{VERSION}:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _plain(value: Any) -> object:
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted((_whole(json.loads(_canonical(element))) for element in value), key=_canonical)
    if isinstance(value, Mapping):
        return dict(value)
    kind = type(value)
    for marker in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__"):
        if hasattr(kind, marker):
            return {name: getattr(value, name) for name in getattr(kind, marker)}
    raise TypeError(f"a payload cannot hold a {kind.__qualname__}: its fingerprint would not be stable")


_canonical = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=True,
    allow_nan=False,
    check_circular=False,  # what came as JSON cannot contain itself; anything else that does recurses too deeply
    default=_plain,
).encode


def _number(value: Decimal) -> int | float:
    if not value.is_finite():
        raise ValueError(f"{value} is no number that JSON can hold")
    return int(value) if value == value.to_integral_value() else float(value)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(element) for element in value]
    return value
