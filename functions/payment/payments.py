"""What is due for a ride, and what to ask the gateway for. Pure: no I/O, no clock, no AWS.

The rows are what payment knows of a ride, the columns are events. What the gateway does is in
brackets::

                CarAssigned             CarRideCompleted      CarRideCancelled, NoCarAvailable
    unknown     [reserve] authorized,   completed             [undo] cancelled, or refunded
                or declined
    completed   [reserve, capture]      ·                     [undo] cancelled, or refunded
                captured, or declined
    authorized  ·                       [capture] captured *  [refund] refunded
    captured    ·                       ·                     [refund] refunded
    cancelled   [undo] ·, or refunded   ·                     ·
    undo due    [undo] cancelled,       as CarAssigned        as CarAssigned
                or refunded
    declined, refunded: final, every event leaves them as they are

    * declined where the gateway refuses the capture for good; refunded where it has given the money
      back

`CarRideOverdue` says how an overdue ride ended. If it was completed, the ride is paid: [reserve,
capture] or [capture], as above. If it was cancelled, a reservation is released, but money that was
captured stays captured: payment asks for a capture only after the ride was completed. In the states
"undo due" and "cancelled", everything is given back. The reconciler may not have heard of an end
that payment knows. A completed ride then stays as it is, and the reconciler looks at it again.

Events come in any order. A ride that was cancelled before payment heard of a car is never charged.
But the cancellation may have overtaken a run that had already asked for the money. So payment looks
for the ride's payment at the gateway and gives back what it finds. The table calls this "undo".

Before a request, payment records which steps it asks for, and until when the gateway may finish
them. A run may be killed inside a request, and the gateway may finish it an hour later. So a ride
without a payment at the gateway stays "undo due" until then. The reconciler waits as long, and then
has it looked for once more. A gateway may also keep an error under a key. Once it cannot finish the
request any more, and has no payment, the step gets a new key.

A payment becomes "undo due" before the gateway is asked to give something back, and stays so until
it has. So the duty outlives a gateway that does not answer, a reservation that is still being made,
a killed run and a quarantined event. The next event of the ride fulfils it, and so does a redriven
one.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
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
from carride.overdue import sortable_time
from carride.ride import OPEN as UNDER_WAY
from carride.ride import Ride
from carride_idempotency import Policy
from gateway import Charge, Status, Step

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
        # A rerun is safe, although the gateway is outside of the commit: it is asked for what it
        # has done already, and gets the same key again.
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
    payment_id: str | None = None  # the gateway's name for it
    amount: int | None = None  # in cents: what is due, reserved, captured or given back
    currency: str | None = None  # that of the gateway's payment; None if it was not recorded
    raise_refused: bool = False  # whether less than the price was captured


class Asked(Struct, frozen=True, omit_defaults=True):
    """A step that the gateway was asked for."""

    key_number: int
    until: str  # when it has finished the step, or never will: in UTC, as text that sorts
    refused: str = ""  # why it refused the step for good, if it did


class Action(StrEnum):
    """What to ask the gateway for."""

    NOTHING = "nothing"
    AUTHORIZE = "authorize"
    AUTHORIZE_AND_CAPTURE = "authorize and capture"
    CAPTURE = "capture"
    REFUND = "refund"
    UNDO = "undo"  # refund what the gateway has for the ride, if anything
    RELEASE = "release"  # release what is reserved for the ride, if anything


FINISHES_WITHIN: Final = timedelta(hours=1)
"""A gateway finishes a request in this time, or never (docs/payment-gateway.md)."""
_LONGEST_RUN: Final = timedelta(minutes=15)
_RECORDED_AGAIN_AFTER: Final = timedelta(minutes=10)
"""Attempts that follow each other within this time record their steps once."""

_CAPTURES: Final = frozenset({Step.CAPTURE, Step.GIVE_BACK})
"""A capture that is refused is followed by a release."""
STEPS: Final[Mapping[Action, frozenset[Step]]] = {
    Action.NOTHING: frozenset(),
    Action.AUTHORIZE: frozenset({Step.RESERVE}),
    Action.AUTHORIZE_AND_CAPTURE: _CAPTURES | {Step.RESERVE},
    Action.CAPTURE: _CAPTURES,
    Action.REFUND: frozenset({Step.GIVE_BACK}),
    Action.UNDO: frozenset({Step.GIVE_BACK}),
    Action.RELEASE: frozenset({Step.GIVE_BACK}),
}
"""What each action may ask the gateway for."""


def asked_for(asked: Mapping[Step, Asked], action: Action, now: datetime) -> Mapping[Step, Asked]:
    """Return what the gateway was asked for, once it is asked for an action too.

    A step keeps its key while the gateway may still finish an earlier request for it.
    """
    latest = now + FINISHES_WITHIN + _LONGEST_RUN
    after = dict(asked)
    for step in STEPS[action]:
        earlier = asked.get(step)
        if earlier is not None and earlier.until >= sortable_time(latest):
            continue  # what is recorded covers this request too
        number = _key_number(earlier, now)
        refused = "" if earlier is None else earlier.refused
        after[step] = Asked(number, sortable_time(latest + _RECORDED_AGAIN_AFTER), refused)
    return after


def with_refusal(asked: Mapping[Step, Asked], reason: str) -> Mapping[Step, Asked]:
    """Return what the gateway was asked for, once it has refused the capture for good."""
    return {**asked, Step.CAPTURE: replace(asked[Step.CAPTURE], refused=reason)}


def as_refused(charge: Charge | None, action: Action, asked: Mapping[Step, Asked]) -> Charge | None:
    """Return a payment as declined if it was released because its capture had been refused.

    The gateway shows only that nothing is reserved any more. The attempt that was refused may have
    ended before it could say so.
    """
    capture = asked.get(Step.CAPTURE)
    if capture is None or not capture.refused or Step.CAPTURE not in STEPS[action]:
        return charge
    if charge is None or charge.status is not Status.REFUNDED:
        return charge
    return charge._replace(status=Status.DECLINED, reason=capture.refused)


def _key_number(earlier: Asked | None, now: datetime) -> int:
    """Return the number of the key for a step that may have been asked for before."""
    if earlier is None:
        return 1
    if is_unfinished(earlier, now):
        return earlier.key_number
    return earlier.key_number + 1


def still_asked(asked: Mapping[Step, Asked], action: Action, now: datetime) -> Mapping[Step, Asked]:
    """Return what the gateway may still finish, once it has answered to an action.

    It may have been asked for further steps by another event of the ride, whose run was killed. If
    they were forgotten, the next attempt would use their first key again, and the gateway might do
    the same twice.
    """
    return {
        step: earlier
        for step, earlier in asked.items()
        if step not in STEPS[action] and is_unfinished(earlier, now)
    }


def is_unfinished(asked: Asked | None, now: datetime) -> bool:
    """Return whether the gateway may still finish a step that it was asked for."""
    return asked is not None and asked.until > sortable_time(now)


def may_owe(payment: Payment, asked: Mapping[Step, Asked]) -> bool:
    """Return whether payment waits for an event of the ride."""
    was_asked = payment.state is State.UNKNOWN and Step.RESERVE in asked
    return payment.state in OPEN or was_asked


class Decision(NamedTuple):
    """What an event makes of a ride's payment."""

    after: Payment
    facts: tuple[Fact, ...] = ()  # what to emit, in this order
    is_answered: bool = True  # whether the gateway has finished what it was asked for just now


