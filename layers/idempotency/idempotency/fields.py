"""The fields of the classes that carry data, and their defaults."""

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, NamedTuple


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


@functools.lru_cache(maxsize=256)
def fields_of(kind: Any) -> dict[str, Field] | None:
    """Return the fields of a dataclass, msgspec Struct or pydantic model; None for any other class."""
    if hasattr(kind, "__struct_fields__"):
        return _of_struct(kind)
    models: dict[str, Any] = getattr(kind, "__pydantic_fields__", {})
    if hasattr(kind, "__dataclass_fields__"):
        return {
            field.name: _of_model(models[field.name])
            if field.name in models  # a pydantic dataclass: its own fields know the defaults
            else Field(field.default, None if field.default_factory is MISSING else field.default_factory)
            for field in fields(kind)
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
    return Field(field.default, functools.partial(field.get_default, call_default_factory=True))  # a copy of it
