"""What is due for a ride, and what to ask the gateway for. Pure: no I/O, no clock, no AWS.

The rows are what payment knows of a ride, the columns are events. What the gateway does is in
brackets::

                CarAssigned             CarRideCompleted      CarRideCancelled, NoCarAvailable
    unknown     [reserve] authorized,   completed             [undo] cancelled, or refunded
                or declined
    completed   [reserve, capture]      ·                     [undo] cancelled, or refunded
                captured, or declined
    authorized  ·                       [capture] captured,   [refund] refunded
                                        or declined
    captured    ·                       ·                     [refund] refunded
    cancelled   [undo] ·, or refunded   ·                     ·
    undo due    [undo] cancelled,       as CarAssigned        as CarAssigned
                or refunded
    declined, refunded: final, every event leaves them as they are

A payment is prepared at the gateway, which moves no money, and its id is recorded. Only that id is
then reserved, captured or ended. So nobody has to find what a killed run has done: the payment
itself says it, and each step happens once, however late its request arrives. Each final state is a
final payment: of a ride that is declined, cancelled or refunded, nothing can be charged any more.
A driven ride whose reservation is gone is declined.

`CarRideOverdue` says how an overdue ride ended. If it was completed, the ride is paid: [reserve,
capture] or [capture], as above. If it was cancelled, a reservation is released, but money that was
captured stays captured: payment asks for a capture only after the ride was completed. In the states
"undo due" and "cancelled", everything is given back. The reconciler may not have heard of an end
that payment knows. A completed ride then stays as it is, and the reconciler looks at it again.
Where the gateway refuses requests about whatever ride, the overdue ride ends as declined, and what
is held for it is let go when the hold ends.

Events come in any order. A ride that was cancelled before payment heard of a car is never charged.
The cancellation may have overtaken a run that had prepared a payment. That run cannot record its
id any more, and so does not confirm it. Where no id is recorded, because a table was restored or a
region was lost, payment looks for the ride's payment in the gateway's list.

A payment becomes "undo due" before the gateway is asked to give something back, and stays so until
it has. So the duty outlives a gateway that does not answer, a killed run and a quarantined event.
The next event of the ride fulfils it, and so does a redriven one.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from msgspec.structs import replace

from carride.facts import (
    CarAssigned,
    CarRideCancelled,
    CarRideCompleted,
    CarRideOverdue,
    Fact,
    NoCarAvailable,
    PaymentAuthorized,
    PaymentCaptured,
    PaymentDeclined,
    PaymentRefunded,
)
from carride.ride import OPEN as UNDER_WAY
from carride.ride import Ride
from carride_idempotency import Policy
from gateway import Intent, Stands

CONSUMED: Final = frozenset(
    {CarAssigned, CarRideCompleted, CarRideCancelled, NoCarAvailable, CarRideOverdue}
)
"""The facts that payment acts on: the rule's pattern lists the same."""

EMITTED: Final = frozenset({PaymentAuthorized, PaymentDeclined, PaymentCaptured, PaymentRefunded})
"""The facts that payment adds; none of them is consumed by it, or it would feed itself."""


def payment_policy(lease_seconds: float) -> Policy:
    """Return how payment's operations are protected, with the lease that the function is set to."""
    return Policy(
        # Short, and renewed by heartbeats. The gateway may take minutes, but the lease of a killed
        # run must have ended when Lambda tries again a minute later. An earlier delivery waits.
        lease=lease_seconds,
        busy="wait",
        # A rerun is safe, although the gateway is outside of the commit: each step of a payment
        # happens once.
        conflict_reruns=5,
        # Money may have moved. Whoever settles a failure by hand needs the event, also when its
        # dead letter is gone.
        keep_event=True,
    )


class State(StrEnum):
    """What payment knows of a ride."""

    UNKNOWN = "unknown"
    COMPLETED = "completed"  # it is over and the money is due, but no car was heard of yet
    CANCELLED = "cancelled"  # it was called off, and nothing is known to be reserved
    # It was called off, and the gateway may hold money that has to be given back.
    UNDO_DUE = "undo due"
    AUTHORIZED = "authorized"
    DECLINED = "declined"
    CAPTURED = "captured"
    REFUNDED = "refunded"


OPEN: Final = frozenset({State.COMPLETED, State.UNDO_DUE, State.AUTHORIZED})
"""The states in which payment waits for an event of the ride."""


