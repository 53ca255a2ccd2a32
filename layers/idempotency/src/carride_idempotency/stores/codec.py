"""Encodes results as text, and decodes them to equal values.

A JSON value is stored as itself, any other value as ``{"$": [tag, content]}``. A dictionary with
the key ``$``, or with keys that are not strings, is stored as a tagged list of pairs, so no value
looks like a tag. Dataclasses, msgspec Structs, pydantic models, named tuples and enums are stored
with their class's name. It is looked up only among the loaded modules: a record can never make a
process import a module.

Classes change while records live. A stored field comes back as it was: ``__post_init__`` and
validators do not run again, because a second run could change or refuse what the first one made. A
field that the class has gained gets its default. Anything that no longer fits raises
`UndecodableResultError`.
"""

import base64
import functools
import json
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from carride_idempotency.errors import UndecodableResultError, describe
from carride_idempotency.fingerprint import Field, fields_of

_TAG: Final = "$"
_dump = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode
_load = json.JSONDecoder().decode


class UnencodableResultError(TypeError):
    """Raised for a value without a stored form; the operation is completed without it."""


def encode(value: object) -> str:
    """Return ``value`` as text that `decode` turns into an equal value of the same type.

    Raises:
        UnencodableResultError: a value cannot be rebuilt, is nested too deeply, or raises when it
            is read.
    """
    try:
        text = _dump(_pack(value))
        if not text.isascii():
            text.encode()
    except UnencodableResultError:
        raise
    except RecursionError as error:
        raise UnencodableResultError(
            "the value is nested too deeply, or contains itself"
        ) from error
    except Exception as error:  # raised by the code of the value's own class
        raise UnencodableResultError(describe(error)) from error
    return text


def decode(text: str) -> Any:
    """Return the value that was encoded.

    Raises:
        UndecodableResultError: its class is not loaded or has changed too much, or the text is
            damaged.
    """
    try:
        return _unpack(_load(text))
    except UndecodableResultError:
        raise
    except Exception as error:  # raised by the code of the value's own class
        raise UndecodableResultError(
            f"the stored result cannot be rebuilt: {describe(error)}"
        ) from error


def as_stored(text: str) -> str:
    """Return a text as `encode` writes it, if it is the stored form of a value.

    JSON is its own stored form, unless a dictionary of it has the key ``$``. No class needs to be
    loaded: the process that decodes it has the class.

    Raises:
        ValueError: the text is not JSON, or no stored form.
    """
    try:
        stored = json.loads(text, parse_constant=_no_constant)
        _require_form(stored)
        written = _dump(stored)
        written.encode()
    except ValueError:
        raise
    except Exception as error:  # it is nested too deeply, or its content does not fit its tag
        raise ValueError(describe(error)) from error
    return written


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _require_form(stored: Any) -> None:
    """Require what `_unpack` can read, as far as that is known without the classes."""
    if isinstance(stored, list):
        for element in stored:
            _require_form(element)
    if not isinstance(stored, dict):
        return
    if _TAG not in stored:
        _require_form(list(stored.values()))
        return
    if len(stored) != 1 or not isinstance(stored[_TAG], list):
        raise ValueError(f"{_TAG!r} is the only key of a tagged value, which is a list")
    tag, *content = stored[_TAG]
    if tag in _OF_A_CLASS:
        name, fields = content
        if not isinstance(name, str) or not all(name.partition(":")):
            raise ValueError(f"{name!r} is not a class: write module:Class")
        _require_form(fields)
    elif tag in _OF_VALUES:
        _require_form(_list(*content))
    else:
        _UNPACKERS[tag](*content)


# ── Values to JSON ────────────────────────────────────────────────────────────────────────────────


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
            return {_TAG: ["dict", _pack_pairs(value)]}
        packed[key] = _pack(inner)
    return packed


def _pack_pairs(value: dict[object, object]) -> list[list[Any]]:
    return [[_pack(key), _pack(inner)] for key, inner in value.items()]


def _pack_all(values: Iterable[Any]) -> list[Any]:
    return [_pack(value) for value in values]


def _pack_sorted(values: Iterable[Any]) -> list[Any]:
    # The same text in every process, whatever its hash seed.
    return sorted(_pack_all(values), key=_dump)


