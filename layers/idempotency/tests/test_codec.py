"""Results come back equal, or with one error, also after their classes have changed."""

import dataclasses
import enum
import json
import sys
from collections import namedtuple
from collections.abc import Callable
from datetime import timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carride_idempotency.errors import UndecodableResultError
from carride_idempotency.fingerprint import fingerprint
from carride_idempotency.stores import codec

FIXED = settings(derandomize=True, database=None, max_examples=100)

Kind = enum.Enum("Kind", {"SMALL": 1, "LARGE": "large", "COLOUR": (255, 0, 0)})
Status = enum.Enum("Status", {"PAID": "PAID"}, type=str)
Size = enum.Enum("Size", {"ONE": 1}, type=int)
Word = enum.StrEnum("Word", {"YES": "yes"})
Mode = enum.IntFlag("Mode", {"FAST": 1, "LOUD": 4})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A dataclass that changes its arguments and has a field outside of its constructor."""

    closed: ClassVar[bool] = True
    content: Any
    label: str
    sealed: bool = dataclasses.field(init=False)
    size: dataclasses.InitVar[int] = 1

    def __post_init__(self, size: int) -> None:
        object.__setattr__(self, "sealed", size > 0)
        object.__setattr__(self, "label", f"<{self.label}>")


class Crate(msgspec.Struct, frozen=True):
    """A Struct that refuses what it has made of its content."""

    content: Any
    label: str

    def __post_init__(self) -> None:
        if self.label.startswith("<"):
            raise ValueError("made twice")
        msgspec.structs.force_setattr(self, "label", f"<{self.label}")

    @dataclasses.dataclass
    class Sack:
        """A dataclass that holds anything, and is found through another class."""

        content: Any
        count: int = dataclasses.field(init=False, default=7)


class Parcel(pydantic.BaseModel):
    """A model with an alias, extra fields and a hidden attribute."""

    model_config = pydantic.ConfigDict(extra="allow")

    content: Any = pydantic.Field(alias="Content")
    _weight: int = pydantic.PrivateAttr(default=0)


class Pair(NamedTuple):
    content: Any
    other: Any


ZONES = st.none() | st.builds(
    lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439)
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(max_size=20).map(bytearray),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(timezones=ZONES),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([*Kind, *Status, *Size, *Word, Mode.LOUD, Mode(5)]),
)
HASHABLE = st.recursive(
    SCALARS.filter(lambda value: not isinstance(value, bytearray)),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Box, content=inner, label=st.text(max_size=5))
    ),
    max_leaves=4,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(st.text(max_size=5) | st.just("$"), inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.builds(Box, content=inner, label=st.text(max_size=5)),
        st.builds(Crate, inner, st.just("label")),
        st.builds(
            lambda content, note: Parcel.model_validate({"Content": content, "note": note}),
            inner,
            inner,
        ),
        st.builds(Crate.Sack, inner),
        st.builds(Pair, inner, inner),
    )


VALUES = st.recursive(SCALARS, containers, max_leaves=8)


@FIXED
@given(VALUES)
def test_result_comes_back_equal_and_of_its_type(value: Any) -> None:
    """A decoded result equals the encoded one and has its type."""
    text = codec.encode(value)
    back = codec.decode(text)
    assert back == value
    assert type(back) is type(value)
    assert codec.encode(back) == text
    assert codec.as_stored(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "NaN",
        "1e999",
        '"\\ud800"',
        "[" * 100_000,
        '{"$": ["uuid", "no"]}',
        '{"$": ["uuid"]}',
        '{"$": ["colour", "red"]}',
        '{"$": ["fields", "Box", {}]}',
        '{"$": ["fields", "module:Box"]}',
        '{"$": ["tuple", {"a": 1}]}',
        '{"$": ["tuple", [{"$": ["decimal", []]}]]}',
        '{"$": "text"}',
        '{"$": ["set", []], "more": 1}',
    ],
)
def test_what_no_value_is_stored_as_is_refused(text: str) -> None:
    """An operator who mistypes a result is told so before it is written."""
    with pytest.raises(ValueError, match=r"\S"):
        codec.as_stored(text)


def test_a_stored_form_needs_no_class() -> None:
    """The operator's process has not loaded the application."""
    text = '{"$":["fields","shop.calls:Receipt",{"cents":{"$":["decimal","5"]}}]}'
    assert codec.as_stored(f" {text} ") == text
    with pytest.raises(UndecodableResultError, match="has not loaded"):
        codec.decode(text)


def test_text_is_readable_and_the_same_in_every_process() -> None:
    """What JSON can hold is stored as itself, a set in a fixed order.

    A float that equals nothing is still a float.
    """
    assert (
        codec.encode({"order": ["order_01", 1, None, True]}) == '{"order":["order_01",1,null,true]}'
    )
    numbers = [f"sector_{number:02}" for number in range(30)]
    assert codec.encode(set(numbers)) == json.dumps({"$": ["set", numbers]}, separators=(",", ":"))
    assert (
        str(codec.decode(codec.encode([float("nan"), Decimal("NaN")]))) == "[nan, Decimal('NaN')]"
    )


