"""How an event names its operation."""

import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import jmespath
import pytest

from idempotency.errors import ConfigurationError, MissingKeyError
from idempotency.keys import LONGEST_KEY, extractor, record_key

EVENT: dict[str, Any] = {
    "detail": {
        "idempotencyid": "id-1",
        "attributes": {"idempotencyId": "id-0"},
        "data": {"orderID": "order_01", "tenant": "north", "stops": ["a", "b"], "zero": 0, "none": None},
    },
}


class TestExtractor:
    """What a consumer's ``key=`` and ``payload=`` may be."""

    def test_function_is_taken_as_it_is(self) -> None:
        """A function of the event needs no interpreter."""
        assert extractor(str, "key") is str

    @pytest.mark.parametrize(
        "expression",
        [
            "detail.idempotencyid",
            "detail",
            "detail.data.zero",
            "detail.data.none",
            "detail.missing.deeper",
            "detail.idempotencyid.deeper",
            "detail.data.stops.deeper",
            "missing",
            "detail.idempotencyid || detail.attributes.idempotencyId",
            "[detail.data.tenant, detail.data.orderID]",
            "[detail.data.tenant, detail.data.missing]",
            "detail.data.stops[1]",
            'detail."idempotencyid"',
        ],
    )
    def test_expression_finds_what_jmespath_finds(self, expression: str) -> None:
        """Expressions that are answered without the interpreter are answered as it would."""
        assert extractor(expression, "key")(EVENT) == jmespath.search(expression, EVENT)

    @pytest.mark.parametrize("event", [None, [], "text", 7, {"detail": None}, {"detail": "text"}, {"detail": []}])
    def test_expression_finds_nothing_in_another_shape(self, event: object) -> None:
        """An event without the key's place has no key."""
        assert extractor("detail.idempotencyid", "key")(event) is None

    @pytest.mark.parametrize("expression", ["detail.", "[", "", "a b", "detail..id"])
    def test_broken_expression_is_told_when_the_consumer_is_built(self, expression: str) -> None:
        """An expression that does not compile is named, with the setting that it was given to."""
        with pytest.raises(ConfigurationError, match="payload="):
            extractor(expression, "payload")


class TestRecordKey:
    """The key of a record, which is the same for one operation and for no other."""

    @pytest.mark.parametrize(
        ("found", "key"),
        [
            ("order_01", "history#order_01"),
            (7, "history#7"),
            (uuid.UUID(int=7), "history#00000000-0000-0000-0000-000000000007"),
            (("north", "order_01"), "history#north#order_01"),
            (["north", 7], "history#north#7"),
            (("a#b", "c"), "history#a%23b#c"),
            (("a", "b#c"), "history#a#b%23c"),
            (("a%23b", "c"), "history#a%2523b#c"),
        ],
    )
    def test_key_is_the_consumer_and_what_was_found(self, found: object, key: str) -> None:
        """The record's key names the consumer and the operation, in a form that a reader recognises."""
        assert record_key("history", found) == key

    @pytest.mark.parametrize(
        "found",
        [None, "", [], (), [None], ["north", None], ["north", ""], ("north", ["order_01"])],
    )
    def test_missing_key_or_part_is_an_error(self, found: object) -> None:
        """A key that is missing, or partly missing, is never replaced by something that strangers share."""
        with pytest.raises(MissingKeyError):
            record_key("history", found)

    @pytest.mark.parametrize(
        "found",
        [True, 1.5, {"a": 1}, {1}, b"bytes", object(), len, Decimal(1), datetime(2026, 11, 21, tzinfo=UTC)],
        ids=lambda found: type(found).__name__,
    )
    def test_what_is_no_name_is_no_key(self, found: object) -> None:
        """Only a string, a whole number or a UUID names an operation: others change from process to process."""
        for value in (found, ("north", found)):
            with pytest.raises(MissingKeyError):
                record_key("history", value)

    def test_long_key_is_hashed(self) -> None:
        """What DynamoDB could not take as a key is replaced by its hash, counted in bytes, and keeps its consumer."""
        longest = "x" * (LONGEST_KEY - len("history#"))
        assert record_key("history", longest) == f"history#{longest}"
        for text in (f"{longest}x", "ß" * (LONGEST_KEY // 2)):
            key = record_key("history", text)
            assert len(key.encode()) <= LONGEST_KEY
            assert key.startswith("history#sha256:")
        assert record_key("history", f"{longest}x") != record_key("history", f"{longest}y")
