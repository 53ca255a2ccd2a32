"""Python values, and effects made of them, to DynamoDB's wire format."""

import copy
import enum
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from idempotency import wire
from idempotency.effects import Check, Delete, Effect, Put, Update, prepared
from idempotency.errors import EffectsRejectedError


class Status(str, enum.Enum):  # noqa: UP042 - members print as their names, unlike a StrEnum's
    """An enum that is a string besides."""

    PAID = "PAID"


class Text(str):
    """A string that prints as another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"


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
        ((1, "a"), {"L": [{"N": "1"}, {"S": "a"}]}),
        (Text("text"), {"S": "text"}),
        (Number(1), {"N": "1"}),
        (MappingProxyType({Status.PAID: None}), {"M": {"PAID": {"NULL": True}}}),
        ({Status.PAID, Text("b"), "c"}, {"SS": ["PAID", "b", "c"]}),
        ({b"b", b"a"}, {"BS": [b"a", b"b"]}),
        (_nested(31), _nested(31, {"NULL": True}, "L")),
    ],
)
def test_value_is_written_as_what_it_stands_for(value: object, written: Any) -> None:
    """Kinds that DynamoDB does not know are written as the nearest that it knows, and never as how they print."""
    assert wire.attribute(value) == written
    ((content,),) = [wire.attribute(value).values()]
    assert type(content) in {str, list, dict}


def _circle() -> dict[str, object]:
    circle: dict[str, object] = {}
    circle["circle"] = circle
    return circle


REFUSED: dict[str, Any] = {
    "a float": 1.5,
    "an empty set": set(),
    "a mixed set": {1, "a"},
    "a set of truths": {True},
    "a set of nothing": {None},
    "an object": object(),
    "a number of 39 digits": 10**38 + 1,
    "a number that is too large": Decimal("1E126"),
    "a number that is too small": Decimal("9E-131"),
    "infinity": Decimal("-Infinity"),
    "no number": Decimal("NaN"),
    "a lone surrogate": "\ud83d",
    "a name with a lone surrogate": {"\ud83d": 1},
    "an empty name": {"": 1},
    "a name that is no string": {1: "a"},
    "a value that is too deep": _nested(32),
    "a circle": _circle(),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_value_that_dynamodb_cannot_hold_is_refused(value: object) -> None:
    """Nothing is rounded or guessed: what DynamoDB cannot hold as it is, is refused, alone or inside something."""
    for within in (value, [value], {"a": value}):
        with pytest.raises(EffectsRejectedError):
            wire.attribute(within)


KEY = {"id": "order_01"}
EFFECTS: list[Effect] = [
    Put("Rides", {**KEY, "n": [1]}, "#s = :s", {":s": {"a": [1]}}, {"#s": "status"}, mark="done"),
    Update("Rides", {**KEY, "at": 1}, "SET #s = :s", "#s <> :s", {":s": Decimal("1.5")}, {"#s": "status"}, mark="done"),
    Delete("Rides", KEY, "#s = :s", {":s": "b"}, {"#s": "status"}),
    Check("Rides", KEY, "attribute_exists(id)"),
]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: type(effect).__name__)
def test_effect_is_fixed_when_it_is_registered(effect: Effect) -> None:
    """What is written was decided when the effect was registered; and the effect reads as it was."""
    registered = copy.deepcopy(effect)
    ready = prepared(registered)
    for part in registered:
        if isinstance(part, dict):
            part.clear()
    assert ready.action() == effect.action()
    assert ready == effect
    assert type(ready) is type(effect)


WRONG: dict[str, Any] = {
    "a dictionary": {"Put": {}},
    "a list of effects": EFFECTS,
    "no table": Put("", KEY),
    "a table that is no name": Put(None, KEY),  # type: ignore[arg-type] # wrong on purpose, as are those below
    "an empty item": Put("Rides", {}),
    "a float": Put("Rides", {**KEY, "price": 9.5}),
    "an empty mark": Put("Rides", KEY, mark=""),
    "an empty condition": Put("Rides", KEY, ""),
    "a float in the values": Put("Rides", KEY, "n = :n", {":n": 9.5}),
    "values that are no mapping": Put("Rides", KEY, "n = :n", [1]),  # type: ignore[arg-type]
    "names that are no mapping": Put("Rides", KEY, "n = :n", None, ["#n"]),  # type: ignore[arg-type]
    "a name that is no string": Put("Rides", KEY, "#n = :n", {":n": 1}, {"#n": 1}),  # type: ignore[dict-item]
    "a name with a lone surrogate": Put("Rides", KEY, "#n = :n", {":n": 1}, {"#n": "\ud83d"}),
    "an empty key": Delete("Rides", {}),
    "a key that is no mapping": Delete("Rides", "order_01"),  # type: ignore[arg-type]
    "an empty string as a key": Delete("Rides", {"id": ""}),
    "a list as a key": Delete("Rides", {"id": ["a"]}),
    "a key of three": Delete("Rides", {"a": 1, "b": 2, "c": 3}),
    "no expression": Update("Rides", KEY, ""),
    "no condition": Check("Rides", KEY, ""),
}


@pytest.mark.parametrize("effect", WRONG.values(), ids=WRONG)
def test_effect_that_can_never_be_written_is_refused(effect: Any) -> None:
    """A handler learns so before it has done anything that the commit would come too late for."""
    with pytest.raises(EffectsRejectedError):
        prepared(effect)


@pytest.mark.parametrize(
    "content",
    [
        {"a": "x" * 400},
        {"a": b"x" * 400},
        {"a": "ß" * 200},
        {f"{'ß' * 100}{number}": True for number in range(2)},
        {"a": ["x" * 200, {"b": {"x" * 100, "y" * 100}}]},
    ],
    ids=["text", "bytes", "letters of two bytes", "names", "nested"],
)
def test_item_over_400_kb_is_refused(content: dict[str, Any]) -> None:
    """An item is refused once its names and values have more bytes than DynamoDB takes, and not before."""

    def times(factor: int, value: Any) -> Any:
        match value:
            case str() | bytes():
                return value * factor
            case Mapping():
                return {times(factor, name): times(factor, inner) for name, inner in value.items()}
            case list() | set():
                return type(value)(times(factor, inner) for inner in value)
        return value

    prepared(Put("Rides", times(1000, content)))
    with pytest.raises(EffectsRejectedError):
        prepared(Put("Rides", times(1025, content)))