def _pack_instance(value: Any) -> list[Any]:
    kind: Any = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find_class(name) is not kind:
        raise UnencodableResultError(
            f"{name} cannot be found by its name, so a value of it could not be rebuilt"
        )
    if isinstance(value, Enum):
        return ["enum", name, _pack(value.value)]
    if _is_named_tuple(kind):
        return ["namedtuple", name, dict(zip(kind._fields, _pack_all(value), strict=True))]
    fields = fields_of(kind)
    if fields is None:
        raise UnencodableResultError(f"a value of {name} has no stored form")
    if _is_model(kind):  # its state, because a dump leaves out excluded fields and renames others
        state = value.__getstate__()
        content = {field: state["__dict__"][field] for field in fields}
        return ["pydantic", name, _pack(state | {"__dict__": content})]
    if not hasattr(kind, "__struct_fields__"):
        object.__new__(kind)  # raises for a class that cannot be rebuilt, such as an exception
    return ["fields", name, {field: _pack(getattr(value, field)) for field in fields}]


# ── JSON to values ────────────────────────────────────────────────────────────────────────────────


def _unpack(stored: Any) -> Any:
    kind = type(stored)
    if kind is list:
        return [_unpack(element) for element in stored]
    if kind is not dict:
        return stored
    if _TAG not in stored:
        return {key: _unpack(inner) for key, inner in stored.items()}
    if len(stored) != 1:
        raise UndecodableResultError(f"the stored result is damaged: {_TAG!r} does not stand alone")
    tag, *content = stored[_TAG]
    unpack = _UNPACKERS.get(tag)
    if unpack is not None:
        (only,) = content
        return unpack(only)
    return _unpack_instance(tag, *content)


def _unpack_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _unpack(inner) for name, inner in stored.items()}


def _list(content: Any) -> list[Any]:
    if type(content) is not list:
        raise UndecodableResultError(
            f"the stored result is damaged: {content!r:.100} is not a list"
        )
    return content


def _unpack_all(content: Any) -> Iterable[Any]:
    return map(_unpack, _list(content))


def _pack_bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _unpack_bytes(content: str) -> bytes:
    return base64.b64decode(content, validate=True)


