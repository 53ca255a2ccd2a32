"""Whatever a handler returns comes back, and whatever an event says is told by its content alone."""

import enum
import json
from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any

import jmespath
import msgspec
import pydantic
from boto3.dynamodb.types import TypeDeserializer
from hypothesis import given, settings
from hypothesis import strategies as st

from idempotency import codec, wire
from idempotency.errors import MissingKeyError
from idempotency.fingerprint import fingerprint
from idempotency.keys import LONGEST_KEY, extractor, record_key

FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=100)


@dataclass(frozen=True)
class Box:
    """A dataclass that holds anything."""

    content: Any
    label: str = ""


class Crate(msgspec.Struct, frozen=True):
    """A Struct that holds anything."""

    content: Any
    label: str = ""


class Parcel(pydantic.BaseModel):
    """A model that holds anything, under another name in JSON."""

    content: Any = pydantic.Field(alias="Content")


class Kind(enum.Enum):
    """An enum."""

    SMALL = 1
    LARGE = "large"


ZONES = st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.datetimes(timezones=st.none() | ZONES),
    st.dates(),
    st.times(timezones=st.none() | ZONES),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from(Kind),
)
HASHABLE = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Everything that can hold something."""
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(st.text(max_size=5) | st.just("$"), inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.builds(Box, inner, st.text(max_size=5)),
        st.builds(Crate, inner, st.text(max_size=5)),
        inner.map(lambda content: Parcel(Content=content)),
    )


VALUES = st.recursive(SCALARS, containers, max_leaves=8)


@FIXED
@given(VALUES)
def test_result_comes_back_equal_and_of_its_type(value: Any) -> None:
    """A duplicate gets what the run returned, to the last bit."""
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert codec.encode(back) == codec.encode(value)


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
    """Writing, reading, reordering and other number types change nothing."""
    known = fingerprint(payload)
    assert fingerprint(json.loads(json.dumps(payload))) == known
    assert fingerprint(json.loads(json.dumps(payload, ensure_ascii=False, indent=1).encode())) == known
    assert fingerprint(turned(payload)) == known


@FIXED
@given(JSON, JSON)
def test_fingerprint_tells_two_contents_apart(one: Any, other: Any) -> None:
    """Payloads whose JSON differs, numbers taken by their value, have two fingerprints."""

    def content(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, dict):
            return "{" + ",".join(sorted(f"{json.dumps(key)}:{content(inner)}" for key, inner in value.items())) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(content, value)) + "]"
        return json.dumps(value)

    assert (fingerprint(one) == fingerprint(other)) == (content(one) == content(other))


PARTS = st.text(min_size=1, alphabet=st.characters(codec="utf-8"))


@FIXED
@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(PARTS, min_size=1, max_size=4))
def test_composite_keys_never_meet(one: list[str], other: list[str]) -> None:
    """Two lists of parts name the same record only if they are the same, whatever their parts contain."""
    assert (record_key("history", one) == record_key("history", other)) == (one == other)


@FIXED
@given(PARTS)
def test_key_fits_into_a_table(part: str) -> None:
    """However long a key is, its record's key is one that DynamoDB takes."""
    assert len(record_key("history", part * 100).encode()) <= LONGEST_KEY


NAMES = st.sampled_from(["detail", "data", "id", "other"])
EVENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@FIXED
@given(EVENTS, st.lists(NAMES, min_size=1, max_size=3))
def test_dotted_expression_finds_what_jmespath_finds(event: Any, names: list[str]) -> None:
    """The expressions that are not interpreted mean what they would mean if they were."""
    expression = ".".join(names)
    assert extractor(expression, "key")(event) == jmespath.search(expression, event)


@FIXED
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.just("") | st.binary(), st.lists, max_leaves=3))
def test_what_names_nothing_is_no_key(value: Any) -> None:
    """No value that is no name ever becomes a key that strangers would share."""
    try:
        key = record_key("history", value)
    except MissingKeyError:
        return
    raise AssertionError(f"{value!r} became {key!r}")


ITEMS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**37), 10**37)
    | st.decimals(-(10**20), 10**20, places=4)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@FIXED
@given(st.dictionaries(st.text(min_size=1), ITEMS, max_size=4))
def test_item_goes_to_dynamodb_and_comes_back(values: dict[str, Any]) -> None:
    """An effect writes what it says, by AWS's own reading of it and by ours."""
    item = wire.item(values)
    read: Any = TypeDeserializer().deserialize
    assert {name: read(attribute) for name, attribute in item.items()} == values
    assert wire.values(item) == values
