"""What `make costs` counts for a store is what the stores are asked for."""

import math
import re

import pytest

from tools.costs import stores
from tools.costs.stores import dynamodb_dollars, on_dynamodb, on_valkey, size_of, valkey_dollars
from tools.transformed import ROOT

pytestmark = pytest.mark.integration

GUIDE = (ROOT / "layers" / "idempotency" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "settings"),
    [("new event", {"effects": True}), ("new event, `atomic`", {"effects": True, "atomic": True})],
)
def test_units_are_those_of_the_guide(path: str, settings: dict[str, bool]) -> None:
    """The table of calls and the bill count the same."""
    (stated,) = re.findall(rf"^\| {re.escape(path)} \| (\d) \| (\d)", GUIDE, re.MULTILINE)
    use = on_dynamodb(**settings)
    assert (use.requests, use.units) == tuple(map(int, stated))


def test_a_duplicate_costs_one_unit() -> None:
    """An atomic one takes two, in DynamoDB."""
    assert on_dynamodb().duplicate_units == 1
    assert on_dynamodb(atomic=True, effects=True).duplicate_units == 2
    assert on_valkey().duplicate_units == 1


def test_a_longer_window_is_billed_by_memory_and_hardly_by_disk() -> None:
    """Twice the operations cost twice as much, beyond Valkey's least size."""
    table, server = on_dynamodb(), on_valkey()
    for dollars, use in ((dynamodb_dollars, table), (valkey_dollars, server)):
        assert math.isclose(dollars(use, 2e8, 30), 2 * dollars(use, 1e8, 30))
    assert dynamodb_dollars(table, 1e8, 30) < 1.2 * dynamodb_dollars(table, 1e8, 1)
    assert valkey_dollars(server, 1e8, 30) > 20 * valkey_dollars(server, 1e8, 1)
    assert valkey_dollars(server, 1, 1 / 24) > 6, "an empty server is billed too"


def test_an_item_is_as_large_as_dynamodb_says() -> None:
    """Names and values in UTF-8; a number takes a byte for two digits, and one more."""
    assert size_of({"ab": {"S": "ü"}, "n": {"N": "1234"}, "b": {"BOOL": True}}) == 4 + 4 + 2


def test_the_page_has_the_current_tables() -> None:
    """`make contract` writes them."""
    page = (ROOT / "layers" / "idempotency" / "docs" / "stores.md").read_text(encoding="utf-8")
    assert stores.current(page) == page
    assert page.count("| DynamoDB") >= 3
