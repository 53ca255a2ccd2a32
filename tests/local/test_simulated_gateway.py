"""The simulated gateway without its network: PaymentIntents, keys and troubles.

`FunctionBooks` are the deployed one's.
"""

from typing import Any, Final
from urllib.parse import urlencode

import pytest

from gateway_rules import DAY_S, Account, Answer
from local.simulated_gateway import Books, GatewayRequest, Troubles
from tests.functions.gateways import FunctionBooks, send

NOW_S: Final = 4e9
INTENTS: Final = "/v1/payment_intents"
FORM: Final = {
    "amount": "1250",
    "currency": "eur",
    "customer": "customer_a",
    "payment_method": "pm_card_of_customer_a",
    "payment_method_types[]": "card",
    "capture_method": "manual",
    "metadata[carride_ride]": "order_01",
    "expand[]": "latest_charge",
}
STEPS: Final[dict[str, dict[str, str]]] = {
    "confirm": {"off_session": "true"},
    "capture": {"amount_to_capture": "1250"},
    "cancel": {},
    "increment_authorization": {"amount": "2000"},
}
RAISABLE: Final = {
    "payment_method_options[card][request_incremental_authorization]": "if_available"
}


def prepare(books: Books, key: str = "prepare", **changes: str) -> Answer:
    """Make a PaymentIntent."""
    return send(books, "POST", INTENTS, key, urlencode(FORM | changes))


def change(books: Books, name: str, verb: str, key: str = "", **changes: str) -> Answer:
    """Change a PaymentIntent; ``refund`` gives back what was taken."""
    key = key or f"{verb} {len(verb)}"
    if verb == "refund":
        return send(books, "POST", "/v1/refunds", key, urlencode({"payment_intent": name}))
    form = urlencode(STEPS[verb] | changes)
    return send(books, "POST", f"{INTENTS}/{name}/{verb}", key, form)


def look(books: Books, name: str) -> dict[str, Any]:
    """Return a PaymentIntent, with its charge."""
    answer = send(books, "GET", f"{INTENTS}/{name}?expand[]=latest_charge")
    assert answer.status == 200
    return dict(answer.body)


def books(kind: str, troubles: Troubles | None = None) -> Books:
    """Return the books of this machine, or those of the deployed function."""
    if kind == "function":
        return FunctionBooks()
    return Books(troubles, clock=lambda: NOW_S)


KINDS: Final = pytest.mark.parametrize("kind", ["machine", "function"])
LIVES: Final[list[tuple[list[tuple[str, int]], str, str | None]]] = [
    ([], "requires_confirmation", None),
    ([("capture", 400), ("refund", 400)], "requires_confirmation", None),
    ([("cancel", 200), ("confirm", 400), ("cancel", 400)], "canceled", None),
    ([("confirm", 200), ("confirm", 400)], "requires_capture", "succeeded"),
    ([("confirm", 200), ("capture", 200), ("capture", 400)], "succeeded", "succeeded"),
    ([("confirm", 200), ("capture", 200), ("cancel", 400)], "succeeded", "succeeded"),
    (
        [("confirm", 200), ("capture", 200), ("refund", 200), ("refund", 400)],
        "succeeded",
        "succeeded",
    ),
    ([("confirm", 200), ("cancel", 200), ("capture", 400)], "canceled", "succeeded"),
    ([("confirm", 200), ("increment_authorization", 200)], "requires_capture", "succeeded"),
]


@KINDS
@pytest.mark.parametrize(("steps", "status", "charge"), LIVES)
def test_a_payment_is_what_its_state_lets_be_done_to_it(
    kind: str, steps: list[tuple[str, int]], status: str, charge: str | None
) -> None:
    """Each step happens once, under whatever key, and nothing after the end."""
    found = books(kind)
    name = prepare(found, **RAISABLE).body["id"]
    for number, (verb, answered) in enumerate(steps):
        assert change(found, name, verb, f"{number}").status == answered, verb
    intent = look(found, name)
    assert intent["status"] == status
    assert (intent["latest_charge"] or {}).get("status") == charge


@KINDS
def test_a_customers_payments_are_listed(kind: str) -> None:
    """All that were made, the newest first, a page at a time, and nobody else's."""
    found = books(kind)
    names = [prepare(found, f"{number}").body["id"] for number in range(3)]
    other = {"customer": "customer_b", "payment_method": "pm_card_of_customer_b"}
    prepare(found, "other", **other)
    query = "customer=customer_a&limit=2&expand[]=data.latest_charge"
    first = send(found, "GET", f"{INTENTS}?{query}").body
    after = first["data"][-1]["id"]
    second = send(found, "GET", f"{INTENTS}?{query}&starting_after={after}").body
    assert (first["has_more"], second["has_more"]) == (True, False)
    listed = [each["id"] for each in first["data"] + second["data"]]
    assert sorted(listed) == sorted(names)
    later = send(found, "GET", f"{INTENTS}?{query}&created[gte]={int(NOW_S) + 1}").body
    assert later["data"] == []


