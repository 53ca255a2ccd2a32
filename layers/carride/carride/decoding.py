"""Converts JSON-like values to typed ones; an error names the field."""

import msgspec
from msgspec import Struct


def json_name(name: str) -> str:
    """Return a field's name in JSON, such as ``orderID`` for ``order_id``."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


class FieldError(ValueError):
    """Raised for an invalid value; ``field`` is the JSON name of the field at fault."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def shaped[S: Struct](raw: object, shape: type[S], *, strict: bool = True) -> S:
    """Convert ``raw``, a value in JSON's types, to a ``shape``.

    ``strict`` refuses strings for numbers.

    Raises:
        FieldError: the value has another shape.
    """
    try:
        return msgspec.convert(raw, shape, strict=strict)
    except msgspec.ValidationError as error:
        raise FieldError(_field_at_fault(raw, shape, strict=strict), str(error)) from error


def _field_at_fault(raw: object, shape: type[Struct], *, strict: bool) -> str:
    if not isinstance(raw, dict):
        return shape.__name__
    fields = msgspec.structs.fields(shape)
    for field in fields:
        if field.encode_name not in raw:
            if field.required:
                return field.encode_name
            continue
        try:
            msgspec.convert(raw[field.encode_name], field.type, strict=strict)
        except msgspec.ValidationError:
            return field.encode_name
    unknown: set[str] = raw.keys() - {field.encode_name for field in fields}
    return min(unknown)
