"""Properties of results, fingerprints, keys and effects."""

import dataclasses
import enum
import json
import sys
from collections import namedtuple
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta, timezone
from decimal import Context, Decimal
from typing import Any, ClassVar, NamedTuple

import jmespath
import msgspec
import pydantic
import pytest
from boto3.dynamodb.types import TypeDeserializer
from hypothesis import given, settings
from hypothesis import strategies as st

from idempotency import codec, marshalling
from idempotency.effects import Put, action_of, prepared
from idempotency.errors import EffectsRejectedError, UndecodableResultError
from idempotency.fingerprint import fingerprint
from idempotency.keys import LONGEST_KEY, extractor, record_key

FIXED = settings(derandomize=True, database=None, max_examples=100)


Kind = enum.Enum("Kind", {"SMALL": 1, "LARGE": "large", "COLOUR": (255, 0, 0)})
Status = enum.Enum("Status", {"PAID": "PAID"}, type=str)
Size = enum.Enum("Size", {"ONE": 1}, type=int)
Word = enum.StrEnum("Word", {"YES": "yes"})
Level = enum.IntEnum("Level", {"HIGH": 3})
Access = enum.Flag("Access", {"READ": 1, "WRITE": 2})
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
    """A model with an alias and extra fields."""

    model_config = pydantic.ConfigDict(extra="allow")

    content: Any = pydantic.Field(alias="Content")
    _weight: int = pydantic.PrivateAttr(default=0)


class Pair(NamedTuple):
    content: Any
    other: Any


ENUMS = st.sampled_from([*Kind, *Status, *Size, *Word, *Level, Access(0), Access(3), Mode.LOUD, Mode(5)])
ZONES = st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(max_size=20).map(bytearray),
    st.datetimes(timezones=st.none() | ZONES),
    st.dates(),
    st.times(timezones=st.none() | ZONES),
    st.timedeltas(),
    st.uuids(),
    ENUMS,
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
    pairs = st.dictionaries(HASHABLE, inner, max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(st.text(max_size=5) | st.just("$"), inner, max_size=3),
        pairs,
        st.builds(Box, content=inner, label=st.text(max_size=5)),
        st.builds(Crate, inner, st.just("label")),
        st.builds(lambda content, note: Parcel.model_validate({"Content": content, "note": note}), inner, inner),
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


WAYS = st.lists(st.integers(0, 5), max_size=9)
SCRAPS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.5, "", "x", "set", [], [[]], ["tuple", 1], {}, {"$": 1}, {"$": []}, {"$": ["x"]}]
)


def damaged(stored: Any, way: list[int], scrap: object) -> Any:
    if not way or not isinstance(stored, list | dict) or not stored:
        return scrap
    place = list(stored)[way[0] % len(stored)] if isinstance(stored, dict) else way[0] % len(stored)
    copy: Any = stored.copy()
    copy[place] = damaged(stored[place], way[1:], scrap)
    return copy


@FIXED
@given(VALUES, WAYS, SCRAPS, st.integers(0, 99), st.integers(1, 9))
def test_damaged_text_is_a_value_or_one_error(value: Any, way: list[int], scrap: Any, start: int, length: int) -> None:
    """Decoding damaged text returns a value or raises UndecodableResultError."""
    text = codec.encode(value)
    for damage in (json.dumps(damaged(json.loads(text), way, scrap)), text[:start] + text[start + length :]):
        with suppress(UndecodableResultError):
            codec.decode(damage)


