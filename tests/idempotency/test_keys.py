"""How an event names its operation."""

import enum
import uuid
from typing import Any

import jmespath
import pytest

from idempotency.errors import ConfigurationError, KeyExpressionError, MissingKeyError
from idempotency.keys import LONGEST_KEY, check_name, extractor, record_key
from tests.idempotency.samples import Text

EVENT: dict[str, Any] = {"detail": {"id": "id-1", "data": {"tenant": "north", "stops": ["a", "b"], "zero": 0}}}


Kind = enum.Enum("Kind", {"EXPRESS": "express", "FIRST": 1, "NOTHING": None, "PAIR": ("a", "b")})
Tenant = enum.Enum("Tenant", {"NORTH": "north"}, type=str)


class TestExtractor:
    @pytest.mark.parametrize(
        "expression",
        [
            "detail.missing || detail.id",
            "[detail.data.tenant, detail.id]",
            "[detail.data.tenant, detail.data.missing]",
            "detail.data.stops[1:]",
            'detail."id"',
            "join('-', detail.data.stops)",
            "not_null(detail.missing, detail.data.zero, detail.id)",
        ],
    )
    def test_expression_finds_what_jmespath_finds(self, expression: str) -> None:
        """Every other expression than a dotted path is interpreted."""
        assert extractor(expression, "key")(EVENT) == jmespath.search(expression, EVENT)

    @pytest.mark.parametrize(
        "expression",
        ["detail.", "[", "", "a b", "detail..id", "[a, lower(b)]", "join('-')", "a[?length(b, c) > `1`]", "not_null()"],
    )
    def test_broken_expression_is_told_when_the_consumer_is_built(self, expression: str) -> None:
        """An invalid expression raises ConfigurationError, which names the setting."""
        with pytest.raises(ConfigurationError, match="payload="):
            extractor(expression, "payload")

    @pytest.mark.parametrize(
        "expression", ["length(detail.missing)", "join('-', [detail.data.zero])", "detail.data.stops[::0]"]
    )
    def test_expression_that_does_not_fit_is_no_fault_of_the_message(self, expression: str) -> None:
        """An expression that fails on a message raises KeyExpressionError, which is not the message's fault."""
        with pytest.raises(KeyExpressionError, match="key=") as raised:
            extractor(expression, "key")(EVENT)
        assert not isinstance(raised.value, ValueError | MissingKeyError)


class TestRecordKey:
    """The key of a record, which is the same for one operation and for no other."""

    @pytest.mark.parametrize(
        ("found", "key"),
        [
            ("order_01", "order_01"),
            (7, "7"),
            (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
            (Tenant.NORTH, "north"),
            (Kind.EXPRESS, "express"),
            (Kind.FIRST, "1"),
            (Text("order_01"), "order_01"),
            ("50%#1", "50%25%231"),
            ("\ud83d%uD83D", "%uD83D%25uD83D"),
            (("north", "order_01"), "north#order_01"),
            ([Tenant.NORTH, 7], "north#7"),
            (("a#b", "c"), "a%23b#c"),
            (("order_01",), "order_01#"),
        ],
    )
    def test_key_is_the_consumer_and_what_was_found(self, found: object, key: str) -> None:
        """The record's key names consumer, operation and idempotency key, in a form that a reader recognises."""
        assert record_key("history", found) == f"history#{key}"
        assert record_key("history", found, "charge") == f"history/charge#{key}"

    @pytest.mark.parametrize(
        "found",
        [None, "", Text(), [], (), [None], Kind.NOTHING, Kind.PAIR, True, 1.5, {"a": 1}, {1}, b"b", object(), 10**5000],
        ids=lambda found: type(found).__name__,
    )
    def test_what_is_no_name_is_no_key(self, found: object) -> None:
        """A key that is missing, partly missing or has no text raises MissingKeyError."""
        for value in (found, ("north", found), [found]):
            with pytest.raises(MissingKeyError):
                record_key("history", value)

    def test_long_key_is_hashed(self) -> None:
        """A key that is too long in bytes is replaced by its hash, after the consumer's name."""
        longest = "x" * (LONGEST_KEY - len("history#"))
        assert record_key("history", longest) == f"history#{longest}"
        for text in (f"{longest}x", "ß" * (LONGEST_KEY // 2), "#" * (LONGEST_KEY // 3)):
            assert record_key("history", text).startswith("history#%sha256:")

    @pytest.mark.parametrize("name", ["", "a#b", "a/b", "\ud83d", "ß" * 128])
    def test_name_that_would_confuse_keys_is_refused(self, name: str) -> None:
        """A name contains no separator and leaves room for a key."""
        check_name("ride-history, ß %" + "x" * 200, "a consumer's name")
        with pytest.raises(ConfigurationError, match="a consumer's name"):
            check_name(name, "a consumer's name")
