"""One ride's payment through hostile stories: each is charged at most once, and ends for good.

A story is drawn from a seed. Its events come in any order, several times, and again days later when
their records are gone. Runs are killed, requests are lost, slow, refused, or arrive days late, with
or without their key, and tables are restored.
"""

import json
import random
from collections.abc import Iterator
from typing import Final

import pytest

from carride.facts import Fact
from carride_idempotency import RetryableError
from carride_idempotency.testing import Crash
from gateway import GatewayError, GatewayUnavailableError
from gateway_connection import HttpResponse
from gateway_rules import Account
from local.simulated_gateway import Books, GatewayRequest, Troubles
from payments import UnexpectedPaymentError
from tests.functions.gateways import FakeGateway
from tests.functions.world import World
from tests.kit.rides import Life

pytestmark = pytest.mark.proof

DAY: Final = 86_400.0
FAULTS: Final = ("lost", "answer lost", "killed before", "killed after", "late", "late", "failed")
WAYS: Final = (
    ("assigned", "completed"),
    ("assigned", "cancelled"),
    ("assigned", "completed", "cancelled"),
    ("completed", "assigned"),
    ("cancelled", "assigned"),
    ("assigned", "no_car"),
    ("assigned", "overdue"),
    ("assigned", "overdue_driven"),
    ("assigned",),
)
FAILURES: Final = (Crash, GatewayError, RetryableError, UnexpectedPaymentError)


class Story(World):
    """What happens to one ride, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - the same every time
        share = self.dice.choice
        troubles = Troubles(
            declined=share((0.0, 0.0, 0.0, 1.0)),
            refused=share((0.0, 0.0, 0.0, 0.0, 1.0)),
            unknown=share((0.0, 0.0, 0.0, 0.0, 1.0)),
            asked=share((0.0, 0.0, 0.0, 0.0, 1.0)),
            capped=share((0.0, 1.0)),
            pending=share((0.0, 0.0, 0.0, 1.0)),
            expired=share((0.0, 0.0, 0.0, 1.0)),
            forgotten=share((0.0, 0.5, 1.0)),
            kept=share((0.0, 0.0, 0.3)),
        )
        account = Account(increments=share((True, False)), lists_unknown=share((True, False)))
        books = Books(troubles, seed=seed, account=account, clock=lambda: self.clock() / 1000)
        super().__init__(FakeGateway(books, clock=self._now_ms))
        self.share = share((0.0, 0.2, 0.5))
        self.late: list[GatewayRequest] = []
        self.told: list[str] = []
        self.gateway.sent = self._sent

    def _now_ms(self) -> int:
        return self.clock()

    def _sent(self, method: str, path: str, key: str | None, content: bytes | None) -> HttpResponse:
        self.clock.advance(self.dice.choice((0.1, 1.0)))
        fault = ""
        if self.dice.random() < self.share:
            fault = self.dice.choice(FAULTS)
        self.told.append(f"{method} {path.partition('?')[0]} {key}: {fault}")
        if fault == "killed before":
            raise Crash
        if fault == "late" and method == "POST":
            late = GatewayRequest(method, path, key or "", (content or b"").decode())
            self.late.append(late._replace(key=self.dice.choice((late.key, ""))))
        if fault in {"lost", "late"}:
            raise GatewayUnavailableError(fault)
        response = self.gateway.answer(method, path, key, content)
        if fault == "killed after":
            raise Crash
        if fault == "answer lost":
            raise GatewayUnavailableError(fault)
        if fault == "failed":
            return HttpResponse(500, b"")
        return response

    def live(self) -> None:
        """Have everything happen."""
        ride = Life(price=self.dice.choice((1250, 2000)))
        facts: list[Fact] = [getattr(ride, name) for name in self.dice.choice(WAYS)]
        facts = [each for each in facts for _ in range(self.dice.choice((1, 1, 2)))]
        if self.dice.random() < 0.4:
            self.dice.shuffle(facts)
        for fact in facts:
            self._try(fact)
            self.clock.advance(self.dice.choice((1.0, 600.0, 3_600.0)))
            self._arrive(0.2)
            if self.dice.random() < 0.03:
                self.dynamodb.clear("payments")  # a table is restored, from before the ride
        self._happen_by_hand()
        # An operator redrives what failed, once everybody answers again; then the ride is overdue.
        self.share = 0.0
        for again in (*facts, self._overdue(ride, facts)):
            self._try(again)
            self.clock.advance(5 * 3_600.0)
            self._arrive(0.2)
        self.clock.advance(3 * DAY)
        self._arrive(1.0)
        self.dynamodb.clear("idempotency")
        for again in facts:
            self._try(again)

    def _overdue(self, ride: Life, facts: list[Fact]) -> Fact:
        """Return what the reconciler says: as the booking has ended."""
        was_driven = ride.completed in facts and ride.cancelled not in facts
        return ride.overdue_driven if was_driven else ride.overdue

    def _try(self, fact: Fact) -> None:
        """Deliver a fact until it has taken effect, as often as Lambda does."""
        for _ in range(3):
            try:
                self.told.append(f"{type(fact).__name__}")
                self.deliver("payment", self.envelope(fact))
            except FAILURES as error:
                self.told.append(f"  {type(error).__name__} {error}")
                self.clock.advance(60)
            else:
                return
        self.dynamodb.clear("idempotency")  # its key is released

    def _arrive(self, share: float) -> None:
        """Have late requests arrive, in any order."""
        self.dice.shuffle(self.late)
        arrived = [each for each in self.late if self.dice.random() < share]
        self.late = [each for each in self.late if each not in arrived]
        for each in arrived:
            answer = self.gateway.books.answer(each)
            self.told.append(f"late {each.target} {each.key}: {answer.status}")

    def _happen_by_hand(self) -> None:
        """Have somebody cancel the ride's payment at the gateway."""
        if self.dice.random() < 0.1:
            for name in list(self.gateway.books.intents):
                path = f"/v1/payment_intents/{name}/cancel"
                self.gateway.books.answer(GatewayRequest("POST", path))

    def wrong(self) -> Iterator[str]:
        """Yield what must not be, in the end."""
        ledger = self.gateway.ledger()
        charged = [each for each in ledger if each["status"] != "declined"]
        state = self.state("payments")
        if len(charged) > 1:
            yield f"{len(charged)} payments"
        if any(len(each["captures"]) > 1 or len(each["refunds"]) > 1 for each in ledger):
            yield "money moved twice"
        if any(each["status"] in {"authorized", "pending"} for each in ledger):
            yield "money is still reserved"
        if self.open():
            yield "the ride is open for good"
        taken = [each for each in ledger if each["status"] == "captured"]
        if (state == "captured") != bool(taken):
            yield f"payment has it as {state}"
        if taken and taken[0]["amount"] > 2000:
            yield "too much was taken"
        if taken and self.item("payments")["amount"] != taken[0]["amount"]:
            yield "payment knows another amount"


def lived(seed: int) -> tuple[Story, list[str]]:
    """Live a story; return it, and what is wrong in the end."""
    story = Story(seed)
    story.live()
    return story, [*story.wrong()]


@pytest.mark.parametrize("tens", range(20))
def test_each_ride_is_charged_once_whatever_happens(tens: int) -> None:
    """Nothing is doubled, lost, left reserved, or open for good."""
    for seed in range(10 * tens, 10 * tens + 10):
        story, wrong = lived(seed)
        assert wrong == [], "\n".join(
            [f"seed {seed}", *story.told, json.dumps(story.gateway.ledger())]
        )
