"""The simulated gateway without its network: payments, keys and troubles.

`FunctionBooks` are the deployed one's.
"""

import json
from typing import Any, Final

import pytest

from local.simulated_gateway import Books, GatewayRequest, Reply, Troubles
from tests.functions.gateways import FunctionBooks

NONE: Final = Troubles()
ORDER: Final = {"reference": "order_01", "customer": "customer_a", "amount": 1250}

type Steps = list[tuple[str, int | None, int]]
"""Operations on the payment: name, amount and status of the answer."""


def send(books: Books, path: str, key: str, body: dict[str, Any]) -> Reply:
    request = GatewayRequest(path, key, body)
    return books.begin(request) or books.finish(request)


def authorize(books: Books, key: str = "key-1", **changes: Any) -> Reply:
    return send(books, "/payments", key, ORDER | changes)


def ledger(books: Books) -> list[dict[str, Any]]:
    payments: list[dict[str, Any]] = books.look_up("/ledger", {}).body["payments"]
    return payments


KINDS: Final = pytest.mark.parametrize("kind", [Books, FunctionBooks])
STEPS: Final[list[tuple[Troubles, Steps, tuple[str, list[int], list[int]]]]] = [
    (
        NONE,
        [("capture", 1300, 422), ("capture", 1200, 200), ("refund", None, 200)],
        ("refunded", [1200], [1200]),
    ),
    (
        NONE,
        [("refund", None, 200), ("refund", None, 200), ("capture", 1250, 422)],
        ("refunded", [], [1250, 1250]),
    ),
    (
        NONE,
        [("capture", 1250, 200), ("adjust", 1, 422), ("capture", 1250, 200)],
        ("captured", [1250, 1250], []),
    ),
    (
        NONE,
        [("capture", 0, 422), ("adjust", 1300, 200), ("capture", 1300, 200)],
        ("captured", [1300], []),
    ),
    (Troubles(declined=1.0), [("capture", 1250, 422), ("refund", None, 422)], ("declined", [], [])),
    (
        Troubles(capped=1.0),
        [("adjust", 1300, 402), ("capture", 1250, 200)],
        ("captured", [1250], []),
    ),
]


@KINDS
@pytest.mark.parametrize(("troubles", "steps", "charged"), STEPS)
def test_a_payment_is_what_was_done_to_it(
    kind: type[Books], troubles: Troubles, steps: Steps, charged: tuple[str, list[int], list[int]]
) -> None:
    """Each request under a new key is answered and in the ledger, or refused without a change."""
    books = (kind if troubles == NONE else Books)(troubles)
    name = authorize(books).body["id"]
    for number, (action, amount, status) in enumerate(steps):
        body = {} if amount is None else {"amount": amount}
        assert send(books, f"/payments/{name}/{action}", f"step-{number}", body).status == status, (
            action
        )
    (payment,) = ledger(books)
    assert (payment["status"], payment["captures"], payment["refunds"]) == charged


@KINDS
def test_a_key_names_one_request(kind: type[Books]) -> None:
    """The same request gets the first answer again, another one is refused.

    Another or a forgotten key pays again.
    """
    books = kind()
    assert authorize(books) == authorize(books)
    assert authorize(books, amount=1).status == 422
    assert len(ledger(books)) == 1
    authorize(books, "key-2")
    assert len(ledger(books)) == 2
    forgetful = Books(Troubles(forgotten=1.0))
    assert authorize(forgetful) != authorize(forgetful)
    assert (len(ledger(forgetful)), forgetful.met["forgotten"]) == (2, 2)


def test_a_request_that_is_being_worked_on_shows_as_pending() -> None:
    """Its key is refused until it is finished.

    Its payment can be found by the client's name for it.
    """
    books = Books()
    request = GatewayRequest("/payments", "key-1", ORDER)
    first = books.begin(request)
    second = books.begin(request)
    assert (first, second and second.status) == (None, 409)
    (found,) = books.look_up("/payments", {"reference": ["order_01"]}).body["payments"]
    assert found["status"] == "pending"
    assert books.finish(request).body["status"] == "authorized"


@KINDS
def test_a_request_that_cannot_be_done_is_refused(kind: type[Books]) -> None:
    """It leaves no payment behind, and no payment is found."""
    books = kind()
    for path, body, status in (
        ("/payments", {"reference": "order_01"}, 422),
        ("/payments/pay_9/refund", {}, 404),
        ("/payments/pay_9/capture", {"amount": 1}, 404),
        ("/elsewhere", ORDER, 404),
    ):
        assert send(books, path, path, body).status == status
        assert books.look_up("/payments/pay_9", {}).status == 404
    assert ledger(books) == []


RESERVATION: Final = ORDER | {"currency": "CHF"}


@pytest.mark.parametrize("name", [None, *RESERVATION])
@pytest.mark.parametrize("value", [None, "", 0, True, 12.5, "x" * 300, 10**20])
def test_a_body_that_is_no_reservation_is_refused(name: str | None, value: object) -> None:
    """Nothing is reserved for it, and the refusal is final."""
    books = FunctionBooks()
    body = value if name is None else RESERVATION | {name: value}
    assert (
        books.send("POST", "/payments", json.dumps(body), {"Idempotency-Key": "key"}).status == 422
    )
    assert ledger(books) == []


@pytest.mark.parametrize("earlier", [0, 1])
def test_requests_at_the_same_time_are_all_kept(earlier: int) -> None:
    """A payment made between another's decision and commit is not overwritten; both are found."""
    books = FunctionBooks()
    for _ in range(earlier):
        authorize(books, "earlier")
    books.transport.meanwhile(lambda: authorize(books, "second"))
    assert authorize(books, "first").status == 201
    found = books.look_up("/payments", {"reference": ["order_01"]}).body["payments"]
    assert [books.look_up(f"/payments/{each['id']}", {}).body for each in found] == found
    assert len({each["id"] for each in found}) == earlier + 2


def test_rides_of_which_an_error_is_kept_are_known() -> None:
    """A request under a further key takes effect, whichever step it is."""

    class Keeps(Books):
        def _meets(self, trouble: str, name: str) -> bool:
            return trouble == "kept" and name in {"order_01-authorize", "pay_000001-capture"}

    books = Keeps()
    assert authorize(books, "order_01-authorize").status == 500
    assert books.kept == {"order_01"}
    assert authorize(books, "order_01-authorize-2").status == 201
    books.kept.clear()
    for key, status in (("pay_000001-capture", 500), ("pay_000001-capture-2", 200)):
        assert send(books, "/payments/pay_000001/capture", key, {"amount": 1250}).status == status
    assert books.kept == {"order_01"}
