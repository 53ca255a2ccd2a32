"""Hashes of payloads, which show that two different operations share a key.

The module also knows the fields of classes with data.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

VERSION: Final = "2"
"""Fingerprints of different versions are never compared, so a change of the form is not a
mismatch."""
EXACT_VERSION: Final = "2x"
"""Marks the fingerprint of a call: that of version 2, ``+``, and the hash of its exact form."""


def fingerprint(payload: object) -> str:
    """Return ``version:hash`` of a payload's content.

    The order of keys, the form of a whole number (``7`` or ``7.0``) and the classes of values make
    no difference: they can change on an event's way back. An enum member counts as its value.

    A field of a dataclass, Struct or pydantic model that equals its default is left out, so a class
    that gains a field with a default keeps its earlier fingerprints. A ``default_factory`` counts
    as a default if it is a built-in type, such as ``list``. Changing a default, or turning a
    dictionary into a class with defaults, changes the payload.

    Raises:
        ValueError: the payload holds a number that is not finite.
        TypeError: the payload holds a value that is neither JSON nor a dataclass, Struct, pydantic
            model, enum, date, time, UUID, Decimal, bytes or set of such.
        RecursionError: the payload is nested too deeply, or contains itself.
    """
    try:
        text = _canonical(payload)
        if ".0" in text or "e+" in text:
            text = _canonical(_plain(payload))
    except TypeError:  # the encoder takes no enum as a dictionary's key
        text = _canonical(_plain(payload))
    return f"{VERSION}:{_hash(text)}"


def exact_fingerprint(arguments: object) -> str:
    """Return the fingerprint of a call's arguments, which also tells their classes apart.

    A call gets what its caller passes, so an amount of another currency's class, bytes instead of
    their text, and a Decimal that no float equals are other arguments. An event is decoded anew at
    each delivery, so its classes say nothing.

    Raises:
        ValueError, TypeError, RecursionError: as `fingerprint`.
    """
    content = fingerprint(arguments).partition(":")[2]
    return f"{EXACT_VERSION}:{content}+{_hash(_canonical(_exact(arguments)))}"


def differ(stored: str | None, ours: str | None) -> bool:
    """Return whether two fingerprints mean different payloads.

    Fingerprints of different versions cannot be compared. The exact version adds to version 2, so
    of these two the common part is compared.
    """
    if stored is None or ours is None or stored == ours:
        return False
    stored_version, _, stored_hash = stored.partition(":")
    our_version, _, our_hash = ours.partition(":")
    if stored_version == our_version:
        return True
    if {stored_version, our_version} != {VERSION, EXACT_VERSION}:
        return False
    return stored_hash.partition("+")[0] != our_hash.partition("+")[0]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _exact(value: Any) -> Any:
    """Return ``value`` in JSON's own types.

    What `_plain` would take for something else is marked with its class.
    """
    if isinstance(value, Enum):
        return _exact(value.value)
    if isinstance(value, Decimal):
        plain = _plain(value)
        return plain if Decimal(repr(plain)) == value else _marked(Decimal, str(value.normalize()))
    if isinstance(value, bytes | bytearray):
        return _marked(bytes, value.hex())
    if isinstance(value, Mapping):
        names = _plain_mapping(value)
        return {name: _exact(inner) for name, inner in zip(names, value.values(), strict=True)}
    if isinstance(value, list | tuple):
        return [_exact(element) for element in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_exact, value), key=_canonical)
    kind: Any = type(value)
    if fields_of(kind) is None:
        return _plain(value)
    fields = {name: _exact(getattr(value, name)) for name in _plain_fields(value)}
    return _marked(kind, fields)


def _marked(kind: type, content: object) -> dict[str, object]:
    """Return content with its class, in a form that hardly any payload has."""
    return {"\0": [kind.__qualname__, content]}


def _plain(value: Any) -> Any:
    """Return ``value`` in JSON's own types, whole numbers as `int`."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    return _plain_instance(value)


def _plain_instance(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a JSON number")
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=_canonical)
    return _plain_fields(value)


