"""What is due for a ride, and what the gateway is to be asked for. Pure: no I/O, no clock, no AWS.

What payment knows of a ride, and what an event makes of it; the gateway's part is in brackets::

                   CarAssigned                                CarRideCompleted         CarRideCancelled, NoCarAvailable
    unknown        [reserve] authorized, or declined          completed                [undo] cancelled, or refunded
    completed      [reserve, capture] captured, or declined   ·                        [undo] cancelled, or refunded
    authorized     ·                                          [capture] captured *     [refund] refunded
    captured       ·                                          ·                        [refund] refunded
    cancelled      [undo] ·, or refunded                      ·                        ·
    undo due       [undo] cancelled, or refunded              as CarAssigned           as CarAssigned
    declined, refunded: final, every event leaves them as they are

CarRideOverdue says how the ride ended. What is "undo due" or cancelled is undone. A ride that a car
has driven is paid: [reserve, capture] or [capture], as above. Of any other, what is reserved is
released. What the gateway has captured stays so: it was asked for that when somebody knew that the
ride was over.

    * declined where the gateway refuses the capture for good; refunded where it has given the money
      back

Events come in any order. A ride that was called off before a car was heard of is never charged. But
the cancellation may have overtaken a run that had asked for the money already, so the gateway is
asked for it by the ride's name, and what it has is given back: that is to undo.

A ride is "undo due" from before the gateway is asked to give something back until it has. So the
duty is known though the gateway does not answer, still works on the reservation, or the run is
killed and its event quarantined. Whichever event of the ride comes next fulfils it, a redriven one
too.
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


# Payment waits for an event of the ride.
OPEN: Final = frozenset({State.COMPLETED, State.UNDO_DUE, State.AUTHORIZED})


class Payment(NamedTuple):
    """A ride's payment, as payment has it."""

    state: State
    payment_id: str | None = None  # the gateway's name for it
    amount: int | None = None  # in cents: what is due, reserved, captured or given back


class Action(StrEnum):
    """What the gateway is to be asked for."""

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
    """Raised when the gateway's answer is not one to what it was asked."""


def plan(seen: Payment, fact: Fact) -> Action:
    """Return what the gateway is to be asked for. A fact that payment does not consume asks for nothing."""
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
    """Return what is to be reserved or captured, in cents: a ride that is over has its last price."""
    if seen.state is State.COMPLETED and seen.amount is not None:
        return seen.amount
    return ride.price


def conclude(seen: Payment, fact: Fact, action: Action, charge: Charge | None) -> Decision:
    """Decide what a fact makes of a payment, for which ``action`` was planned.

    ``charge`` is the payment as the gateway has it afterwards; None where it was asked for nothing,
    or had nothing to undo. UnexpectedStatusError if it is no answer to the plan.
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
                f"{charge.payment_id} is {charge.status} after it was to {action}"
            )


def _as(state: State, charge: Charge) -> Payment:
    return Payment(state, charge.payment_id, charge.amount)
