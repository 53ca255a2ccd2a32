"""Rides that are paid through localstripe, a stateful server of Stripe's API by others.

A fault meets each request of payment, over real connections, and each ride is charged once.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from msgspec.structs import replace

from carride_idempotency.testing import crash_everywhere
from gateway import Call, GatewayUnavailableError, Known, Reservation, Stands
from gateway_access import Bearer
from gateway_connection import HttpResponse
from stripe_gateway import StripeGateway
from tests.functions.stripe_front import HOST, SECRET, StripeFront
from tests.functions.world import World
from tests.kit.rides import Life

pytestmark = pytest.mark.peer

SERVER: Final = """
import socket
from aiohttp import web
from localstripe import resources, server
resources.Store.dump_to_disk = lambda store: None  # it would write to a file of everybody's
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
web.run_app(server.app, sock=listening, print=None)
"""


@pytest.fixture(scope="module")
def front() -> Iterator[StripeFront]:
    """The front of a localstripe in a process of its own."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            with StripeFront(f"http://{HOST}:{port}") as started:
                yield started
        finally:
            process.terminate()


class Key(Bearer):
    """A secret that needs no Secrets Manager; the next one after a refusal."""

    def __init__(self, *secrets: str) -> None:
        super().__init__("a secret's name")
        self.secrets = [*secrets]

    def _read(self) -> str:
        if self._must_read:
            self.secrets.pop(0)
        return self.secrets[0]


class Stripe(StripeGateway):
    """The adapter, whose requests a fault can meet."""

    def __init__(self, front: StripeFront) -> None:
        access = Key(SECRET)
        super().__init__(front.url, access, clock=lambda: 0, sleep=lambda _: None)
        self.front = front
        self.ask: Callable[..., HttpResponse] = super()._send
        self.sent = self.ask

    def _send(self, method: str, path: str, key: str, content: bytes | None) -> HttpResponse:
        return self.sent(method, path, key, content)


class Town(World):
    """The functions, of which payment gets events, and localstripe."""

    def __init__(self, front: StripeFront) -> None:
        self.stripe = Stripe(front)
        super().__init__(self.stripe)  # type: ignore[arg-type]

    def paid(self) -> tuple[object, ...]:
        """Return what payment knows of the ride, and every confirmed payment at Stripe."""
        found = [
            (each["status"], each["amount"], each["amount_received"], _given_back(each))
            for each in self.stripe.front.intents()
            if each["status"] != "requires_confirmation"
        ]
        return self.state("payments"), sorted(self.emitted()), found


def _given_back(intent: Any) -> int:
    """Return how often money was given back."""
    charge = intent["latest_charge"]
    return len(charge["refunds"]["data"]) if charge else 0


FATES: Final[dict[str, tuple[list[str], object]]] = {
    "reserved": (
        ["assigned"],
        ("authorized", ["PaymentAuthorized"], [("requires_capture", 1250, 0, 0)]),
    ),
    "captured": (
        ["assigned", "completed"],
        ("captured", ["PaymentAuthorized", "PaymentCaptured"], [("succeeded", 1250, 1250, 0)]),
    ),
    "captured at once": (
        ["completed", "assigned"],
        ("captured", ["PaymentAuthorized", "PaymentCaptured"], [("succeeded", 1250, 1250, 0)]),
    ),
    "released": (
        ["assigned", "cancelled"],
        ("refunded", ["PaymentAuthorized", "PaymentRefunded"], [("canceled", 1250, 0, 0)]),
    ),
    "paid back": (
        ["assigned", "completed", "cancelled"],
        (
            "refunded",
            ["PaymentAuthorized", "PaymentCaptured", "PaymentRefunded"],
            [("succeeded", 1250, 1250, 1)],
        ),
    ),
    "to confirm": (["assigned"], ("declined", ["PaymentDeclined"], [("canceled", 1250, 0, 0)])),
}
"""What happens to a ride; and how payment and Stripe end: status, amount, what was received, and
how often it was given back."""


@pytest.mark.parametrize("keys", ["kept", "forgotten"])
@pytest.mark.parametrize("fate", FATES)
def test_a_ride_is_charged_once_whatever_happens_at_any_request(
    front: StripeFront, fate: str, keys: str
) -> None:
    """Each call of the last event's delivery meets each fault, also where Stripe keeps no key."""
    happened, expected = FATES[fate]
    customer = front.customer_to_ask() if fate == "to confirm" else front.customer()
    life = Life(customer=customer)
    *before, last = (getattr(life, name) for name in happened)
    ends: list[object] = []

    def make() -> Town:
        front.clear()
        town = Town(front)
        for fact in before:
            town.deliver("payment", town.envelope(fact))

        def send(method: str, path: str, key: str, content: bytes | None) -> HttpResponse:
            if keys == "forgotten":
                front.forget_keys()
            return town.stripe.ask(method, path, key, content)

        def key(_: str, path: str, key: str, __: bytes | None) -> str | None:
            """Return what an effect is known by; a payment that was taken is not canceled."""
            is_refused = fate == "paid back" and path.endswith("/cancel")
            return None if is_refused else key or None

        town.stripe.sent = town.external("stripe", send, key=key, lost=GatewayUnavailableError)
        return town

    def end_of(town: Town) -> object:
        ends.append(town.paid())
        return ends[-1]

    runs = crash_everywhere(
        lambda town: town.process("payment")["payment"],
        World().envelope(last),
        world=make,
        state=end_of,
        without=["taken over"] if keys == "forgotten" else [],
    )
    assert runs >= 20
    assert all(end == expected for end in ends)


def test_a_card_that_is_declined_declines_the_ride(front: StripeFront) -> None:
    """The card could be saved, and is refused when it is charged; so is a repetition."""
    front.clear()
    town = Town(front)
    life = Life(customer=front.customer("pm_card_chargeCustomerFail"))
    for fact in (life.assigned, life.completed):
        town.deliver("payment", town.envelope(fact))
    assert town.paid() == ("declined", ["PaymentDeclined"], [("canceled", 1250, 0, 0)])
    assert [path.rpartition("/")[2] for path, _ in front.posts] == [
        "payment_intents", "confirm", "cancel",
    ]  # fmt: skip


def test_a_card_that_cannot_be_raised_pays_what_was_reserved(front: StripeFront) -> None:
    """The account asks for more, which localstripe does not know."""
    front.clear()
    town = Town(front)
    life = Life(customer=front.customer())
    for fact in (life.assigned, replace(life.completed, price=2000)):
        town.deliver("payment", town.envelope(fact))
    assert town.paid()[2] == [("succeeded", 1250, 1250, 0)]
    assert town.item("payments")["raiseRefused"]


def test_a_refused_key_reserves_nothing(front: StripeFront) -> None:
    """The secret is read again, and the ride waits."""
    front.clear()
    key = Key("sk_test_of_another_account", SECRET)
    stripe = StripeGateway(front.url, key, sleep=lambda _: None)
    call = Call(None, lambda: False)
    reservation = Reservation("order_01", front.customer(), 1250, "EUR")
    made = stripe.prepare(call, reservation, datetime(2020, 1, 1, tzinfo=UTC))
    known = Known("order_01", made.payment_id, made.amount, made.currency)
    assert stripe.reserve(call, known).stands is Stands.HELD
    assert (key.secrets, len(front.intents())) == ([SECRET], 1)
