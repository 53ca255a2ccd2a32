"""Turns JSON-like values into typed ones, and names the field when it cannot."""

import msgspec
from msgspec import Struct


def json_name(name: str) -> str:
    """Return a field's name in JSON: ``order_id`` is ``orderID``, ``previous_price`` is ``previousPrice``."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


class ShapeError(ValueError):
    """Raised when a value has not the shape that was asked for; ``field`` is the one at fault, by its JSON name."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def shaped[S: Struct](raw: object, shape: type[S], *, strict: bool = True) -> S:
    """Return ``raw`` as a ``shape``.

    Args:
        raw: what a JSON parser makes of an object.
        shape: the Struct to make of it.
        strict: whether a number in a string is refused where a number is asked for.

    Raises:
        ShapeError: it does not fit.
    """
    try:
        return msgspec.convert(raw, shape, strict=strict)
    except msgspec.ValidationError as error:
        raise ShapeError(_field_at_fault(raw, shape, strict=strict), str(error)) from error


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
