"""Results come back as they were, or are known not to."""

import enum
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from idempotency import codec
from idempotency.errors import UndecodableResultError


class Colour(enum.Enum):
    """An enum whose values are of no JSON type."""

    RED = (255, 0, 0)


class Size(enum.IntEnum):
    """An enum that is an int besides."""

    LARGE = 3


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: Decimal


@dataclass
class Fare:
    """A dataclass whose constructor does not take all its fields, and changes one."""

    amount: Decimal
    currency: str = "EUR"
    total: Decimal = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.amount
        self.amount *= 2


@dataclass(frozen=True, slots=True)
class Stop:
    """A frozen dataclass with slots, holding others."""

    at: datetime
    fares: list[Fare]


class Ride(msgspec.Struct, frozen=True, rename="camel"):
    """A Struct whose fields have other names in JSON."""

    order_id: str
    stops: tuple[str, ...] = ()


class Receipt(pydantic.BaseModel):
    """A model whose field has another name in JSON."""

    model_config = pydantic.ConfigDict(extra="allow")

    order_id: str = pydantic.Field(alias="orderID")
    price: Decimal = Decimal(0)


class Outer:
    """Holds a class that is found through another."""

    class Inner(NamedTuple):
        """A nested class."""

        value: int


VALUES: list[Any] = [
    None,
    False,
    True,
    0,
    -1,
    2**70,
    0.0,
    -0.0,
    1.5,
    float("inf"),
    1e-300,
    3 + 4j,
    "",
    "ünïcode \U0001f695 \x00 \u2028",
    b"",
    b"\x00\xff",
    bytearray(b"ab"),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("1E+50"),
    datetime(2026, 11, 21, 8, 30, 1, 5, tzinfo=UTC),
    datetime(2026, 11, 21, 8, 30),  # noqa: DTZ001 - naive ones come back too
    datetime(2026, 11, 21, 8, 30, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    date(2026, 11, 21),
    time(8, 30, tzinfo=UTC),
    timedelta(days=-1, microseconds=1),
    uuid.UUID(int=7),
    [],
    {},
    (),
    set(),
    [1, [2, [None]]],
    (1, (2,)),
    {1, "a", (2, 3)},
    frozenset({Decimal("1.0")}),
    {"a": {"b": [Decimal(1)]}},
    {1: "int", "1": "str", (1, 2): "tuple", None: "none"},
    {"$": 1},
    {"$": ["decimal", "1"]},
    {"a": {"$": ["set", [1]]}},
    Colour.RED,
    Size.LARGE,
    Point(1, Decimal("2.5")),
    Fare(Decimal("3.50")),
    Stop(datetime(2026, 11, 21, tzinfo=UTC), [Fare(Decimal(1), "GBP")]),
    Ride(order_id="order_01", stops=("sector_01", "sector_03")),
    Receipt.model_validate({"orderID": "order_01", "price": "9.99", "note": "extra"}),
    Outer.Inner(1),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    """What a handler returned is what every later delivery gets."""
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)


def test_nan_comes_back() -> None:
    """A float that equals nothing is still a float."""
    assert str(codec.decode(codec.encode([float("nan"), Decimal("NaN")]))) == "[nan, Decimal('NaN')]"


def test_sign_and_exponent_of_a_number_survive() -> None:
    """Numbers that compare equal are not the same number to whoever prints them."""
    assert [str(codec.decode(codec.encode(value))) for value in (-0.0, Decimal("1.10"), 10)] == ["-0.0", "1.10", "10"]


def test_plain_json_is_stored_as_itself() -> None:
    """A result that JSON can hold is readable in the table."""
    assert codec.encode({"order": ["order_01", 1, None, True]}) == '{"order":["order_01",1,null,true]}'


def test_text_is_the_same_in_every_process() -> None:
    """The order in which a set happens to be iterated does not show."""
    encoded = codec.encode({f"sector_{number:02}" for number in range(30)})
    assert encoded.index("sector_07") < encoded.index("sector_11") < encoded.index("sector_29")


def _local_class() -> object:
    class Local(NamedTuple):
        value: int

    return Local(1)


def _circle() -> object:
    circle: list[object] = []
    circle.append(circle)
    return circle


@dataclass(slots=True)
class HalfMade:
    """A dataclass with a field that nobody has set."""

    never: int = field(init=False)


UNENCODABLE: dict[str, Any] = {
    "an object": object(),
    "a function": len,
    "a class": int,
    "an iterator": iter(()),
    "a class that is found by no name": _local_class(),
    "a circle": _circle(),
    "text that UTF-8 cannot hold": "\ud800",
    "a number longer than Python writes": 10**5000,
    "a dataclass without its field": HalfMade(),
    "a secret": pydantic.SecretStr("secret"),
}


@pytest.mark.parametrize("value", UNENCODABLE.values(), ids=UNENCODABLE)
def test_unencodable_value_is_told_by_one_error(value: object) -> None:
    """Whatever cannot be stored is told by the same error, alone or inside something, so that no run is repeated."""
    for result in (value, {"a": [value]}):
        with pytest.raises(codec.UnencodableResultError):
            codec.encode(result)


def test_class_that_is_not_loaded_is_told() -> None:
    """A record can name a class that this process does not know."""
    with pytest.raises(UndecodableResultError):
        codec.decode('{"$":["fields","rides.v2:Ride",{}]}')


def test_record_cannot_import_a_module() -> None:
    """Whoever can write a record cannot make a process load code."""
    assert "antigravity" not in sys.modules
    with pytest.raises(UndecodableResultError):
        codec.decode('{"$":["enum","antigravity:webbrowser.Error",1]}')
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("tag", ["enum", "fields", "namedtuple", "pydantic", "unknown"])
def test_record_cannot_call_another_class(tag: str) -> None:
    """A class is only built in the way in which values of its kind are stored."""
    with pytest.raises(UndecodableResultError):
        codec.decode(f'{{"$":["{tag}","subprocess:Popen",["true"]]}}')
