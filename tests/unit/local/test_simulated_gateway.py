"""The simulated gateway without its network: what it charges, what it recognises, and what goes wrong on purpose."""

from typing import Any

import pytest

from local.simulated_gateway import Books, Reply, Request, Strict, Trouble, Troubles

ORDER = {"reference": "order_01", "customer": "customer_a", "amount": 1250}


def send(books: Books, path: str, key: str, body: dict[str, Any]) -> Reply:
    """Have a request take effect, and return the answer."""
    request = Request(path, key, body)
    return books.begin(request) or books.finish(request)


def authorize(books: Books, key: str = "key-1", **changes: Any) -> Reply:
    """Ask for money to be reserved."""
    return send(books, "/payments", key, ORDER | changes)


def ledger(books: Books) -> list[dict[str, Any]]:
    """Return every payment."""
    payments: list[dict[str, Any]] = books.look_up("/ledger", {}).body["payments"]
    return payments


def test_a_payment_is_reserved_captured_and_given_back() -> None:
    """Each step shows in the ledger, with its amount."""
    books = Books()
    name = authorize(books).body["id"]
    assert send(books, f"/payments/{name}/capture", "key-2", {"amount": 1300}).body["status"] == "captured"
    assert send(books, f"/payments/{name}/refund", "key-3", {}).body["status"] == "refunded"
    (payment,) = ledger(books)
    assert (payment["reference"], payment["captures"], payment["refunds"]) == ("order_01", [1300], [1300])


def test_the_same_request_under_the_same_key_takes_effect_once() -> None:
    """The second answer is the first one's."""
    books = Books()
    assert authorize(books) == authorize(books)
    assert len(ledger(books)) == 1


def test_another_key_is_another_request() -> None:
    """It believes its clients: whoever asks twice under two keys is charged twice."""
    books = Books()
    authorize(books, "key-1")
    authorize(books, "key-2")
    name = ledger(books)[0]["id"]
    for key in ("key-3", "key-4"):
        send(books, f"/payments/{name}/capture", key, {"amount": 1250})
    assert [len(payment["captures"]) for payment in ledger(books)] == [2, 0]


def test_another_request_under_the_same_key_is_refused() -> None:
    """A key names one request."""
    books = Books()
    authorize(books)
    assert authorize(books, amount=1).status == 422
    assert len(ledger(books)) == 1


def test_a_request_that_is_being_worked_on_shows_as_pending() -> None:
    """Its key is refused until it is finished, and its payment can be found by the client's name for it."""
    books = Books()
    request = Request("/payments", "key-1", ORDER)
    assert books.begin(request) is None
    reply = books.begin(request)
    assert reply is not None
    assert reply.status == 409
    (found,) = books.look_up("/payments", {"reference": ["order_01"]}).body["payments"]
    assert found["status"] == "pending"
    assert books.finish(request).body["status"] == "authorized"


def test_a_forgotten_key_charges_again() -> None:
    """Gateways keep keys for a while only; what they keep for ever is the payment."""
    books = Books(Troubles(forgotten=1.0))
    authorize(books)
    authorize(books)
    assert len(ledger(books)) == 2
    assert books.met["forgotten"] == 2


def test_the_same_customers_are_declined_for_the_same_seed() -> None:
    """Which rides cannot be paid depends on nothing but the seed and the ride, however often it is asked."""

    def declined(seed: int) -> set[str]:
        books = Books(Troubles(declined=0.3), seed=seed)
        names = [f"order_{number:02d}" for number in range(50)]
        return {name for name in names if authorize(books, name, reference=name).status == 402}

    assert declined(1) == declined(1) != declined(2)
    assert 5 < len(declined(1)) < 25


def test_a_declined_payment_can_be_neither_captured_nor_refunded() -> None:
    """There is nothing to take or to give back."""
    books = Books(Troubles(declined=1.0))
    name = authorize(books).body["id"]
    assert send(books, f"/payments/{name}/capture", "key-2", {"amount": 1250}).status == 422
    assert send(books, f"/payments/{name}/refund", "key-3", {}).status == 422


def test_what_is_given_back_cannot_be_captured() -> None:
    """A capture that comes after the refund is refused."""
    books = Books()
    name = authorize(books).body["id"]
    send(books, f"/payments/{name}/refund", "key-2", {})
    assert send(books, f"/payments/{name}/capture", "key-3", {"amount": 1250}).status == 422


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/payments", {"reference": "order_01"}),
        ("/payments/pay_9/refund", {}),
        ("/payments/pay_9/capture", {"amount": 1}),
        ("/elsewhere", ORDER),
    ],
)
def test_what_cannot_be_done_is_refused_and_forgotten(path: str, body: dict[str, Any]) -> None:
    """It leaves no payment behind, and the key is free for the right request."""
    books = Books()
    assert send(books, path, "key-1", body).status == 404
    assert ledger(books) == []
    assert authorize(books).status == 201


def test_a_strict_gateway_captures_no_more_than_is_reserved() -> None:
    """The reservation has to be raised first, unless that is refused."""
    for capped in (0.0, 1.0):
        books = Books(Troubles(capped=capped), strict=Strict())
        path = f"/payments/{authorize(books).body['id']}"
        assert send(books, f"{path}/capture", "key-2", {"amount": 1300}).status == 422
        assert send(books, f"{path}/adjust", "key-3", {"amount": 1300}).status == (402 if capped else 200)
        assert send(books, f"{path}/capture", "key-4", {"amount": 1300}).status == (422 if capped else 200)
    assert authorize(books, "key-5", amount=0).status == 422


def test_a_strict_gateway_takes_its_time_and_forgets() -> None:
    """A reservation is pending for a while, and its key is known for another while only."""
    time = [0.0]
    books = Books(Troubles(pending=1.0), strict=Strict(keys_s=9, pending_s=3), clock=lambda: time[0])
    for now, status, payments in ((0.0, "pending", 1), (3.0, "authorized", 1), (9.1, "authorized", 2)):
        time[0] = now
        authorize(books)
        assert (ledger(books)[0]["status"], len(ledger(books))) == (status, payments)


def test_an_unknown_payment_is_not_found() -> None:
    """Asking for it changes nothing."""
    assert Books().look_up("/payments/pay_9", {}).status == 404


def test_troubles_come_in_the_shares_that_were_asked_for() -> None:
    """Of many requests each trouble meets its share, the same for the same seed; a retry may be luckier."""
    shares = Troubles.mixed(0.5)
    one, other = Books(shares, seed=1), Books(shares, seed=1)
    met = [one.trouble(f"key-{number}") for number in range(2000)]
    assert met == [other.trouble(f"key-{number}") for number in range(2000)]
    for trouble in Trouble:
        assert 120 < met.count(trouble) < 280
    unlucky = [f"key-{number}" for number, trouble in enumerate(met) if trouble is not None]
    assert any(one.trouble(key) is None for key in unlucky)


def test_without_troubles_nothing_goes_wrong() -> None:
    """A gateway behaves unless it is told not to."""
    books = Books()
    assert {books.trouble(f"key-{number}") for number in range(100)} == {None}
