"""DynamoDB's wire format (``{"S": "…"}``, ``{"N": "1"}``) to Python values and back.

botocore speaks the wire format; the converter that AWS ships is in boto3, whose import a consumer need not pay for.
"""

from collections.abc import Mapping
from decimal import Decimal

from idempotency.errors import EffectsRejectedError

type AttributeValue = dict[str, object]


def item(values: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Convert a mapping of attribute names to Python values.

    Raises:
        EffectsRejectedError: a value has no form in DynamoDB; a `float` has none, so that no money is rounded.
    """
    return {name: attribute(value) for name, value in values.items()}


def attribute(value: object) -> AttributeValue:
    """Convert one Python value."""
    if isinstance(value, str):
        return {"S": str(value)}
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | Decimal):
        return {"N": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"B": bytes(value)}
    if isinstance(value, Mapping):
        return {"M": item(value)}
    if isinstance(value, list | tuple):
        return {"L": [attribute(element) for element in value]}
    if isinstance(value, set | frozenset) and value:
        elements = [attribute(element) for element in sorted(value, key=repr)]
        kinds = {kind for element in elements for kind in element}
        if len(kinds) == 1 and kinds <= {"S", "N", "B"}:
            return {f"{kinds.pop()}S": [content for element in elements for content in element.values()]}
    raise EffectsRejectedError(
        f"{value!r} ({type(value).__name__}) cannot be stored in DynamoDB: use str, int, Decimal, bytes, bool, None, "
        "lists, dicts, or non-empty sets of one type"
    )


def value(attribute_value: AttributeValue) -> object:
    """Convert one wire value; numbers become `int` where they are whole, else `Decimal`."""
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
