"""The codec of results, by example."""

import enum
import json
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import pydantic
import pytest

from idempotency import codec
from idempotency.errors import UndecodableResultError

Status = enum.Enum("Status", {"PAID": "PAID"})


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
    """Elements of a set are stored in a fixed order."""
    encoded = codec.encode({f"sector_{number:02}" for number in range(30)})
    assert encoded.index("sector_07") < encoded.index("sector_11") < encoded.index("sector_29")


def _stored(tag: str, kind: str, content: object) -> str:
    return json.dumps({"$": [tag, f"{__name__}:{kind}", content]})


def _model(content: dict[str, Any], extra: dict[str, Any] | None = None, hidden: dict[str, Any] | None = None) -> str:
    parts = {"__dict__": content, "__pydantic_extra__": extra, "__pydantic_private__": hidden}
    return _stored("pydantic", "Receipt", {**parts, "__pydantic_fields_set__": {"$": ["set", []]}})


class SilentError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise LookupError


@dataclass
class Lazy:
    """A dataclass that looks a field up when it is read, and fails."""

    error: ClassVar[Exception] = ConnectionError("\ud83d" * 999)
    never: int = field(init=False)

    def __getattr__(self, name: str) -> object:
        raise self.error


class Silent(Lazy):
    """One that fails with an exception that cannot say what it is."""

    error = SilentError()


@dataclass
class RefusedError(Exception):
    """A dataclass that only its own constructor can make."""

    code: int


def _local() -> object:
    class Local(NamedTuple):
        value: int

    return Local(1)


def _nested(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


TOO_MUCH = [CIRCLE, _nested(100_000), 10**5000, "\ud800"]
RAISING = [Lazy(), Silent(), RefusedError(1)]
NO_FORM = [object(), len, int, iter(()), _local(), complex(1), pydantic.SecretStr("secret")]


@pytest.mark.parametrize("value", [*TOO_MUCH, *RAISING, *NO_FORM], ids=lambda value: type(value).__name__)
def test_unencodable_value_is_told_by_one_error(value: object) -> None:
    """A value that cannot be stored raises UnencodableResultError, whose text can be stored."""
    for result in (value, {"a": [value]}):
        with pytest.raises(codec.UnencodableResultError) as raised:
            codec.encode(result)
        assert 0 < len(str(raised.value).encode()) <= 500


DAMAGED = """
    {"a": {"$":{}} {"$":["tuple"]} {"$":["list",[]]} {"$":["tuple",[]],"a":1} {"$":["tuple","ab"]}
    {"$":["dict",["ab"]]} {"$":["set",[[]]]} {"$":["bytes","?"]} {"$":["decimal","x"]}
    {"$":["dict",[[1]]]} {"$":["enum","antigravity:webbrowser.Error",1]}
    {"$":["enum","subprocess:Popen",["true"]]} {"$":["fields","subprocess:Popen",["true"]]}
    {"$":["namedtuple","subprocess:Popen",["true"]]}
"""
CHANGED = [
    _stored("fields", "Gone", {}),
    _stored("enum", "Status", "DUE"),
    _stored("fields", "Receipt", {"order": "o"}),
    _stored("pydantic", "RefusedError", {}),
    _model({"order": "o"}, {"tip": 1}),
    _model({"order": "o"}, None, {"_ink": 1}),
]


@pytest.mark.parametrize("text", [*DAMAGED.split(), *CHANGED, "", "[" * 100_000, "1" * 5000])
def test_undecodable_text_is_told_by_one_error(text: str) -> None:
    """Text that cannot be decoded raises UndecodableResultError, and imports or calls nothing."""
    for stored in (text, f"[{text},1]"):
        with pytest.raises(UndecodableResultError):
            codec.decode(stored)
    assert "antigravity" not in sys.modules
