"""What is due for a ride, and what to ask the gateway for. Pure: no I/O, no clock, no AWS.

The rows are what payment knows of a ride, the columns are events. What the gateway does is in
brackets::

                   CarAssigned                                CarRideCompleted         CarRideCancelled, NoCarAvailable
    unknown        [reserve] authorized, or declined          completed                [undo] cancelled, or refunded
    completed      [reserve, capture] captured, or declined   ·                        [undo] cancelled, or refunded
    authorized     ·                                          [capture] captured *     [refund] refunded
    captured       ·                                          ·                        [refund] refunded
    cancelled      [undo] ·, or refunded                      ·                        ·
    undo due       [undo] cancelled, or refunded              as CarAssigned           as CarAssigned
    declined, refunded: final, every event leaves them as they are

    * declined where the gateway refuses the capture for good; refunded where it has given the money
      back

`CarRideOverdue` says how an overdue ride ended. If it was completed, the ride is paid: [reserve,
capture] or [capture], as above. If it was cancelled, a reservation is released, but money that was
captured stays captured: payment asks for a capture only after the ride was completed. In the states
"undo due" and "cancelled", everything is given back.

Events come in any order. A ride that was cancelled before payment heard of a car is never charged.
But the cancellation may have overtaken a run that had already asked for the money. So payment looks
for the ride's payment at the gateway and gives back what it finds. The table calls this "undo".

A payment becomes "undo due" before the gateway is asked to give something back, and stays so until
it has. So the duty outlives a gateway that does not answer, a reservation that is still being made,
a killed run and a quarantined event. The next event of the ride fulfils it, and so does a redriven
one.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

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
from carride.ride import Ride
from carride_idempotency import Policy
from gateway import Charge, Status

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


class Action(StrEnum):
    """What to ask the gateway for."""

    NOTHING = "nothing"
    AUTHORIZE = "authorize"
    AUTHORIZE_AND_CAPTURE = "authorize and capture"
    CAPTURE = "capture"
    REFUND = "refund"
    UNDO = "undo"  # refund what the gateway has for the ride, if anything
    RELEASE = "release"  # release what is reserved for the ride, if anything


class Decision(NamedTuple):
    """What an event makes of a ride's payment."""

    after: Payment
    facts: tuple[Fact, ...] = ()  # what to emit, in this order


class UnexpectedStatusError(Exception):
    """Raised when the status of a payment does not follow from what the gateway was asked for."""


def plan(seen: Payment, fact: Fact) -> Action:
    """Return what to ask the gateway for: nothing, if payment does not consume the fact."""
    match fact, seen.state:
        case _, State.UNDO_DUE if type(fact) in CONSUMED:
            return Action.UNDO
        case CarAssigned(), State.UNKNOWN:
            return Action.AUTHORIZE
        case (CarAssigned(), State.COMPLETED) | (
            CarRideOverdue(outcome="completed"),
            (State.UNKNOWN | State.COMPLETED),
        ):
            return Action.AUTHORIZE_AND_CAPTURE
        case CarRideCompleted() | CarRideOverdue(outcome="completed"), State.AUTHORIZED:
            return Action.CAPTURE
        case CarRideOverdue(), State.UNKNOWN | State.COMPLETED | State.AUTHORIZED:
            return Action.RELEASE
        case ((CarAssigned() | CarRideOverdue()), State.CANCELLED) | (
            (CarRideCancelled() | NoCarAvailable()),
            (State.UNKNOWN | State.COMPLETED),
        ):
            return Action.UNDO
        case CarRideCancelled() | NoCarAvailable(), State.AUTHORIZED | State.CAPTURED:
            return Action.REFUND
        case _:
            return Action.NOTHING


def due(seen: Payment, ride: Ride) -> int:
    """Return how many cents to reserve or capture: for a completed ride, its last price."""
    if seen.state is State.COMPLETED and seen.amount is not None:
        return seen.amount
    return ride.price


def conclude(seen: Payment, fact: Fact, action: Action, charge: Charge | None) -> Decision:
    """Decide what a fact makes of a payment, for which ``action`` was planned.

    Args:
        seen: the payment as it was read.
        fact: what happened to the ride.
        action: what the gateway was asked for.
        charge: the payment as the gateway has it afterwards; None if the gateway was asked for
            nothing, or had nothing to undo.

    Raises:
        UnexpectedStatusError: The gateway's payment does not follow from the action.
    """
    if charge is None:
        if action in {Action.UNDO, Action.RELEASE}:
            return Decision(Payment(State.CANCELLED))
        ended = isinstance(fact, CarRideCompleted) and seen.state is State.UNKNOWN
        return Decision(Payment(State.COMPLETED, amount=fact.price) if ended else seen)
    paid: dict[str, Any] = {"payment_id": charge.payment_id, "amount": charge.amount}
    match action, charge.status:
        case Action.AUTHORIZE, Status.AUTHORIZED:
            return Decision(_as(State.AUTHORIZED, charge), (PaymentAuthorized.of(fact, **paid),))
        case ((Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE | Action.CAPTURE), Status.DECLINED):
            declined = PaymentDeclined.of(
                fact, amount=charge.amount, reason=charge.reason or "declined"
            )
            return Decision(_as(State.DECLINED, charge), (declined,))
        case (
            (Action.AUTHORIZE | Action.AUTHORIZE_AND_CAPTURE | Action.CAPTURE | Action.RELEASE),
            Status.CAPTURED,
        ):
            reserved = (
                () if seen.state is State.AUTHORIZED else (PaymentAuthorized.of(fact, **paid),)
            )
            return Decision(
                _as(State.CAPTURED, charge), (*reserved, PaymentCaptured.of(fact, **paid))
            )
        # Whatever was asked for, another run may have given the money back meanwhile.
        case _, Status.REFUNDED:
            return Decision(_as(State.REFUNDED, charge), (PaymentRefunded.of(fact, **paid),))
        case ((Action.UNDO | Action.RELEASE), Status.DECLINED):
            return Decision(Payment(State.CANCELLED))
        case _:
            raise UnexpectedStatusError(
                f"{charge.payment_id} is {charge.status}, after the gateway was asked to {action} it"
            )


def _as(state: State, charge: Charge) -> Payment:
    return Payment(state, charge.payment_id, charge.amount)
