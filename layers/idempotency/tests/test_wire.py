"""Python values, and effects made of them, to DynamoDB's wire format."""

import copy
import enum
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from boto3.dynamodb.types import TypeDeserializer

from carride_idempotency import marshalling
from carride_idempotency.effects import Check, Delete, Keep, Put, Update, action_of, prepared
from carride_idempotency.errors import EffectsRejectedError
from tests.samples import Text

Status = enum.Enum("Status", {"PAID": "PAID"}, type=str)
Size = enum.Enum("Size", {"ONE": 1}, type=int)
Pair = enum.Enum("Pair", {"PAIR": ("a", "b")})


class Number(int):
    """A number that prints as another one."""

    __str__ = __repr__ = lambda self: "7"


def _nested(levels: int, inner: Any = None, kind: str | None = None) -> Any:
    for _ in range(levels):
        inner = [inner] if kind is None else {kind: [inner]}
    return inner


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (
            {"ß": True, "a": [None, b"\xff"]},
            {"M": {"ß": {"BOOL": True}, "a": {"L": [{"NULL": True}, {"B": b"\xff"}]}}},
        ),
        ((1, "ü"), {"L": [{"N": "1"}, {"S": "ü"}]}),
        (Text("text"), {"S": "text"}),
        (Number(1), {"N": "1"}),
        (Pair.PAIR, {"L": [{"S": "a"}, {"S": "b"}]}),
        (MappingProxyType({Status.PAID: bytearray(b"\0")}), {"M": {"PAID": {"B": b"\0"}}}),
        ({Status.PAID, Text("b"), "c"}, {"SS": ["PAID", "b", "c"]}),
        (frozenset({Size.ONE, 2, Decimal("0.5")}), {"NS": ["0.5", "1", "2"]}),
        ({b"b", b"a"}, {"BS": [b"a", b"b"]}),
        (_nested(31), _nested(31, {"NULL": True}, "L")),
    ],
)
def test_value_is_written_as_what_it_stands_for(value: object, written: Any) -> None:
    """Other types are written as DynamoDB's nearest type, and read as AWS reads them."""
    assert marshalling.attribute(value) == written
    assert {type(content) for content in marshalling.attribute(value).values()} <= {
        str,
        bytes,
        list,
        dict,
    }
    read: Any = TypeDeserializer().deserialize(copy.deepcopy(written))
    assert marshalling.values({"a": written}) == {"a": read.value if "B" in written else read}


@pytest.mark.parametrize(
    "text", ["1.50", "1E-130", f"-9.{'9' * 37}E+125", f"{'9' * 38}.000", f"-1{'0' * 39}", "0E+999"]
)
def test_number_is_written_if_dynamodb_can_hold_it(text: str) -> None:
    """A number that fits into DynamoDB's digits and exponents is written exactly."""
    number = Decimal(text)
    assert marshalling.attribute(number) == {"N": text}
    assert marshalling.value({"N": text}) == number
    if text.lstrip("-").isdecimal():
        assert marshalling.attribute(int(number)) == {"N": text}


def _circle() -> dict[str, object]:
    circle: dict[str, object] = {}
    circle["circle"] = circle
    return circle


NO_SETS: list[Any] = [set(), {1, "a"}, {True}, {None}]
NO_TEXTS: list[Any] = ["\ud83d", {"\ud83d": 1}, {"": 1}, {1: "a"}]
NO_NUMBERS = [
    1.5,
    10**38 + 1,
    -(10**38) - 1,
    Decimal("NaN"),
    Decimal("-Infinity"),
    Decimal("1E-131"),
    Decimal("1E126"),
]


@pytest.mark.parametrize(
    "value", [object(), _nested(32), _circle(), *NO_NUMBERS, *NO_SETS, *NO_TEXTS], ids=type
)
def test_value_that_dynamodb_cannot_hold_is_refused(value: object) -> None:
    """A value that DynamoDB cannot hold exactly is refused, alone or nested."""
    for within in (value, [value], {"a": value}):
        with pytest.raises(EffectsRejectedError):
            marshalling.attribute(within)


KEY = {"id": "order_01"}
EFFECTS: list[Any] = [
    Put("Rides", {**KEY, "n": [1]}, "#s = :s", {":s": {"a": [1]}}, {"#s": "status"}),
    Update(
        "Rides",
        {**KEY, "at": 1},
        "SET #s = :s",
        "#s <> :s",
        {":s": Decimal("1.5")},
        {"#s": "status"},
    ),
    Delete("Rides", KEY, "#s = :s", {":s": "b"}, {"#s": "status"}),
    Check("Rides", KEY, "attribute_exists(id)"),
    Keep({"orderID": "order_01", "entry": {"n": [1]}}),
]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: type(effect).__name__)
def test_effect_is_fixed_when_it_is_registered(effect: Any) -> None:
    """Later changes of the values do not change a registered effect."""
    registered = copy.deepcopy(effect)
    ready: Any = prepared(registered)
    for part in registered:
        if isinstance(part, dict):
            part.clear()
    assert ready == effect == prepared(ready)
    if not isinstance(effect, Keep):
        assert action_of(ready) == action_of(effect)
        assert [*action_of(ready)] == [
            "ConditionCheck" if isinstance(effect, Check) else type(effect).__name__
        ]
    assert type(ready) is type(effect)


BAD: dict[str, list[object]] = {
    "table": ["", None],
    "item": [{}, {"price": 9.5}],
    "attributes": [{}, {"price": 9.5}, {"status": "PAID"}],
    "key": [{}, "order_01", {"id": ""}, {"id": ["a"]}, {"a": 1, "b": 2, "c": 3}],
    "expression": [""],
    "condition": [""],
    "values": [[1], {":n": 9.5}],
    "names": [["#n"], {"#n": 1}, {"#n": "\ud83d"}],
}


@pytest.mark.parametrize(
    ("part", "bad"), [(part, bad) for part, values in BAD.items() for bad in values]
)
def test_effect_that_can_never_be_written_is_refused(part: str, bad: object) -> None:
    """The handler gets the error when it registers the effect."""
    no_effects: list[Any] = [EFFECTS, {"Put": {}}]
    for effect in [
        *no_effects,
        *(effect._replace(**{part: bad}) for effect in EFFECTS if part in effect._fields),
    ]:
        with pytest.raises(EffectsRejectedError):
            prepared(effect)


@pytest.mark.parametrize(
    "value",
    [
        lambda size: "x" * size,
        lambda size: "ß" * (size // 2),
        lambda size: [b"x" * size],
        lambda size: {"x" * size},
        lambda size: {"ß" * (size // 2): True},
    ],
)
def test_item_over_400_kb_is_refused(value: Callable[[int], object]) -> None:
    """An item with more bytes than DynamoDB takes is refused, and a smaller one is not."""
    prepared(Put("Rides", {"id": value(409_590)}))
    with pytest.raises(EffectsRejectedError):
        prepared(Put("Rides", {"id": value(409_610)}))
