"""Results come back as they were, or are known not to."""

import enum
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import pydantic
import pytest

from idempotency import codec
from idempotency.errors import UndecodableResultError


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int = 0


class Status(enum.Enum):
    """An enum."""

    PAID = "PAID"


@dataclass
class Fare:
    """A dataclass with a class variable, and a default of its own for each value."""

    currencies: ClassVar[list[str]] = ["EUR"]
    amount: Decimal
    stops: list[str] = field(default_factory=list)


class Receipt(pydantic.BaseModel):
    """A model with hidden attributes, one of which has a default."""

    order: str
    notes: list[str] = []
    _copies: int = pydantic.PrivateAttr(default=1)
    _printer: str = pydantic.PrivateAttr()


def test_nan_comes_back() -> None:
    """A float that equals nothing is still a float."""
    assert str(codec.decode(codec.encode([float("nan"), Decimal("NaN")]))) == "[nan, Decimal('NaN')]"


def test_plain_json_is_stored_as_itself() -> None:
    """A result that JSON can hold is readable in the table."""
    assert codec.encode({"order": ["order_01", 1, None, True]}) == '{"order":["order_01",1,null,true]}'


def test_text_is_the_same_in_every_process() -> None:
    """The order in which a set happens to be iterated does not show."""
    encoded = codec.encode({f"sector_{number:02}" for number in range(30)})
    assert encoded.index("sector_07") < encoded.index("sector_11") < encoded.index("sector_29")


def test_class_variable_is_not_stored() -> None:
    """Only what belongs to the value is stored."""
    assert "currencies" not in codec.encode(Fare(Decimal(1)))


def _stored(tag: str, kind: str, content: object) -> str:
    return json.dumps({"$": [tag, f"{__name__}:{kind}", content]})


def _model(content: dict[str, Any], extra: dict[str, Any] | None = None, hidden: dict[str, Any] | None = None) -> str:
    parts = {"__dict__": content, "__pydantic_extra__": extra, "__pydantic_private__": hidden}
    return _stored("pydantic", "Receipt", {**parts, "__pydantic_fields_set__": {"$": ["set", []]}})


OF_EARLIER_VERSIONS: dict[str, tuple[str, object]] = {
    "a named tuple by position": (_stored("namedtuple", "Point", [1]), Point(1)),
    "a class variable": (_stored("fields", "Fare", {"currencies": ["USD"], "amount": 1}), Fare(Decimal(1))),
    "an extra that is a field now": (_model({"order": "o"}, {"notes": ["a"]}), Receipt(order="o", notes=["a"])),
    "a model without its hidden attribute": (_model({"order": "o"}, None, {}), Receipt(order="o")),
}


@pytest.mark.parametrize(("text", "value"), OF_EARLIER_VERSIONS.values(), ids=OF_EARLIER_VERSIONS)
def test_stored_result_of_an_earlier_version_comes_back(text: str, value: Any) -> None:
    """What its class has gained since is filled with defaults, which no two values share."""
    for _ in range(2):
        back = codec.decode(text)
        assert back == value
        for name in ("stops", "notes"):
            getattr(back, name, []).append("changed")


@dataclass
class Lazy:
    """A dataclass that looks a field up when it is read."""

    never: int = field(init=False)

    def __getattr__(self, name: str) -> object:
        raise ConnectionError(name)


@dataclass
class RefusedError(Exception):
    """A dataclass that only its own constructor can make."""

    code: int


def _local() -> object:
    class Local(NamedTuple):
        value: int

    return Local(1)


def _circle() -> object:
    circle: list[object] = []
    circle.append(circle)
    return circle


def _deep() -> object:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


UNENCODABLE: dict[str, Any] = {
    "an object": object(),
    "a function": len,
    "a class": int,
    "an iterator": iter(()),
    "a class that is found by no name": _local(),
    "a circle": _circle(),
    "a well": _deep(),
    "text that UTF-8 cannot hold": "\ud800",
    "a number longer than Python writes": 10**5000,
    "a field that raises": Lazy(),
    "an exception": RefusedError(1),
    "a factory that is found by no name": defaultdict(lambda: 0),
    "a secret": pydantic.SecretStr("secret"),
}


@pytest.mark.parametrize("value", UNENCODABLE.values(), ids=UNENCODABLE)
def test_unencodable_value_is_told_by_one_error(value: object) -> None:
    """Whatever cannot be stored is told by the same error, alone or inside something, so that no run is repeated."""
    for result in (value, {"a": [value]}):
        with pytest.raises(codec.UnencodableResultError):
            codec.encode(result)


UNDECODABLE: dict[str, str] = {
    "no text": "",
    "half a text": '{"a":',
    "a well": "[" * 100_000,
    "a number longer than Python reads": "1" * 5000,
    "a tag that is none": '{"$":{}}',
    "a tag without content": '{"$":["tuple"]}',
    "a tag with neighbours": '{"$":["tuple",[]],"a":1}',
    "an unknown tag": '{"$":["list",[]]}',
    "no list": '{"$":["tuple","ab"]}',
    "no pair": '{"$":["dict",["ab"]]}',
    "no hash": '{"$":["set",[[]]]}',
    "no base64": '{"$":["bytes","?"]}',
    "no number": '{"$":["decimal","x"]}',
    "a factory that is no class": '{"$":["defaultdict",["print",[]]]}',
    "a class that is not loaded": '{"$":["enum","antigravity:webbrowser.Error",1]}',
    "a class that is gone": _stored("fields", "Gone", {}),
    "a member that is gone": _stored("enum", "Status", "DUE"),
    "a field that is gone": _stored("fields", "Fare", {"amount": 1, "tip": 1}),
    "a field of a model that is gone": _model({"order": "o", "tip": 1}),
    "an extra that is not taken": _model({"order": "o"}, {"tip": 1}),
    "a hidden attribute that is gone": _model({"order": "o"}, None, {"_ink": 1}),
    "a position that is gone": _stored("namedtuple", "Point", [1, 2, 3]),
    "a new field without a default": _stored("fields", "Fare", {"stops": []}),
    "a new position without a default": _stored("namedtuple", "Point", []),
    **{
        f"a class that is no {tag}": json.dumps({"$": [tag, name, ["true"]]})
        for tag, name in [
            ("enum", "subprocess:Popen"),
            ("fields", f"{__name__}:Receipt"),
            ("named", "subprocess:Popen"),
            ("namedtuple", "subprocess:Popen"),
            ("pydantic", f"{__name__}:Fare"),
        ]
    },
}


@pytest.mark.parametrize("text", UNDECODABLE.values(), ids=UNDECODABLE)
def test_undecodable_text_is_told_by_one_error(text: str) -> None:
    """Whatever cannot be rebuilt is told by the same error; no record makes a process import code or call a class."""
    for stored in (text, f"[{text},1]"):
        with pytest.raises(UndecodableResultError):
            codec.decode(stored)
    assert "antigravity" not in sys.modules
