"""Results to text and back, equal to what they were.

A JSON value is stored as itself. Whatever JSON cannot hold is stored as ``{"$": [tag, content]}``; a dictionary that
has the key ``$`` by itself, or keys that are no strings, is stored as a tagged list of pairs, so that nothing can pass
for a tag. Dataclasses, msgspec Structs, pydantic models, named tuples and enums are stored with their class's name,
which is looked up among the modules that the process has loaded: a record can never make a process import a module.
"""

import base64
import json
import math
import sys
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from idempotency.errors import UndecodableResultError

_TAG: Final = "$"
_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False).encode
_load = json.JSONDecoder().decode


class UnencodableResultError(TypeError):
    """Raised for a value that has no stored form; the caller completes the operation without it."""


def encode(value: object) -> str:
    """Return ``value`` as text that `decode` turns into an equal value of the same type.

    Raises:
        UnencodableResultError: the value, or something inside it, is of a type that cannot be rebuilt.
    """
    try:
        text = _dump(_pack(value))
        if not text.isascii():
            text.encode()
    except UnencodableResultError:
        raise
    except RecursionError as error:
        raise UnencodableResultError("the value is nested too deeply, or contains itself") from error
    except (ValueError, AttributeError, TypeError) as error:  # of the value's own making, and of no store's
        raise UnencodableResultError(f"{type(error).__name__}: {error}") from error
    return text


def decode(text: str) -> Any:
    """Return the value that was encoded.

    Raises:
        UndecodableResultError: it is of a class that this process has not loaded.
    """
    return _unpack(_load(text))


def _pack(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict:
        return _pack_dict(value)
    if kind is list:
        return [_pack(element) for element in value]
    if kind is float and math.isfinite(value):
        return value
    simple = _PACKERS.get(kind)
    if simple is not None:
        tag, pack = simple
        return {_TAG: [tag, pack(value)]}
    return {_TAG: _pack_instance(value)}


def _pack_dict(value: dict[object, object]) -> Any:
    packed: dict[str, Any] = {}
    for key, inner in value.items():
        if type(key) is not str or key == _TAG:
            return {_TAG: ["dict", [[_pack(key), _pack(inner)] for key, inner in value.items()]]}
        packed[key] = _pack(inner)
    return packed


def _pack_all(values: Any) -> list[Any]:
    return [_pack(value) for value in values]


def _pack_sorted(values: Any) -> list[Any]:
    return sorted(_pack_all(values), key=_dump)  # the same text in every process, whatever its hash seed


_PACKERS: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    float: ("float", repr),
    Decimal: ("decimal", str),
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    uuid.UUID: ("uuid", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    bytearray: ("bytearray", lambda value: base64.b64encode(value).decode()),
    complex: ("complex", lambda value: [repr(value.real), repr(value.imag)]),
    tuple: ("tuple", _pack_all),
    set: ("set", _pack_sorted),
    frozenset: ("frozenset", _pack_sorted),
}

_UNPACKERS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float,
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda content: timedelta(*content),
    "uuid": uuid.UUID,
    "bytes": base64.b64decode,
    "bytearray": lambda content: bytearray(base64.b64decode(content)),
    "complex": lambda content: complex(float(content[0]), float(content[1])),
    "tuple": lambda content: tuple(map(_unpack, content)),
    "set": lambda content: set(map(_unpack, content)),
    "frozenset": lambda content: frozenset(map(_unpack, content)),
    "dict": lambda content: {_unpack(key): _unpack(inner) for key, inner in content},
}


def _pack_instance(value: Any) -> list[Any]:
    kind: Any = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find_class(name) is not kind:
        raise UnencodableResultError(f"{name} cannot be found by its name, so a value of it could not be rebuilt")
    if isinstance(value, Enum):
        return ["enum", name, _pack(value.value)]
    if hasattr(kind, "model_fields"):  # its own state: what it dumps leaves out excluded fields and renames others
        return ["pydantic", name, _pack(value.__getstate__())]
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__"):
        fields = getattr(kind, "__struct_fields__", None) or tuple(kind.__dataclass_fields__)
        return ["fields", name, {field: _pack(getattr(value, field)) for field in fields}]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return ["namedtuple", name, _pack_all(value)]
    raise UnencodableResultError(f"a value of {name} has no stored form")


def _unpack(stored: Any) -> Any:
    kind = type(stored)
    if kind is list:
        return [_unpack(element) for element in stored]
    if kind is not dict:
        return stored
    if _TAG not in stored:
        return {key: _unpack(inner) for key, inner in stored.items()}
    tag, *content = stored[_TAG]
    unpack = _UNPACKERS.get(tag)
    if unpack is not None:
        return unpack(content[0])
    return _unpack_instance(tag, *content)


def _unpack_instance(tag: str, name: str, content: Any) -> Any:
    kind = _find_class(name)
    if kind is None:
        raise UndecodableResultError(f"the stored result is a {name}, which this process has not loaded")
    if tag == "enum" and issubclass(kind, Enum):
        return kind(_unpack(content))
    if tag == "pydantic" and hasattr(kind, "model_fields"):
        model: Any = kind.__new__(kind)
        model.__setstate__(_unpack(content))
        return model
    if tag == "namedtuple" and issubclass(kind, tuple):
        return kind(*map(_unpack, content))
    if tag == "fields" and hasattr(kind, "__struct_fields__"):
        return kind(**{field: _unpack(inner) for field, inner in content.items()})
    if tag == "fields" and hasattr(kind, "__dataclass_fields__"):
        # The fields as they were: __post_init__ has already run on them, and init=False fields belong to them.
        value: Any = object.__new__(kind)
        for field, inner in content.items():
            object.__setattr__(value, field, _unpack(inner))
        return value
    raise UndecodableResultError(f"{name} is no longer what it was when the result was stored as {tag}")


def _find_class(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