def _plain_mapping(value: Mapping[Any, Any]) -> dict[Any, Any]:
    plain = {
        key.value if isinstance(key, Enum) and not isinstance(key, str | int) else key: _plain(
            inner
        )
        for key, inner in value.items()
    }
    if len(plain) != len(value):
        raise TypeError("a payload cannot hold a dictionary with two keys of the same value")
    return plain


def _plain_fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    known = _defaults(kind)
    if known is None:
        raise TypeError(
            f"a payload cannot hold a {kind.__qualname__}: its fingerprint would not be stable. "
            "Choose what is compared with payload="
        )
    plain = {}
    for name, default in known.items():
        inner = getattr(value, name)
        if default is not None and inner is default.value:
            continue
        content = _plain(inner)
        # `==` alone would take True for 1.
        if default is None or content != default.plain or _canonical(content) != default.text:
            plain[name] = content
    if hasattr(kind, "__pydantic_extra__"):
        plain |= _plain(value.__pydantic_extra__ or {})
    return plain


class Field(NamedTuple):
    """A field's default: a constant, or what ``make`` returns."""

    default: object = MISSING
    make: Callable[[], object] | None = None

    def fill(self) -> object:
        """Return the default of one value; raise a LookupError for a required field."""
        if self.make is not None:
            return self.make()
        if self.default is MISSING:
            raise LookupError("the field has no default")
        return self.default


def _of_dataclass(field: "DataclassField[Any]") -> Field:
    if field.default_factory is MISSING:
        return Field(field.default, None)
    return Field(field.default, field.default_factory)


@functools.lru_cache(maxsize=256)
def fields_of(kind: Any) -> dict[str, Field] | None:
    """Return the fields of a dataclass, msgspec Struct or pydantic model; None for any other."""
    if hasattr(kind, "__struct_fields__"):
        return _of_struct(kind)
    models: dict[str, Any] = getattr(kind, "__pydantic_fields__", {})
    if hasattr(kind, "__dataclass_fields__"):
        # A pydantic dataclass is both: its own fields know the defaults.
        return {
            each.name: _of_model(models[each.name]) if each.name in models else _of_dataclass(each)
            for each in fields(kind)
        }
    if hasattr(kind, "__pydantic_fields__"):
        return {name: _of_model(field) for name, field in models.items()}
    return None


def _of_struct(kind: Any) -> dict[str, Field]:
    import msgspec

    def field(default: Any) -> Field:
        if default is msgspec.NODEFAULT:
            return Field()
        if type(default).__module__ == "msgspec._core" and hasattr(default, "factory"):
            return Field(make=default.factory)
        return Field(default)

    names = kind.__struct_fields__
    required = len(names) - len(kind.__struct_defaults__)
    defaults = (msgspec.NODEFAULT,) * required + kind.__struct_defaults__
    return {name: field(default) for name, default in zip(names, defaults, strict=True)}


def _of_model(field: Any) -> Field:
    if field.is_required():
        return Field()
    if field.default_factory is not None:
        return Field(make=field.default_factory)
    # A copy of it.
    return Field(field.default, functools.partial(field.get_default, call_default_factory=True))


class _Default(NamedTuple):
    value: object
    plain: object
    text: str | None


@functools.lru_cache(maxsize=256)
def _defaults(kind: Any) -> dict[str, _Default | None] | None:
    known = fields_of(kind)
    return None if known is None else {name: _default(field) for name, field in known.items()}


def _default(field: Field) -> _Default | None:
    value = field.default
    if value is MISSING:
        if not isinstance(field.make, type) or field.make.__module__ != "builtins":
            return None
        value = field.make()
    try:
        plain = _plain(value)
        return _Default(value, plain, _canonical(plain))
    except (TypeError, ValueError):  # a marker such as object(), compared by identity
        return _Default(value, None, None)


_canonical = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=True,
    allow_nan=False,
    # JSON cannot contain itself; any other value that does raises a RecursionError.
    check_circular=False,
    default=_plain,
).encode