@KINDS
@pytest.mark.parametrize(
    ("customer", "verb", "status"),
    [
        ("cus_nobody", "", 400),
        ("cus_a_cardless", "", 400),
        ("cus_a_declined", "confirm", 402),
        ("cus_a_asked", "confirm", 402),
    ],
)
def test_a_customers_name_says_who_cannot_pay(
    kind: str, customer: str, verb: str, status: int
) -> None:
    """In stage `dev` anybody else exists, and pays. A refused confirmation is on record."""
    found = books(kind)
    given = {"customer": customer, "payment_method": f"pm_card_of_{customer}"}
    answer = prepare(found, **given)
    if not verb:
        assert answer.status == status
        return
    name = answer.body["id"]
    assert change(found, name, verb).status == status
    intent = look(found, name)
    assert intent["status"] == "requires_payment_method"
    assert intent["latest_charge"]["status"] == "failed"
    assert intent["last_payment_error"]["message"]


@KINDS
def test_a_request_that_cannot_be_done_is_refused(kind: str) -> None:
    """It leaves no payment behind, and no payment is found."""
    found = books(kind)
    for method, path, status in (
        ("POST", "/elsewhere", 404),
        ("GET", f"{INTENTS}/pi_9", 404),
        ("POST", f"{INTENTS}/pi_9/cancel", 404),
        ("POST", f"{INTENTS}/pi_9/explode", 404),
        ("POST", "/v1/refunds", 400),
        ("GET", INTENTS, 400),
        ("GET", f"{INTENTS}?customer=a&color=red", 400),
    ):
        assert send(found, method, path, path).status == status, path
    for wrong in ({"amount": "0"}, {"amount": "x"}, {"amount": "100000000"}, {"currency": ""}):
        assert prepare(found, str(wrong), **wrong).status == 400
    assert found.ledger() == []


def test_requests_at_the_same_time_do_not_overwrite_each_other() -> None:
    """Of two changes that read the same state, the deployed gateway commits one."""
    found = FunctionBooks()
    name = prepare(found).body["id"]
    change(found, name, "confirm")
    found.transport.meanwhile(lambda: change(found, name, "capture"))
    assert change(found, name, "cancel").status in {400, 429}
    assert look(found, name)["status"] == "succeeded"


def test_a_key_names_one_request() -> None:
    """The same request gets the first answer again, and another one is refused.

    A key is refused while its request is worked on, and forgotten after its time.
    """
    now = [NOW_S]
    found = Books(keys_s=60, clock=lambda: now[0])
    first = prepare(found)
    assert prepare(found) == first
    wrong = prepare(found, amount="1")
    assert wrong.body["error"]["type"] == "idempotency_error"
    now[0] += 61
    assert prepare(found) != first
    assert len(found.intents) == 2
    request = GatewayRequest("POST", INTENTS, "slow", urlencode(FORM))
    assert found.begin(request) is None
    again = found.begin(request)
    assert again is not None
    assert again.status == 409
    assert found.finish(request).status == 200
    forgetful = Books(Troubles(forgotten=1.0), clock=lambda: NOW_S)
    assert prepare(forgetful) != prepare(forgetful)
    assert forgetful.met["forgotten"] == 2


def test_an_error_is_kept_under_its_key() -> None:
    """A request under a further key takes effect."""

    class Keeps(Books):
        def _meets(self, trouble: str, name: str) -> bool:
            return trouble == "kept" and name == "prepare"

    found = Keeps()
    assert [prepare(found).status for _ in range(2)] == [500, 500]
    assert prepare(found, "prepare-2").status == 200
    assert found.met["kept"] == 2


def test_time_passes_at_the_gateway() -> None:
    """A confirmation is worked on for a while, and a hold ends: the payment is canceled then."""
    now = [NOW_S]
    found = Books(Troubles(pending=1.0), pending_s=5, clock=lambda: now[0])
    name = prepare(found).body["id"]
    assert change(found, name, "confirm").body["status"] == "processing"
    assert change(found, name, "cancel").status == 400
    now[0] += 5
    assert look(found, name)["status"] == "requires_capture"
    now[0] += 7 * DAY_S
    (entry,) = found.ledger()
    assert (entry["status"], entry["refunds"]) == ("refunded", [1250])
    assert look(found, name)["cancellation_reason"] == "automatic"


@pytest.mark.parametrize(
    ("account", "changes", "param"),
    [
        (Account(increments=False), RAISABLE, next(iter(RAISABLE))),
        (Account(currencies=frozenset({"chf"})), {}, "currency"),
        (Account(least=2000), {}, "amount"),
        (Account(broken="payment_method_unactivated"), {}, None),
    ],
)
def test_an_account_takes_what_it_is_set_to(
    account: Account, changes: dict[str, str], param: str | None
) -> None:
    """The error names the parameter, and is an error of status 400."""
    answer = prepare(Books(account=account, clock=lambda: NOW_S), **changes)
    assert (answer.status, answer.body["error"].get("param")) == (400, param)
