"""How an event names its operation."""

import enum
import uuid
from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carride_idempotency.errors import ConfigurationError, KeyExpressionError, MissingKeyError
from carride_idempotency.keys import LONGEST_KEY, check_name, extractor, record_key
from tests.samples import Text

EVENT: dict[str, Any] = {
    "detail": {"id": "id-1", "data": {"tenant": "north", "stops": ["a", "b"], "zero": 0}}
}
Kind = enum.Enum("Kind", {"EXPRESS": "express", "FIRST": 1, "NOTHING": None, "PAIR": ("a", "b")})
Tenant = enum.Enum("Tenant", {"NORTH": "north"}, type=str)
Size = enum.Enum("Size", {"ONE": 1}, type=int)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "detail",
            "detail.id",
            "detail.id.more",
            "detail.missing.more",
            "detail.data.stops.more",
            "detail.data.zero",
        ),
        "detail.missing || detail.id",
        "[detail.data.tenant, detail.id]",
        "[detail.data.tenant, detail.data.missing]",
        "detail.data.stops[1:]",
        'detail."id"',
        "join('-', detail.data.stops)",
        "not_null(detail.missing, detail.data.zero, detail.id)",
    ],
)
def test_expression_finds_what_jmespath_finds(expression: str) -> None:
    """Also a dotted path, which is not passed to JMESPath."""
    assert extractor(expression, "key")(EVENT) == jmespath.search(expression, EVENT)


BROKEN = [
    "detail.",
    "[",
    "",
    "a b",
    "detail..id",
    "[a, lower(b)]",
    "join('-')",
    "a[?length(b, c) > `1`]",
    "not_null()",
]


@pytest.mark.parametrize("expression", BROKEN)
def test_broken_expression_is_told_when_the_consumer_is_built(expression: str) -> None:
    """An invalid expression raises ConfigurationError, which names the setting."""
    with pytest.raises(ConfigurationError, match="payload="):
        extractor(expression, "payload")


UNFIT = ["length(detail.missing)", "join('-', [detail.data.zero])", "detail.data.stops[::0]"]


@pytest.mark.parametrize("expression", UNFIT)
def test_expression_that_does_not_fit_is_no_fault_of_the_message(expression: str) -> None:
    """An expression that fails raises KeyExpressionError, which is not the message's fault."""
    with pytest.raises(KeyExpressionError, match="key=") as raised:
        extractor(expression, "key")(EVENT)
    assert not isinstance(raised.value, ValueError | MissingKeyError)


NAMED: list[tuple[object, str]] = [
    (7, "7"),
    (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Tenant.NORTH, "north"),
    (Kind.FIRST, "1"),
    (Text("order_01"), "order_01"),
    ("\ud83d%uD83D", "%uD83D%25uD83D"),
    (("north", "order_01"), "north#order_01"),
    ([Tenant.NORTH, 7], "north#7"),
    (("a#b", "c"), "a%23b#c"),
    (("order_01",), "order_01#"),
    ("x" * (LONGEST_KEY - len("history#")), "x" * (LONGEST_KEY - len("history#"))),
]


@pytest.mark.parametrize(("found", "key"), NAMED)
def test_key_is_the_consumer_and_what_was_found(found: object, key: str) -> None:
    """The record's key names consumer, operation and idempotency key, legibly."""
    assert record_key("history", found) == f"history#{key}"
    if len(key) < LONGEST_KEY / 2:
        assert record_key("history", found, "charge") == f"history/charge#{key}"


PARTS = st.text(alphabet="ab#%:/25uD8\ud83d\udfffß\U0001f695", min_size=1, max_size=4)
SCALARS = st.one_of(
    PARTS,
    PARTS.map(lambda text: text * LONGEST_KEY),
    st.integers(-9, 9),
    st.sampled_from([*Tenant, *Size, Kind.EXPRESS, Kind.FIRST, "1", "north", "express"]),
)
KEYS = SCALARS | st.lists(SCALARS, min_size=1, max_size=3)
NAMES = st.text(alphabet="ab%:", min_size=1, max_size=2)


def meant(key: object) -> object:
    if isinstance(key, list):
        return [meant(part) for part in key]
    return str(key.value if isinstance(key, enum.Enum) else key)


@settings(derandomize=True, database=None)
@given(*2 * [NAMES, st.none() | NAMES, KEYS])
def test_two_keys_never_meet(
    consumer: str,
    operation: str | None,
    key: Any,
    other_consumer: str,
    other_operation: str | None,
    other_key: Any,
) -> None:
    """Other consumers, operations or keys give other record keys, which fit into DynamoDB."""
    one = record_key(consumer, key, operation)
    other = record_key(other_consumer, other_key, other_operation)
    same = (consumer, operation, meant(key)) == (other_consumer, other_operation, meant(other_key))
    assert (one == other) == same
    assert len(one.encode()) <= LONGEST_KEY
    _, _, text = one.partition("#")  # a stored key is another key, unless it was stored unchanged
    assert (record_key(consumer, text, operation) == one) == (text == meant(key))


NO_KEYS: list[Any] = [None, "", Text(), [], (), [None], Kind.NOTHING, Kind.PAIR]
NO_KEYS += [True, 1.5, {"a": 1}, {1}, b"b", object(), 10**5000]


@pytest.mark.parametrize("found", NO_KEYS, ids=lambda found: type(found).__name__)
def test_what_is_no_name_is_no_key(found: object) -> None:
    """A key that is missing, partly missing or has no text raises MissingKeyError."""
    for value in (found, ("north", found), [found]):
        with pytest.raises(MissingKeyError):
            record_key("history", value)


@pytest.mark.parametrize("name", ["", "a#b", "a/b", "\ud83d", "ß" * 128])
def test_name_that_would_confuse_keys_is_refused(name: str) -> None:
    """A name contains no separator and leaves room for a key."""
    check_name("ride-history, ß %" + "x" * 200, "a consumer's name")
    with pytest.raises(ConfigurationError, match="a consumer's name"):
        check_name(name, "a consumer's name")
