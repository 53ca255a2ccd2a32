"""What the gateway is asked for, whatever payment hears and has heard.

test_payment.py has what follows.
"""

from itertools import product
from typing import Any, Final

import pytest

import assignments
import payments
from carride.facts import FACTS
from gateway import Intent, Stands
from payments import Action, Decision, Payment, State, UnexpectedPaymentError
from tests.kit.rides import Life

LIFE: Final = Life()
UNDONE: Final = {
    "unknown": "undo",
    "completed": "undo",
    "authorized": "refund",
    "captured": "refund",
}
DRIVEN: Final = dict.fromkeys(["unknown", "completed"], "authorize and capture")
PLANS: Final[dict[str, dict[str, str]]] = {
    "assigned": {"unknown": "authorize", "completed": "authorize and capture", "cancelled": "undo"},
    "completed": {"authorized": "capture"},
    "cancelled": UNDONE,
    "no_car": UNDONE,
    "overdue": dict.fromkeys(["unknown", "authorized"], "release") | {"cancelled": "undo"},
    "overdue_unserved": dict.fromkeys(["unknown", "completed", "authorized"], "release")
    | {"cancelled": "undo"},
    "overdue_driven": DRIVEN | {"authorized": "capture", "cancelled": "undo"},
}
"""The table of payments.py: the action for what was heard, by the state; nothing where it says
nothing."""


@pytest.mark.parametrize(
    ("heard", "state"), [*product([*PLANS, "created", "accepted", "started", "declined"], State)]
)
def test_the_gateway_is_asked_for_what_the_table_says(heard: str, state: State) -> None:
    """Whatever is heard in whichever state.

    A duty to undo is fulfilled by every event that payment consumes.
    """
    undo = {"undo due": "undo"} if heard in PLANS else {}
    expected = (PLANS.get(heard, {}) | undo).get(state, "nothing")
    assert payments.plan(Payment(state), getattr(LIFE, heard)) == expected


@pytest.mark.parametrize("action", [Action.UNDO, Action.RELEASE])
@pytest.mark.parametrize("intent", [None, Intent("pi_1", Stands.ENDED, 1250, "EUR")])
def test_where_nothing_is_reserved_nothing_is_emitted(
    action: Action, intent: Intent | None
) -> None:
    """A ride that was called off, and whose money was never reserved, stays cancelled."""
    assert payments.conclude(Payment(State.UNKNOWN), LIFE.overdue, action, intent) == Decision(
        Payment(State.CANCELLED)
    )


def test_an_answer_that_fits_no_question_is_an_error() -> None:
    """A gateway that says taken when it was asked to give back is not believed."""
    seen = Payment(State.AUTHORIZED, "pi_1", 1250)
    taken = Intent("pi_1", Stands.TAKEN, 1250, "EUR")
    with pytest.raises(UnexpectedPaymentError, match="pi_1 is taken, after"):
        payments.conclude(seen, LIFE.cancelled, Action.REFUND, taken)


STANDS: Final[dict[Action, dict[Stands, str]]] = {
    Action.AUTHORIZE: {
        Stands.HELD: "authorized",
        Stands.TAKEN: "captured",
        Stands.RETURNED: "declined",
        Stands.ENDED: "declined",
    },
    Action.AUTHORIZE_AND_CAPTURE: {
        Stands.TAKEN: "captured",
        Stands.RETURNED: "declined",
        Stands.ENDED: "declined",
    },
    Action.REFUND: {Stands.RETURNED: "refunded", Stands.ENDED: "cancelled"},
    Action.RELEASE: {
        Stands.TAKEN: "captured",
        Stands.RETURNED: "refunded",
        Stands.ENDED: "cancelled",
    },
}
STANDS[Action.CAPTURE] = STANDS[Action.AUTHORIZE_AND_CAPTURE]
STANDS[Action.UNDO] = STANDS[Action.REFUND]


@pytest.mark.parametrize(("action", "stands"), [*product(STANDS, Stands)])
def test_how_a_payment_stands_decides(action: Action, stands: Stands) -> None:
    """A driven ride whose money is gone is declined, and what was never held is not refunded.

    Only a payment that is held, taken or final decides anything.
    """
    seen = Payment(State.AUTHORIZED, "pi_1", 1250, "EUR")
    intent = Intent("pi_1", stands, 1250, "EUR")
    expected = STANDS[action].get(stands)
    if expected is None:
        with pytest.raises(UnexpectedPaymentError):
            payments.conclude(seen, LIFE.completed, action, intent)
        return
    decision = payments.conclude(seen, LIFE.completed, action, intent)
    assert decision.after.state == expected
    assert bool(decision.facts) == (expected != "cancelled")


@pytest.mark.parametrize("saga", [assignments, payments], ids=["dispatch", "payment"])
def test_no_consumer_feeds_itself(saga: Any) -> None:
    """Nothing that one emits is something that it acts on, and all of it is in the contract."""
    assert saga.CONSUMED.isdisjoint(saga.EMITTED)
    assert set(FACTS.values()) >= saga.CONSUMED | saga.EMITTED
