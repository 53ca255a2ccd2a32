"""What is due for a ride, and what the gateway is asked for."""

import itertools
import random
from collections.abc import Sequence

import pytest

import payments
from carride.facts import FACTS, Fact, PaymentAuthorized, PaymentCaptured, PaymentDeclined, PaymentRefunded
from gateway import Charge, Status
from payments import Action, Payment, State, UnexpectedStatusError
from tests.functions.saga import Life

LIFE = Life()


class Till:
    """Does what is planned, and remembers what the customer has paid."""

    def __init__(self, *, declines: bool = False) -> None:
        self.charge: Charge | None = None
        self.captures = 0
        self._declines = declines

    def carry_out(self, action: Action, amount: int) -> Charge | None:
        """Do it, and return the payment as it is then."""
        match action:
            case Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE:
                assert self.charge is None, "there is one payment for a ride"
                self.charge = Charge("pay_1", Status.DECLINED if self._declines else Status.AUTHORIZED, amount, "broke")
                if action is Action.AUTHORIZE_AND_CAPTURE and not self._declines:
                    self._capture(amount)
            case Action.CAPTURE:
                self._capture(amount)
            case Action.RELEASE if self.charge is not None and self.charge.status is Status.CAPTURED:
                return self.charge
            case Action.REFUND | Action.UNDO | Action.RELEASE if (
                self.charge is not None and self.charge.status is not Status.DECLINED
            ):
                self.charge = self.charge._replace(status=Status.REFUNDED)
            case Action.NOTHING:
                return None
        return self.charge

    def _capture(self, amount: int) -> None:
        assert self.charge is not None
        self.captures += 1
        self.charge = self.charge._replace(status=Status.CAPTURED, amount=amount)


def live(till: Till, facts: Sequence[Fact], seen: Payment | None = None) -> tuple[Payment, list[type[Fact]]]:
    """Return what becomes of the payment when the facts are heard in this order, and what is emitted."""
    seen = seen or Payment(State.UNKNOWN)
    emitted: list[type[Fact]] = []
    for fact in facts:
        charge = till.carry_out(payments.plan(seen, fact), payments.due(seen, fact))
        decision = payments.conclude(seen, fact, charge)
        seen = decision.after
        emitted += [type(fact) for fact in decision.facts]
    return seen, emitted


@pytest.mark.parametrize("facts", list(itertools.permutations([LIFE.assigned, LIFE.completed])))
def test_a_completed_ride_is_paid_once_whatever_the_order(facts: Sequence[Fact]) -> None:
    """Money is taken once, after it was reserved, and both are emitted."""
    till = Till()
    after, emitted = live(till, facts)
    assert (after, emitted) == (Payment(State.CAPTURED, "pay_1", 1250), [PaymentAuthorized, PaymentCaptured])
    assert till.captures == 1


@pytest.mark.parametrize("end", [LIFE.cancelled, LIFE.no_car], ids=lambda fact: type(fact).__name__)
def test_what_is_reserved_is_released_when_the_ride_is_called_off(end: Fact) -> None:
    """The customer's money is the customer's again, and that is emitted."""
    after, emitted = live(Till(), [LIFE.assigned, end])
    assert (after.state, emitted) == (State.REFUNDED, [PaymentAuthorized, PaymentRefunded])


def test_what_was_captured_is_given_back() -> None:
    """A cancellation that comes after all of it still leaves nobody without their money."""
    after, emitted = live(Till(), [LIFE.assigned, LIFE.completed, LIFE.cancelled])
    assert (after.state, emitted) == (State.REFUNDED, [PaymentAuthorized, PaymentCaptured, PaymentRefunded])


def test_a_ride_that_was_called_off_first_is_never_charged() -> None:
    """The car that comes late reserves nothing, and nothing is emitted."""
    till = Till()
    after, emitted = live(till, [LIFE.cancelled, LIFE.assigned])
    assert (after.state, emitted, till.charge) == (State.CANCELLED, [], None)


def test_what_an_overtaken_run_has_reserved_is_given_back() -> None:
    """The cancellation was written while the money was being reserved: the next run finds it and returns it."""
    till = Till()
    seen, _ = live(till, [LIFE.cancelled])
    till.charge = Charge("pay_1", Status.AUTHORIZED, 1250)
    after, emitted = live(till, [LIFE.assigned], seen)
    assert (after, emitted) == (Payment(State.REFUNDED, "pay_1", 1250), [PaymentRefunded])


def test_what_was_declined_needs_no_undoing() -> None:
    """Nothing is reserved, so the ride stays as it is."""
    charge = Charge("pay_1", Status.DECLINED, 1250)
    assert payments.conclude(Payment(State.CANCELLED), LIFE.assigned, charge).facts == ()


@pytest.mark.parametrize("facts", list(itertools.permutations([LIFE.assigned, LIFE.completed])))
def test_a_ride_that_cannot_be_paid_is_declined_once(facts: Sequence[Fact]) -> None:
    """Dispatch is emitted, with the gateway's reason, and nothing is ever captured."""
    till = Till(declines=True)
    after, emitted = live(till, [*facts, LIFE.cancelled])
    assert (after.state, emitted, till.captures) == (State.DECLINED, [PaymentDeclined], 0)


def test_the_price_at_the_end_is_what_is_captured() -> None:
    """The passengers went further than they said: the last price counts, whichever event comes first."""
    dearer = Life(price=2000).completed
    assert live(Till(), [LIFE.assigned, dearer])[0].amount == 2000
    assert live(Till(), [dearer, LIFE.assigned])[0].amount == 2000


@pytest.mark.parametrize("order", range(200))
def test_every_order_of_events_settles_the_payment(order: int) -> None:
    """However events arrive, and whichever are lost, a driven ride is paid once, and nothing stays reserved."""
    chance = random.Random(order)  # noqa: S311 - an order of events, not a secret
    end = chance.choice([LIFE.completed, LIFE.cancelled])
    facts = chance.sample([LIFE.assigned, end, LIFE.created, LIFE.accepted, LIFE.declined], 5)
    overdue = LIFE.overdue_driven if end is LIFE.completed else LIFE.overdue
    lost = chance.randrange(6)  # events before it are lost; an overdue ride is settled all the same
    till = Till(declines=chance.random() < 0.3)
    after, emitted = live(till, [*facts[lost:], overdue])
    assert after.state not in {State.UNKNOWN, *payments.OPEN}
    assert after.state in ({State.CAPTURED, State.DECLINED} if end is LIFE.completed else {*State} - {State.CAPTURED})
    assert till.captures == emitted.count(PaymentCaptured) <= 1
    assert till.charge is None or till.charge.status is not Status.AUTHORIZED


def test_an_answer_that_fits_no_question_is_an_error() -> None:
    """A gateway that says captured when it was asked to give back is not believed."""
    seen = Payment(State.AUTHORIZED, "pay_1", 1250)
    with pytest.raises(UnexpectedStatusError, match="pay_1 is captured"):
        payments.conclude(seen, LIFE.cancelled, Charge("pay_1", Status.CAPTURED, 1250))


def test_payment_does_not_feed_itself() -> None:
    """Nothing that payment tells is something that it acts on, and all of it is in the contract."""
    assert payments.CONSUMED.isdisjoint(payments.EMITTED)
    assert set(FACTS.values()) >= payments.CONSUMED | payments.EMITTED