named_tuple: Any = namedtuple
model: Any = pydantic.create_model
model_dataclass: Any = pydantic.dataclasses.dataclass
MAKE: dict[str, Callable[..., Any]] = {
    "dataclass": lambda name, **more: dataclasses.make_dataclass(name, ["order", *((n, Any, more[n]) for n in more)]),
    "Struct": lambda name, **more: msgspec.defstruct(name, ["order", *((n, Any, more[n]) for n in more)]),
    "model": lambda name, **more: model(name, order=(Any, ...), **{n: (Any, more[n]) for n in more}),
    "model dataclass": lambda name, **more: model_dataclass(
        dataclasses.make_dataclass(name, [("order", Any), *((n, Any, pydantic.Field(more[n])) for n in more)])
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
    old, new = made(kind, "Old"), made(kind, "New", note="none")
    text = codec.encode(old(order=[Decimal(1)])).replace(":Old", ":New")
    assert codec.decode(text) == new(order=[Decimal(1)])
    for lost in (text.replace('"order"', '"other"'), codec.encode(new(order=1)).replace(":New", ":Old")):
        with pytest.raises(UndecodableResultError):
            codec.decode(lost)


DEFAULTS: list[Any] = [None, "", "PAID", Status.PAID, 0, 1, True, 1.0, 0.5, Decimal("1.00"), Kind.SMALL, Size.ONE, ()]


@pytest.mark.parametrize("kind", list(MAKE)[:-1])
def test_field_that_has_its_default_is_no_part_of_a_fingerprint(kind: str) -> None:
    """After a class gains a field with a default, earlier values keep their fingerprints."""
    known = fingerprint(made(kind, "Old")(order="order_01"))
    for default in DEFAULTS:
        new = made(kind, "New", note=default)
        assert fingerprint(new(order="order_01")) == known
        for note in DEFAULTS:
            is_default = fingerprint(note) == fingerprint(default)
            assert (fingerprint(new(order="order_01", note=note)) == known) == is_default, (default, note)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def turned(value: Any) -> Any:
    """The same content in another form: keys in another order, whole numbers as floats, lists as tuples."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return tuple(map(turned, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


@FIXED
@given(JSON)
def test_fingerprint_knows_the_content_by_any_form(payload: Any) -> None:
    """JSON round trips, key order and number types do not change the fingerprint."""
    known = fingerprint(payload)
    assert fingerprint(json.loads(json.dumps(payload))) == known
    assert fingerprint(json.loads(json.dumps(payload, ensure_ascii=False, indent=1).encode())) == known
    assert fingerprint(turned(payload)) == known


@FIXED
@given(JSON, WAYS, SCRAPS | JSON, SCRAPS | JSON)
def test_fingerprint_tells_two_contents_apart(payload: Any, way: list[int], one: Any, other: Any) -> None:
    """Payloads whose JSON differs anywhere, numbers taken by their value, have two fingerprints."""

    def content(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, dict):
            return "{" + ",".join(sorted(f"{json.dumps(key)}:{content(inner)}" for key, inner in value.items())) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(content, value)) + "]"
        return json.dumps(value)

    both = [damaged(payload, way, scrap) for scrap in (one, other)]
    assert len(set(map(fingerprint, both))) == len(set(map(content, both)))


PLAIN = st.text(alphabet="ab#%:/25uD8\ud83d\udfffß\U0001f695", min_size=1, max_size=4)
SCALAR_KEYS = st.one_of(
    PLAIN,
    PLAIN.map(lambda text: text * LONGEST_KEY),
    st.integers(-9, 9),
    st.uuids(),
    st.sampled_from([*Status, *Size, *Word, *Level, Kind.SMALL, Kind.LARGE, "1", "PAID", "large"]),
)
KEYS = SCALAR_KEYS | st.lists(SCALAR_KEYS, min_size=1, max_size=3)
NAMES = st.text(alphabet="ab%:", min_size=1, max_size=2)


def meant(key: object) -> object:
    if isinstance(key, list):
        return [meant(part) for part in key]
    return str(key.value if isinstance(key, enum.Enum) else key)


@FIXED
@given(*2 * [NAMES, st.none() | NAMES, KEYS])
def test_two_keys_never_meet(
    consumer: str, operation: str | None, key: Any, other_consumer: str, other_operation: str | None, other_key: Any
) -> None:
    """Different consumers, operations or keys give different record keys, which fit into DynamoDB."""
    one, other = record_key(consumer, key, operation), record_key(other_consumer, other_key, other_operation)
    same = (consumer, operation, meant(key)) == (other_consumer, other_operation, meant(other_key))
    assert (one == other) == same
    assert len(one.encode()) <= LONGEST_KEY
    _, _, text = one.partition("#")  # a stored key is another key, unless it was stored unchanged
    assert (record_key(consumer, text, operation) == one) == (text == meant(key))


MEMBERS = st.sampled_from(["detail", "data", "id", "other"])
EVENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(MEMBERS, inner, max_size=3),
    max_leaves=6,
)


@FIXED
@given(EVENTS, st.lists(MEMBERS, min_size=1, max_size=3))
def test_dotted_expression_finds_what_jmespath_finds(event: Any, names: list[str]) -> None:
    """Dotted paths, which are not passed to JMESPath, mean the same as in JMESPath."""
    expression = ".".join(names)
    assert extractor(expression, "key")(event) == jmespath.search(expression, event)


ITEMS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**37), 10**37)
    | st.decimals(-(10**20), 10**20, places=4)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | ENUMS.filter(lambda member: member is not Kind.COLOUR)
    | st.sets(st.text(max_size=5) | st.sampled_from([*Status, *Word]), min_size=1)
    | st.sets(st.integers(-9, 9) | st.sampled_from([*Size, *Level]), min_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)


def plain(value: Any) -> Any:
    """Return the value as it is read back: enum members become their values."""
    match value:
        case enum.Enum():
            return value.value
        case dict():
            return {name: plain(inner) for name, inner in value.items()}
        case list() | set():
            return type(value)(map(plain, value))
        case _:
            return value


@FIXED
@given(st.dictionaries(st.text(min_size=1), ITEMS, min_size=1, max_size=4))
def test_effect_writes_what_it_said_when_it_was_registered(values: dict[str, Any]) -> None:
    """An effect writes the values that it was registered with, by AWS's reading and by ours."""
    expected = plain(values)
    effect: Any = prepared(Put("Rides", values, condition="attribute_not_exists(id)"))
    values.clear()
    action: Any = action_of(effect)
    read: Any = TypeDeserializer().deserialize
    assert {name: read(attribute) for name, attribute in action["Put"]["Item"].items()} == expected
    assert marshalling.values(action["Put"]["Item"]) == expected
    assert isinstance(effect, Put)
    assert effect.item == expected
    assert prepared(effect) == effect


NUMBERS = st.builds(Decimal, st.builds("{}E{}".format, st.integers(-(10**40), 10**40), st.integers(-175, 130)))


@FIXED
@given(NUMBERS | st.integers(-(10**40), 10**40) | st.decimals())
def test_number_is_written_if_dynamodb_can_hold_it(number: Decimal | int) -> None:
    """A number that fits into DynamoDB's digits and exponents is written exactly; any other is refused."""
    value = Decimal(number)
    in_range = value.is_finite() and (not value or Decimal("1E-130") <= abs(value) < Decimal("1E126"))
    if in_range and Context(prec=38).plus(value) == value:
        assert marshalling.attribute(number) == {"N": str(number)}
    else:
        with pytest.raises(EffectsRejectedError):
            marshalling.attribute(number)