class Payment(NamedTuple):
    """A ride's payment, as payment has it."""

    state: State
    payment_id: str | None = None  # the gateway's name for it; None if none was recorded
    amount: int | None = None  # in cents: what is prepared, reserved, captured or given back
    currency: str | None = None  # that of the gateway's payment
    due: int | None = None  # in cents: what a completed ride costs that had no car yet
    raise_refused: bool = False  # whether less than the price was captured


class Action(StrEnum):
    """What to ask the gateway for."""

    NOTHING = "nothing"
    AUTHORIZE = "authorize"
    AUTHORIZE_AND_CAPTURE = "authorize and capture"
    CAPTURE = "capture"
    REFUND = "refund"
    UNDO = "undo"  # refund what the gateway has for the ride, if anything
    RELEASE = "release"  # release what is reserved for the ride, if anything


def may_owe(payment: Payment) -> bool:
    """Return whether payment waits for an event of the ride."""
    is_prepared = payment.state is State.UNKNOWN and payment.payment_id is not None
    return payment.state in OPEN or is_prepared


class Decision(NamedTuple):
    """What an event makes of a ride's payment."""

    after: Payment
    facts: tuple[Fact, ...] = ()  # what to emit, in this order


class UnexpectedPaymentError(Exception):
    """Raised when the gateway's payment does not follow from what the gateway was asked for."""


def plan(seen: Payment, fact: Fact) -> Action:
    """Return what to ask the gateway for: nothing, if payment does not consume the fact."""
    match fact, seen.state:
        case _, State.UNDO_DUE if type(fact) in CONSUMED:
            return Action.UNDO
        case CarAssigned(), State.UNKNOWN:
            return Action.AUTHORIZE
        case CarAssigned(), State.COMPLETED:
            return Action.AUTHORIZE_AND_CAPTURE
        case CarAssigned(), State.CANCELLED:
            return Action.UNDO
        case CarRideCompleted(), State.AUTHORIZED:
            return Action.CAPTURE
        case CarRideCancelled() | NoCarAvailable(), State.UNKNOWN | State.COMPLETED:
            return Action.UNDO
        case CarRideCancelled() | NoCarAvailable(), State.AUTHORIZED | State.CAPTURED:
            return Action.REFUND
        case CarRideOverdue(), _:
            return _plan_overdue(seen, fact)
        case _:
            return Action.NOTHING


def _plan_overdue(seen: Payment, fact: CarRideOverdue) -> Action:
    """Return what to ask the gateway for, by how the overdue ride ended."""
    match fact, seen.state:
        case CarRideOverdue(outcome="completed"), State.UNKNOWN | State.COMPLETED:
            return Action.AUTHORIZE_AND_CAPTURE
        case CarRideOverdue(outcome="completed"), State.AUTHORIZED:
            return Action.CAPTURE
        case CarRideOverdue(status=status), State.COMPLETED if status in UNDER_WAY:
            return Action.NOTHING
        case CarRideOverdue(), State.UNKNOWN | State.COMPLETED | State.AUTHORIZED:
            return Action.RELEASE
        case CarRideOverdue(), State.CANCELLED:
            return Action.UNDO
        case _:
            return Action.NOTHING


def due(seen: Payment, ride: Ride) -> int:
    """Return how many cents to reserve or capture: for a completed ride, its last price."""
    if seen.state is State.COMPLETED and seen.due is not None:
        return seen.due
    return ride.price


def may_be_given_up(fact: Fact, action: Action) -> bool:
    """Return whether a ride is declined that the gateway's account does not let be paid.

    Nobody asks again after `CarRideOverdue`. What may have been taken has to be given back.
    """
    return isinstance(fact, CarRideOverdue) and action is not Action.UNDO