class UnexpectedPaymentError(Exception):
    """Raised when the gateway's payment does not follow from what the gateway was asked for."""


class UnfinishedRequestError(Exception):
    """Raised when nothing is found, but the gateway may still finish an earlier request."""


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
    if seen.state is State.COMPLETED and seen.amount is not None:
        return seen.amount
    return ride.price


def conclude(
    seen: Payment, fact: Fact, action: Action, charge: Charge | None, *, unfinished: bool = False
) -> Decision:
    """Decide what a fact makes of a payment, for which ``action`` was planned.

    Args:
        seen: the payment as it was read.
        fact: what happened to the ride.
        action: what the gateway was asked for.
        charge: the payment as the gateway has it afterwards; None if the gateway was asked for
            nothing, or had nothing to undo.
        unfinished: whether the gateway may still finish a reservation that it was asked for.

    Raises:
        UnexpectedPaymentError: The gateway's payment does not follow from the action.
        UnfinishedRequestError: Nothing is found yet, and no later event would look again.
    """
    if charge is None:
        return _without_payment(seen, fact, action, unfinished=unfinished)
    match action, charge.status:
        case Action.AUTHORIZE, Status.AUTHORIZED:
            authorized = _emitted(PaymentAuthorized, fact, charge)
            return Decision(_as(State.AUTHORIZED, charge), (authorized,))
        case ((Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE | Action.CAPTURE), Status.DECLINED):
            reason = charge.reason or "declined"
            declined = PaymentDeclined.of(fact, amount=charge.amount, reason=reason)
            return Decision(_as(State.DECLINED, charge), (declined,))
        case (
            (Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE | Action.CAPTURE | Action.RELEASE),
            Status.CAPTURED,
        ):
            return _captured(seen, fact, action, charge)
        # Whatever was asked for, another run may have given the money back meanwhile.
        case _, Status.REFUNDED:
            refunded = _emitted(PaymentRefunded, fact, charge)
            return Decision(_as(State.REFUNDED, charge), (refunded,))
        case ((Action.UNDO | Action.RELEASE), Status.DECLINED):
            return Decision(Payment(State.CANCELLED))
        case _:
            raise UnexpectedPaymentError(
                f"{charge.payment_id} is {charge.status}, "
                f"after the gateway was asked to {action} it"
            )


def _without_payment(seen: Payment, fact: Fact, action: Action, *, unfinished: bool) -> Decision:
    """Decide where the gateway was asked for nothing, or has no payment."""
    if action in {Action.UNDO, Action.RELEASE}:
        if not unfinished:
            return Decision(Payment(State.CANCELLED))
        if isinstance(fact, CarRideOverdue):
            raise UnfinishedRequestError(
                f"the gateway has no payment for {fact.order_id} yet, but may still make one: "
                "redrive the event in two hours"
            )
        return Decision(Payment(State.UNDO_DUE), is_answered=False)
    after = seen
    if isinstance(fact, CarRideCompleted) and seen.state is State.UNKNOWN:
        after = Payment(State.COMPLETED, amount=fact.price)
    elif seen.state is State.CAPTURED:
        after = _with_refused_raise(seen, fact.price, seen, fact)
    return Decision(after, is_answered=False)


def _captured(seen: Payment, fact: Fact, action: Action, charge: Charge) -> Decision:
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


def _emitted(kind: _Paid, fact: Fact, charge: Charge) -> Fact:
    """Return a fact about a payment. Its currency is the payment's."""
    ride = replace(fact, currency=charge.currency)
    return kind.of(ride, payment_id=charge.payment_id, amount=charge.amount)


def _as(state: State, charge: Charge) -> Payment:
    return Payment(state, charge.payment_id, charge.amount, charge.currency)
