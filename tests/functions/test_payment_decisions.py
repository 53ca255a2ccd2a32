"""What is due for a ride, and what the gateway is asked for, whatever payment hears and in which order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import payments
from carride.facts import FACTS, Fact, PaymentAuthorized, PaymentCaptured, PaymentDeclined, PaymentRefunded
from gateway import Charge, Status
from payments import Action, Payment, State, UnexpectedStatusError
from tests.functions.saga import Life

LIFE, DEARER = Life(), Life(price=2000)
EMITTED = {
    PaymentAuthorized: Status.AUTHORIZED,
    PaymentCaptured: Status.CAPTURED,
    PaymentDeclined: Status.DECLINED,
    PaymentRefunded: Status.REFUNDED,
}


class Till:
    """Does what is planned, and remembers how the payment stood."""

    def __init__(self, *, declines: bool) -> None:
        self.charge: Charge | None = None
        self.past: list[Status] = []
        self._declines = declines

    def carry_out(self, action: Action, amount: int) -> Charge | None:
        """Do it, and return the payment as it is then."""
        status = self.charge.status if self.charge else None
        match action:
            case Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE:
                assert self.charge is None, "there is one payment for a ride"
                self.set(Status.DECLINED if self._declines else Status.AUTHORIZED, amount)
                if action is Action.AUTHORIZE_AND_CAPTURE and not self._declines:
                    self.set(Status.CAPTURED, amount)
            case Action.CAPTURE:
                assert status is Status.AUTHORIZED
                self.set(Status.CAPTURED, amount)
            case Action.RELEASE if status is Status.AUTHORIZED:
                self.set(Status.REFUNDED)
            case Action.REFUND | Action.UNDO if status in {Status.AUTHORIZED, Status.CAPTURED}:
                self.set(Status.REFUNDED)
            case Action.NOTHING:
                return None
        return self.charge

    def set(self, status: Status, amount: int | None = None) -> list[Status]:
        """Have the payment stand like this, and return how it has stood."""
        before = self.charge or Charge("pay_1", status, 0, "broke")
        self.charge = before._replace(status=status, amount=before.amount if amount is None else amount)
        self.past.append(status)
        return self.past


@settings(max_examples=300)
@given(
    data=st.data(),
    declines=st.booleans(),
    overtaken=st.booleans(),
    completed=st.sampled_from([LIFE.completed, DEARER.completed, None, None, None]),
)
def test_every_order_of_events_settles_the_payment(
    data: st.DataObject, completed: Fact | None, *, declines: bool, overtaken: bool
) -> None:
    """However events arrive, and whichever are lost, a driven ride is paid once, and nothing stays reserved.

    What is emitted is what happened at the gateway. A ride that was called off before it had a car is never charged.
    A run that reserved money while the ride was called off emits nothing, and the next event gives the money back.
    """
    end = completed or data.draw(st.sampled_from([LIFE.cancelled, LIFE.no_car]))
    facts = data.draw(st.permutations([LIFE.assigned, end, LIFE.created]))
    heard = facts[data.draw(st.integers(0, len(facts))) :]
    overdue = LIFE.overdue_driven if completed else LIFE.overdue
    till, seen, emitted = Till(declines=declines), Payment(State.UNKNOWN), list[Status]()
    unheard = 0
    for fact in [*heard, overdue]:
        if overtaken and seen.state is State.CANCELLED and till.charge is None:
            unheard = len(till.set(Status.DECLINED if declines else Status.AUTHORIZED, 1250))
        action = payments.plan(seen, fact)
        charge = till.carry_out(action, payments.due(seen, fact))
        decision = payments.conclude(seen, fact, action, charge)
        seen = decision.after
        emitted += [EMITTED[type(each)] for each in decision.facts]
        if unheard and fact in (LIFE.assigned, overdue):
            assert till.past[-1] is not Status.AUTHORIZED
    assert emitted == till.past[unheard:]
    assert seen.state not in {State.UNKNOWN, *payments.OPEN}
    if unheard:
        assert till.past == _undone(declines=declines)
    elif completed is None:
        first = next((fact for fact in heard if fact in (end, LIFE.assigned)), None)
        assert till.past == ([] if first is not LIFE.assigned else _undone(declines=declines))
    else:
        assert till.past == ([Status.DECLINED] if declines else [Status.AUTHORIZED, Status.CAPTURED])
        if not declines and completed in heard:
            assert seen == Payment(State.CAPTURED, "pay_1", completed.price)


def _undone(*, declines: bool) -> list[Status]:
    return [Status.DECLINED] if declines else [Status.AUTHORIZED, Status.REFUNDED]


def test_what_was_captured_is_given_back() -> None:
    """A cancellation after the capture refunds it."""
    seen = Payment(State.CAPTURED, "pay_1", 1250)
    assert payments.plan(seen, LIFE.cancelled) is Action.REFUND


def test_an_answer_that_fits_no_question_is_an_error() -> None:
    """A gateway that says captured when it was asked to give back is not believed."""
    seen = Payment(State.AUTHORIZED, "pay_1", 1250)
    with pytest.raises(UnexpectedStatusError, match="pay_1 is captured"):
        payments.conclude(seen, LIFE.cancelled, Action.REFUND, Charge("pay_1", Status.CAPTURED, 1250))


def test_payment_does_not_feed_itself() -> None:
    """Nothing that payment emits is something that it acts on, and all of it is in the contract."""
    assert payments.CONSUMED.isdisjoint(payments.EMITTED)
    assert set(FACTS.values()) >= payments.CONSUMED | payments.EMITTED