# ── Classes that change ───────────────────────────────────────────────────────────────────────────

named_tuple: Any = namedtuple
model: Any = pydantic.create_model
model_dataclass: Any = pydantic.dataclasses.dataclass
MAKE: dict[str, Callable[..., Any]] = {
    "dataclass": lambda name, **more: dataclasses.make_dataclass(
        name, ["order", *((n, Any, more[n]) for n in more)]
    ),
    "Struct": lambda name, **more: msgspec.defstruct(
        name, ["order", *((n, Any, more[n]) for n in more)]
    ),
    "model": lambda name, **more: model(
        name, order=(Any, ...), **{n: (Any, more[n]) for n in more}
    ),
    "model dataclass": lambda name, **more: model_dataclass(
        dataclasses.make_dataclass(
            name, [("order", Any), *((n, Any, pydantic.Field(more[n])) for n in more)]
        )
    ),
    "named tuple": lambda name, **more: named_tuple(name, ["order", *more], defaults=more.values()),
}


def made(kind: str, name: str, **more: object) -> Any:
    """Make an importable class with the field ``order`` and further fields with defaults."""
    made = MAKE[kind](name, **more)
    made.__module__ = __name__
    setattr(sys.modules[__name__], name, made)
    return made


@pytest.mark.parametrize("kind", MAKE)
def test_stored_result_survives_a_field_that_its_class_gains(kind: str) -> None:
    """New code fills missing fields with defaults, and raises an error rather than lose a field."""
    old = made(kind, "Old")
    new = made(kind, "New", note="none")
    text = codec.encode(old(order=[Decimal(1)])).replace(":Old", ":New")
    assert codec.decode(text) == new(order=[Decimal(1)])
    for lost in (
        text.replace('"order"', '"other"'),
        codec.encode(new(order=1)).replace(":New", ":Old"),
    ):
        with pytest.raises(UndecodableResultError):
            codec.decode(lost)


DEFAULTS: list[Any] = [
    None,
    "",
    "PAID",
    Status.PAID,
    0,
    1,
    True,
    1.0,
    0.5,
    Decimal("1.00"),
    Kind.SMALL,
    Size.ONE,
    (),
]


@pytest.mark.parametrize("kind", list(MAKE)[:-1])
def test_field_that_has_its_default_is_no_part_of_a_fingerprint(kind: str) -> None:
    """After a class gains a field with a default, earlier values keep their fingerprints."""
    known = fingerprint(made(kind, "Old")(order="order_01"))
    for default in DEFAULTS:
        new = made(kind, "New", note=default)
        assert fingerprint(new(order="order_01")) == known
        for note in DEFAULTS:
            is_default = fingerprint(note) == fingerprint(default)
            assert (fingerprint(new(order="order_01", note=note)) == known) == is_default, (
                default,
                note,
            )


# ── What cannot be stored or rebuilt ──────────────────────────────────────────────────────────────


class SilentError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise LookupError


@dataclasses.dataclass
class Lazy:
    """A dataclass that looks a field up when it is read, and fails."""

    error: dataclasses.InitVar[Exception]
    never: int = dataclasses.field(init=False)

    def __post_init__(self, error: Exception) -> None:
        self.__dict__["_error"] = error

    def __getattr__(self, name: str) -> object:
        raise self.__dict__["_error"]


@dataclasses.dataclass
class RefusedError(Exception):
    """A dataclass that only its own constructor can make."""

    code: int


class Receipt(pydantic.BaseModel):
    """A model with hidden attributes, one of which has a default."""

    order: str
    _copies: int = pydantic.PrivateAttr(default=1)
    _printer: str = pydantic.PrivateAttr()


def _local() -> object:
    class Local(NamedTuple):
        value: int

    return Local(1)


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)
NESTED: list[Any] = reduce(lambda inner, _: [inner], range(100_000), [])
TOO_MUCH = [CIRCLE, NESTED, 10**5000, "\ud800"]
RAISING = [Lazy(ConnectionError("\ud83d" * 999)), Lazy(SilentError()), RefusedError(1)]
NO_FORM = [object(), len, int, iter(()), _local(), complex(1), pydantic.SecretStr("secret")]


@pytest.mark.parametrize(
    "value", [*TOO_MUCH, *RAISING, *NO_FORM], ids=lambda value: type(value).__name__
)
def test_unencodable_value_is_told_by_one_error(value: object) -> None:
    """A value that cannot be stored raises UnencodableResultError, whose text can be stored."""
    for result in (value, {"a": [value]}):
        with pytest.raises(codec.UnencodableResultError) as raised:
            codec.encode(result)
        assert 0 < len(str(raised.value).encode()) <= 500


def _stored(tag: str, kind: str, content: object) -> str:
    return json.dumps({"$": [tag, f"{__name__}:{kind}", content]})


def _model(
    content: dict[str, Any],
    extra: dict[str, Any] | None = None,
    hidden: dict[str, Any] | None = None,
) -> str:
    parts = {"__dict__": content, "__pydantic_extra__": extra, "__pydantic_private__": hidden}
    return _stored("pydantic", "Receipt", {**parts, "__pydantic_fields_set__": {"$": ["set", []]}})


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