def _pack_duration(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _unpack_pairs(content: Any) -> dict[Any, Any]:
    unpacked = {}
    for pair in _list(content):
        key, inner = _list(pair)
        unpacked[_unpack(key)] = _unpack(inner)
    return unpacked


_FORMS: Final[tuple[tuple[type, Callable[[Any], Any], Callable[[Any], Any]], ...]] = (
    (float, repr, float),
    (Decimal, str, Decimal),
    (datetime, datetime.isoformat, datetime.fromisoformat),
    (date, date.isoformat, date.fromisoformat),
    (time, time.isoformat, time.fromisoformat),
    (timedelta, _pack_duration, lambda content: timedelta(*content)),
    (uuid.UUID, str, uuid.UUID),
    (bytes, _pack_bytes, _unpack_bytes),
    (bytearray, _pack_bytes, lambda content: bytearray(_unpack_bytes(content))),
    (tuple, _pack_all, lambda content: tuple(_unpack_all(content))),
    (set, _pack_sorted, lambda content: set(_unpack_all(content))),
    (frozenset, _pack_sorted, lambda content: frozenset(_unpack_all(content))),
)
"""A class, and its values' way to JSON and back. The class's name in lower case is the tag."""
_PACKERS: Final = {kind: (kind.__name__.lower(), pack) for kind, pack, _ in _FORMS}
_UNPACKERS: Final[dict[str, Callable[[Any], Any]]] = {
    kind.__name__.lower(): unpack for kind, _, unpack in _FORMS
} | {"dict": _unpack_pairs}
_OF_VALUES: Final = frozenset({"tuple", "set", "frozenset", "dict"})
"""The tags whose content is a list of further values."""
_OF_A_CLASS: Final = frozenset({"enum", "namedtuple", "pydantic", "fields"})
"""The tags whose content is a class's name, and what `_unpack_instance` makes of it."""


_CLASS: Final[Any] = object.__dict__["__class__"]
"""The attribute of an object that holds its class."""


def _unpack_instance(tag: str, name: str, content: Any) -> Any:
    kind = _find_class(name)
    if kind is None:
        raise UndecodableResultError(
            f"the stored result is a {name}, which this process has not loaded"
        )
    if tag == "enum" and issubclass(kind, Enum):
        return kind(_unpack(content))
    if tag == "namedtuple" and _is_named_tuple(kind):
        return _rebuild_named_tuple(name, kind, _unpack_values(content))
    if tag == "pydantic" and _is_model(kind):
        return _rebuild_model(name, kind, _unpack(content))
    if tag == "fields" and fields_of(kind) is not None and not _is_model(kind):
        return _rebuild(name, kind, _unpack_values(content))
    raise UndecodableResultError(f"{name} has changed since the result was stored as {tag}")


def _rebuild_named_tuple(name: str, kind: Any, stored: dict[str, Any]) -> Any:
    _refuse_unknown(name, stored.keys() - set(kind._fields))
    content = kind._field_defaults | stored
    return kind._make([content[field] for field in kind._fields])


def _rebuild(name: str, kind: Any, stored: dict[str, Any]) -> Any:
    """Make a dataclass's instance or a Struct without running its own code."""
    if hasattr(kind, "__struct_fields__"):
        value = _without_hook(kind)(**stored)
        if type(value) is not kind:
            # Not by `object.__setattr__`, which Python 3.12 refuses for a frozen Struct.
            _CLASS.__set__(value, kind)
        return value
    value = object.__new__(kind)
    for field, content in _filled(name, kind, stored).items():
        object.__setattr__(value, field, content)
    return value


def _rebuild_model(name: str, kind: Any, state: dict[str, Any]) -> Any:
    """Make a pydantic model, from what its ``__getstate__`` returned."""
    extra = state["__pydantic_extra__"] or {}
    # What was an extra when it was stored may be a field by now.
    fields = [field for field in kind.__pydantic_fields__ if field in extra]
    stored = state["__dict__"] | {field: extra.pop(field) for field in fields}
    takes_extra = kind.model_config.get("extra") == "allow"
    if not takes_extra:
        _refuse_unknown(name, extra)
    private = _private_attributes(name, kind, state["__pydantic_private__"] or {})
    model: Any = kind.__new__(kind)
    model.__setstate__(
        state
        | {
            "__dict__": _filled(name, kind, stored),
            "__pydantic_extra__": extra if takes_extra else None,
            "__pydantic_private__": private if kind.__private_attributes__ else None,
        }
    )
    return model


def _private_attributes(name: str, kind: Any, stored: dict[str, Any]) -> dict[str, Any]:
    """Return a model's private attributes; those that the class has gained get their defaults."""
    from pydantic_core import PydanticUndefined

    declared = kind.__private_attributes__
    _refuse_unknown(name, stored.keys() - declared.keys())
    content = dict(stored)
    for attribute in declared.keys() - stored.keys():
        default = declared[attribute].get_default()
        if default is not PydanticUndefined:
            content[attribute] = default
    return content


def _filled(name: str, kind: Any, stored: dict[str, Any]) -> dict[str, Any]:
    """Return the content of all fields; those that the class has gained get their defaults."""
    fields: dict[str, Field] = fields_of(kind) or {}
    if stored.keys() == fields.keys():
        return stored
    _refuse_unknown(name, stored.keys() - fields.keys())
    return {
        field: stored[field] if field in stored else default.fill()
        for field, default in fields.items()
    }


def _refuse_unknown(name: str, unknown: Iterable[str]) -> None:
    lost = sorted(unknown)
    if lost:
        raise UndecodableResultError(
            f"{name} no longer has what the stored result holds: {', '.join(lost)}"
        )


@functools.lru_cache(maxsize=256)
def _without_hook(kind: Any) -> Any:
    """Return a Struct whose constructor does not call ``__post_init__``.

    The library msgspec has no other way to make a Struct without calling it.
    """
    if not hasattr(kind, "__post_init__"):
        return kind

    def __post_init__(self: object) -> None:  # noqa: N807 - a method of the class below
        pass

    return type(kind)(
        kind.__name__, (kind,), {"__module__": kind.__module__, "__post_init__": __post_init__}
    )


# ── Classes ───────────────────────────────────────────────────────────────────────────────────────


def _is_named_tuple(kind: Any) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_fields__") and not hasattr(kind, "__dataclass_fields__")


def _find_class(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
