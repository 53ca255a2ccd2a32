"""The simulated gateway of a deployed stack: it answers as the one that tests and demo use, and keeps every payment."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.simulated_gateway import Books, Reply, Request
from tests.functions.gateways import FunctionBooks

RESERVATION: Final = {"reference": "order_01", "customer": "customer_a", "amount": 1250, "currency": "CHF"}

amounts = st.integers(1, 3)
steps = st.tuples(
    st.sampled_from(["payments", "adjust", "capture", "refund"]),
    st.integers(0, 3).map("key-{}".format),
    st.integers(0, 2),  # which ride, or which payment
    amounts,
)


class Side:
    """One of two gateways that get the same requests; ids of payments differ."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self._ids: list[str] = []

    def take(self, action: str, key: str, which: int, amount: int) -> tuple[int, object]:
        """Send a request; return the status and the payment of an answer."""
        body: dict[str, Any] = {} if action == "refund" else {"amount": amount}
        if action == "payments":
            path, body = "/payments", {**RESERVATION, "reference": f"order_{which}", **body}
        else:
            path = f"/payments/{self._ids[which % len(self._ids)]}/{action}"
        request = Request(path, key, body)
        reply = self.books.begin(request) or self.books.finish(request)
        if reply.status == 201 and reply.body["id"] not in self._ids:
            self._ids.append(reply.body["id"])
        return reply.status, known(reply.body) if reply.status < 300 else None

    def found(self) -> list[object]:
        """Return the payments of each ride, and each payment by its id."""
        by_ride = [self.books.look_up("/payments", {"reference": [f"order_{which}"]}) for which in range(3)]
        by_id = [self.books.look_up(f"/payments/{name}", {}) for name in self._ids]
        return [[known(each) for each in reply.body["payments"]] for reply in by_ride] + [known(r.body) for r in by_id]


def known(payment: Any) -> dict[str, Any]:
    """Return a payment without its id."""
    return {name: value for name, value in payment.items() if name != "id"}


@given(amounts, st.lists(steps, max_size=12))
def test_it_answers_as_the_gateway_of_the_tests_does(first: int, more: list[tuple[str, str, int, int]]) -> None:
    """Any requests, repeated ones and reused keys among them, have the same answers and leave the same payments."""
    function, reference = Side(FunctionBooks()), Side(Books())
    for step in [("payments", "first", 0, first), *more]:
        assert function.take(*step) == reference.take(*step), step
    assert function.found() == reference.found()


@pytest.mark.parametrize("name", [None, *RESERVATION])
@pytest.mark.parametrize("value", [None, "", 0, -1, True, 12.5, "x" * 300, "1250", 10**20])
def test_a_body_that_is_no_reservation_is_refused(name: str | None, value: object) -> None:
    """Nothing is reserved for it, and the refusal is final."""
    books = FunctionBooks()
    body = value if name is None else {**RESERVATION, name: value}
    valid = name in {"reference", "customer"} and value == "1250"
    reply = books.send("POST", "/payments", json.dumps(body), {"Idempotency-Key": "key"})
    assert reply.status == (201 if valid else 422)
    assert len(books.look_up("/ledger", {}).body["payments"]) == valid


@pytest.mark.parametrize("path", ["/", "/payments", "/payments/pay_1", "/ledger"])
def test_what_is_not_there_is_refused(path: str) -> None:
    """Unknown payments and operations, and a change without a key."""
    books = FunctionBooks()
    assert books.send("GET", path).status == 404
    assert books.send("POST", f"{path}/capture", '{"amount": 1}', {"Idempotency-Key": "key"}).status == 404
    assert books.send("POST", path, json.dumps(RESERVATION)).status == 400


@pytest.mark.parametrize("earlier", [0, 1])
def test_requests_at_the_same_time_are_all_kept(earlier: int) -> None:
    """A payment that is made between another one's decision and its commit is not overwritten."""
    books = FunctionBooks()
    for number in range(earlier):
        reserve(books, f"earlier-{number}")

    def interrupt(operation: str) -> None:
        if operation == "TransactWriteItems":
            books.dynamodb.before = lambda _: None
            assert reserve(books, "second").status == 201

    books.dynamodb.before = interrupt
    assert reserve(books, "first").status == 201
    assert len(books.look_up("/payments", {"reference": ["order_01"]}).body["payments"]) == earlier + 2


def reserve(books: Books, key: str) -> Reply:
    """Reserve money for one ride."""
    return books.finish(Request("/payments", key, RESERVATION))