def conclude(seen: Payment, fact: Fact, action: Action, intent: Intent | None) -> Decision:
    """Decide what a fact makes of a payment, for which ``action`` was planned.

    Args:
        seen: the payment as it was read.
        fact: what happened to the ride.
        action: what the gateway was asked for.
        intent: the payment as the gateway has it afterwards; None if the gateway was asked for
            nothing, or had nothing to undo.

    Raises:
        UnexpectedPaymentError: The gateway's payment does not follow from the action.
    """
    if intent is None:
        return _without_payment(seen, fact, action)
    match action, intent.stands:
        case Action.AUTHORIZE, Stands.HELD:
            authorized = _emitted(PaymentAuthorized, fact, intent)
            return Decision(_as(State.AUTHORIZED, intent), (authorized,))
        case (
            (Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE | Action.CAPTURE),
            (Stands.RETURNED | Stands.ENDED),
        ):
            return _declined(fact, intent.amount, intent.reason, _as(State.DECLINED, intent))
        case (
            (Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE | Action.CAPTURE | Action.RELEASE),
            Stands.TAKEN,
        ):
            return _captured(seen, fact, action, intent)
        case ((Action.REFUND | Action.UNDO | Action.RELEASE), Stands.RETURNED):
            refunded = _emitted(PaymentRefunded, fact, intent)
            return Decision(_as(State.REFUNDED, intent), (refunded,))
        case ((Action.REFUND | Action.UNDO | Action.RELEASE), Stands.ENDED):
            return Decision(Payment(State.CANCELLED))
        case _:
            raise UnexpectedPaymentError(
                f"{intent.payment_id} is {intent.stands}, "
                f"after the gateway was asked to {action} it"
            )


def refuse(seen: Payment, fact: Fact, reason: str) -> Decision:
    """Decide where the gateway refuses to prepare a payment, or to say what became of it."""
    return _declined(fact, due(seen, fact), reason, Payment(State.DECLINED))


def _declined(fact: Fact, amount: int, reason: str | None, after: Payment) -> Decision:
    declined = PaymentDeclined.of(fact, amount=amount, reason=reason or "declined")
    return Decision(after, (declined,))


def _without_payment(seen: Payment, fact: Fact, action: Action) -> Decision:
    """Decide where the gateway was asked for nothing, or has no payment."""
    if action in {Action.UNDO, Action.RELEASE}:
        return Decision(Payment(State.CANCELLED))
    after = seen
    if isinstance(fact, CarRideCompleted) and seen.state is State.UNKNOWN:
        after = seen._replace(state=State.COMPLETED, due=fact.price)
    elif seen.state is State.CAPTURED:
        after = _with_refused_raise(seen, fact.price, seen, fact)
    return Decision(after)


def _captured(seen: Payment, fact: Fact, action: Action, charge: Intent) -> Decision:
    """Decide where the gateway has taken money, which is never more than the ride's price."""
    if action in {Action.CAPTURE, Action.AUTHORIZE_AND_CAPTURE}:
        price = due(seen, fact)
        least = _least_captured(seen, action, price)
        if not least <= charge.amount <= price:
            raise UnexpectedPaymentError(
                f"{charge.payment_id} has {charge.amount} cents captured, and {price} are due"
            )
    captured = _emitted(PaymentCaptured, fact, charge)
    after = _with_refused_raise(_as(State.CAPTURED, charge), due(seen, fact), seen, fact)
    if seen.state is State.AUTHORIZED:
        return Decision(after, (captured,))
    return Decision(after, (_emitted(PaymentAuthorized, fact, charge), captured))


def _least_captured(seen: Payment, action: Action, price: int) -> int:
    """Return the fewest cents that a capture can have taken."""
    if action is Action.AUTHORIZE_AND_CAPTURE:
        return 1  # the gateway may have had a reservation of another price
    if seen.amount is None:
        return price
    return min(price, seen.amount)


def _with_refused_raise(after: Payment, price: int, seen: Payment, fact: Fact) -> Payment:
    """Return a captured payment which says so if less than the price of the ride was captured.

    Only a refused raise leads to that. The run that met it may have been killed. So whichever event
    finds the capture, or comes after it, compares it with the price, if that cannot change any
    more.
    """
    is_final = seen.state is State.COMPLETED or isinstance(fact, CarRideCompleted)
    if isinstance(fact, CarRideOverdue):
        is_final |= "completed" in {fact.outcome, fact.status}
    if is_final and after.amount is not None and after.amount < price:
        return after._replace(raise_refused=True)
    return after


type _Paid = type[PaymentAuthorized | PaymentCaptured | PaymentRefunded]


def _emitted(kind: _Paid, fact: Fact, charge: Intent) -> Fact:
    """Return a fact about a payment. Its currency is the payment's."""
    ride = replace(fact, currency=charge.currency)
    return kind.of(ride, payment_id=charge.payment_id, amount=charge.amount)


def _as(state: State, charge: Intent) -> Payment:
    return Payment(state, charge.payment_id, charge.amount, charge.currency)
