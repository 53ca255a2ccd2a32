"""Converts Python values to DynamoDB's wire format (``{"S": "…"}``, ``{"N": "1"}``) and back.

botocore uses the wire format. AWS's own converter is in boto3, which would slow down a cold start.
"""

import marshal
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from carride_idempotency.errors import EffectsRejectedError

type AttributeValue = dict[str, object]

_DEEPEST: Final = 32
"""Levels of maps and lists in an item; the item itself is the first."""
_LARGEST_ITEM: Final = 400 * 1024
_MOST_DIGITS: Final = 38
_SURELY_SHORT: Final = 10**_MOST_DIGITS
_LEAST_EXPONENT: Final = -130
_LARGEST_EXPONENT: Final = 125


class Converted(Mapping[str, object]):
    """A copy of a mapping in the wire format, which reads as Python values."""

    __slots__ = ("wire",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self.wire: Final = item(values)

    def __getitem__(self, name: str) -> object:
        return value(self.wire[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.wire)

    def __len__(self) -> int:
        return len(self.wire)

    def __repr__(self) -> str:
        return repr(dict(self))


def item(values: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Convert a mapping of attribute names to Python values.

    Raises:
        EffectsRejectedError: a value has no form in DynamoDB (a `float` has none), or exceeds its
            limits.
    """
    return values.wire if type(values) is Converted else _map(values, 1)


def is_too_large(stored: dict[str, Any]) -> bool:
    """Return whether an item is clearly larger than DynamoDB's 400 KB."""
    if most_size(stored) <= _LARGEST_ITEM:
        return False
    return least_size(stored) > _LARGEST_ITEM


def room_beside(stored: dict[str, Any]) -> int:
    """Return how many bytes an item can surely hold beside these attributes."""
    return _LARGEST_ITEM - most_size(stored)


def most_size(stored: dict[str, Any]) -> int:
    """Return an upper bound of an item's size. It is quick."""
    return len(marshal.dumps(stored, 2))


def least_size(stored: Mapping[str, AttributeValue]) -> int:
    """Return a lower bound of an item's size, as DynamoDB counts it.

    A number counts as one byte.
    """
    return sum([_bytes(name) + _size(inner) for name, inner in stored.items()])


def _size(attribute_value: AttributeValue) -> int:
    content: Any
    ((kind, content),) = attribute_value.items()
    if kind in {"S", "B"}:
        return _bytes(content)
    if kind == "M":
        return 3 + least_size(content)
    if kind == "L":
        return 3 + sum(map(_size, content))
    return sum(map(_bytes, content)) if kind in {"SS", "BS"} else 1


def _bytes(content: str | bytes) -> int:
    return (
        len(content) if content.isascii() or isinstance(content, bytes) else len(content.encode())
    )


def _map(values: Mapping[str, object], depth: int) -> dict[str, AttributeValue]:
    _refuse_deeper(depth)
    return {
        name if type(name) is str and name.isascii() and name else _name(name): attribute(
            value, depth
        )
        for name, value in values.items()
    }


def _name(name: object) -> str:
    converted = attribute(name, 1).get("S")
    if not isinstance(converted, str) or not converted:
        raise EffectsRejectedError(
            f"an attribute's name is a string of at least one character, not {name!r:.100}"
        )
    return converted


def attribute(value: Any, depth: int = 1) -> AttributeValue:
    """Convert one Python value.

    An enum member or an instance of a subclass becomes its plain value.
    """
    kind = type(value)
    if kind is str:
        return {"S": value if value.isascii() else encodable(value)}
    if value is None:
        return {"NULL": True}
    if kind is bool:
        return {"BOOL": value}
    if kind is int and -_SURELY_SHORT < value < _SURELY_SHORT:
        return {"N": str(value)}
    if kind is dict:
        return {"M": _map(value, depth + 1)}
    return _other(value, depth)


def _other(value: object, depth: int) -> AttributeValue:
    if isinstance(value, Enum):
        return attribute(value.value, depth)
    if isinstance(value, str):
        return {"S": encodable(str.__str__(value))}
    if isinstance(value, int | Decimal):
        return {"N": _number_text(Decimal(value))}
    if isinstance(value, bytes | bytearray):
        return {"B": bytes(value)}
    if isinstance(value, Mapping):
        return {"M": _map(value, depth + 1)}
    if isinstance(value, list | tuple):
        _refuse_deeper(depth + 1)
        return {"L": [attribute(element, depth + 1) for element in value]}
    if isinstance(value, set | frozenset) and value:
        contents: list[tuple[str, Any]] = [
            pair for element in value for pair in attribute(element, depth).items()
        ]
        kinds = {kind for kind, _ in contents}
        if len(kinds) == 1 and kinds <= {"S", "N", "B"}:
            return {f"{kinds.pop()}S": sorted({content for _, content in contents})}
    raise EffectsRejectedError(
        f"{value!r:.100} ({type(value).__name__}) cannot be stored in DynamoDB: "
        "use str, int, Decimal (for a float: "
        "Decimal(str(number))), bytes, bool, None, lists, dicts, or non-empty sets of one type"
    )


def _refuse_deeper(depth: int) -> None:
    if depth > _DEEPEST:
        raise EffectsRejectedError(
            f"DynamoDB nests {_DEEPEST} levels at most; this value has more, or contains itself"
        )


def encodable(text: str) -> str:
    """Return ``text``.

    Raises:
        EffectsRejectedError: it holds a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EffectsRejectedError(
            f"{text!r:.100} holds a lone surrogate: it cannot be written as UTF-8"
        ) from error
    return text


def _number_text(number: Decimal) -> str:
    if number.is_finite():
        digits = number.as_tuple().digits
        fits = (
            len(digits) <= _MOST_DIGITS or len("".join(map(str, digits)).strip("0")) <= _MOST_DIGITS
        )
        if fits and (not number or _LEAST_EXPONENT <= number.adjusted() <= _LARGEST_EXPONENT):
            return str(number)
    raise EffectsRejectedError(
        f"DynamoDB holds numbers of {_MOST_DIGITS} digits between 1E{_LEAST_EXPONENT} and "
        f"1E{_LARGEST_EXPONENT + 1}, "
        f"but not {number!s:.100}"
    )


def value(attribute_value: AttributeValue) -> object:
    """Convert one wire value; a number becomes an `int` if it is whole, else a `Decimal`."""
    ((kind, content),) = attribute_value.items()
    match kind, content:
        case "N", str():
            return _number(content)
        case "M", dict():
            return {name: value(inner) for name, inner in content.items()}
        case "L", list():
            return [value(inner) for inner in content]
        case "NULL", _:
            return None
        case "NS", list():
            return {_number(inner) for inner in content}
        case (("SS" | "BS"), list()):
            return set(content)
        case _:
            return content


def values(stored: Mapping[str, AttributeValue]) -> dict[str, object]:
    """Convert a stored item; the inverse of `item`."""
    return {name: value(inner) for name, inner in stored.items()}


def _number(text: str) -> int | Decimal:
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else number
