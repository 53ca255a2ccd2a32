"""Python values to DynamoDB's wire format and back."""

from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

from idempotency import wire
from idempotency.errors import EffectsRejectedError

VALUES: list[Any] = [
    "text",
    "",
    0,
    -7,
    10**30,
    Decimal("1.10"),
    True,
    False,
    None,
    b"\x00\xff",
    [],
    [1, ["a", None]],
    {},
    {"a": {"b": [Decimal("0.5")]}},
    {"a", "b"},
    {1, Decimal("2.5")},
    {b"x", b"y"},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_is_written_as_aws_own_converter_writes_it(value: Any) -> None:
    """The wire form is that of boto3, whose import a consumer need not pay for."""
    written: Any = wire.attribute(value)
    ((kind, content),) = written.items()
    aws: Any = TypeSerializer().serialize(value)
    ((expected_kind, expected),) = aws.items()
    assert kind == expected_kind
    assert content == expected or (isinstance(value, set) and set(content) == set(expected))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_comes_back(value: Any) -> None:
    """What was written is read again, with whole numbers as int."""
    back = wire.value(wire.attribute(value))
    assert back == value
    assert type(back) is type(value)


def test_tuple_is_a_list_and_a_text_with_a_class_is_text() -> None:
    """Kinds that DynamoDB does not know are written as the nearest that it knows."""

    class Status(StrEnum):
        ACCEPTED = "accepted"

    assert wire.attribute((1, "a")) == {"L": [{"N": "1"}, {"S": "a"}]}
    written = wire.attribute(Status.ACCEPTED)
    assert written == {"S": "accepted"}
    assert type(written["S"]) is str


@pytest.mark.parametrize(
    "value",
    [1.5, float("nan"), set(), frozenset(), {1, "a"}, {True}, {None}, object(), {"a": [1.5]}, [object()]],
    ids=lambda value: type(value).__name__,
)
def test_value_without_a_wire_form_is_refused(value: object) -> None:
    """Nothing is rounded or guessed: what DynamoDB cannot hold as it is, is refused before anything is sent."""
    with pytest.raises(EffectsRejectedError):
        wire.attribute(value)


def test_item_is_the_inverse_of_values() -> None:
    """A whole item goes and comes back."""
    values = {"id": "order_01", "passengers": 2, "price": Decimal("9.50"), "stops": ["a"]}
    stored = wire.item(values)
    assert wire.values(stored) == values
    read: Any = TypeDeserializer().deserialize
    assert {name: read(attribute) for name, attribute in stored.items()} == values
