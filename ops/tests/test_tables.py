"""Tables are read in DynamoDB's wire format."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from carride_idempotency import StoreError
from carride_idempotency.stores.retries import Retries
from ops import tables

KEYS: Final = [{"id": {"S": f"{number:03}"}} for number in range(130)]


class Throttled:
    """A DynamoDB that answers some keys of a batch, and leaves the others out."""

    def __init__(self, answered: int) -> None:
        self._answered = answered
        self.asked = 0

    def batch_get_item(self, **request: Any) -> Mapping[str, Any]:
        self.asked += 1
        wanted = [
            (table, key) for table, each in request["RequestItems"].items() for key in each["Keys"]
        ]
        found: dict[str, list[Any]] = {}
        left: dict[str, Any] = {}
        for table, key in wanted[: self._answered]:
            found.setdefault(table, []).append(key)
        for table, key in wanted[self._answered :]:
            left.setdefault(table, {"Keys": []})["Keys"].append(key)
        return {"Responses": found, "UnprocessedKeys": left}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_retries", Retries(sleep=lambda _: None))


@pytest.mark.parametrize(("answered", "asked"), [(100, 2), (40, 4), (10, 13)])
def test_what_a_batch_leaves_out_is_asked_for_again(answered: int, asked: int) -> None:
    """However often, while each answer brings some."""
    dynamodb = Throttled(answered)
    assert [*tables.get(dynamodb, "Rides", KEYS)] == KEYS
    assert dynamodb.asked == asked
    each = dict(zip(["A", "B", "C"], KEYS, strict=False))
    assert tables.get_each(Throttled(1), each) == each


def test_a_table_that_answers_nothing_is_not_asked_for_ever() -> None:
    """The command ends, and says that nothing was read."""
    dynamodb = Throttled(0)
    with pytest.raises(StoreError, match="no key was read"):
        [*tables.get(dynamodb, "Rides", KEYS)]
    with pytest.raises(StoreError, match="no key was read"):
        tables.get_each(dynamodb, {"A": KEYS[0]})
    assert dynamodb.asked == 2 * 6
