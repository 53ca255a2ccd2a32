"""The simulated gateway of a deployed stack; tests/local/test_simulated_gateway.py has what both gateways do."""

import json
from typing import Final

import pytest

from local.simulated_gateway import Books, Reply, Request
from tests.functions.gateways import FunctionBooks

RESERVATION: Final = {"reference": "order_01", "customer": "customer_a", "amount": 1250, "currency": "CHF"}


@pytest.mark.parametrize("name", [None, *RESERVATION])
@pytest.mark.parametrize("value", [None, "", 0, True, 12.5, "x" * 300, 10**20])
def test_a_body_that_is_no_reservation_is_refused(name: str | None, value: object) -> None:
    """Nothing is reserved for it, and the refusal is final."""
    books = FunctionBooks()
    body = value if name is None else {**RESERVATION, name: value}
    assert books.send("POST", "/payments", json.dumps(body), {"Idempotency-Key": "key"}).status == 422
    assert books.look_up("/ledger", {}).body["payments"] == []


@pytest.mark.parametrize("earlier", [0, 1])
def test_requests_at_the_same_time_are_all_kept(earlier: int) -> None:
    """A payment that is made between another one's decision and its commit is not overwritten, and both are found."""
    books = FunctionBooks()
    for number in range(earlier):
        reserve(books, f"earlier-{number}")

    books.transport.meanwhile(lambda: reserve(books, "second"))
    assert reserve(books, "first").status == 201
    found = books.look_up("/payments", {"reference": ["order_01"]}).body["payments"]
    assert [books.look_up(f"/payments/{each['id']}", {}).body for each in found] == found
    assert len({each["id"] for each in found}) == earlier + 2


def reserve(books: Books, key: str) -> Reply:
    """Reserve money for one ride."""
    return books.finish(Request("/payments", key, RESERVATION))
