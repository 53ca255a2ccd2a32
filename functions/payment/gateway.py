"""The port to a payment gateway: what payment asks for, and the errors. Payment sees no card data.

Payment does not find what an earlier run did, it knows it: a payment is prepared, its id is
recorded, and then only that id is confirmed, captured or ended. docs/payment-gateway.md says what a
gateway must keep.
"""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol


class Stands(StrEnum):
    """Where a payment stands at the gateway."""

    PREPARED = "prepared"  # nothing was reserved, and nothing will be unless it is confirmed
    REFUSED = "refused"  # its confirmation was refused
    PENDING = "pending"  # the gateway works on it
    HELD = "held"  # the money is reserved
    TAKEN = "taken"
    RETURNED = "returned"  # for good: it was held or taken, and is not any more
    ENDED = "ended"  # for good: it was never held


class Intent(NamedTuple):
    """A payment as the gateway has it."""

    payment_id: str
    stands: Stands
    amount: int  # in cents: reserved, or what was taken of it
    currency: str  # as in ISO 4217
    reason: str | None = None  # why it was refused: printable, at most 200 characters


class Reservation(NamedTuple):
    """What to reserve for a ride."""

    order_id: str
    customer_id: str
    amount: int  # in cents
    currency: str  # as in ISO 4217


class Known(NamedTuple):
    """A payment whose id is recorded. Every answer about it must be about the same."""

    order_id: str  # the ride that it is for
    payment_id: str
    amount: int  # in cents: prepared, reserved or taken, as far as it was recorded
    currency: str


class Call(NamedTuple):
    """The attempt that asks the gateway."""

    deadline_ms: int | None  # epoch milliseconds; nothing is begun that could not end before
    lost: Callable[[], bool]  # whether another attempt has taken over: then nothing more is asked


class Gateway(Protocol):
    """A payment gateway.

    Each method asks until it is answered, and raises GatewayError. Each can be called again, and
    takes effect once: a change that the payment's state does not allow any more changes nothing.
    """

    def prepare(self, call: Call, reservation: Reservation, since: datetime) -> Intent:
        """Return a ride's payment; if none was made ``since``, make one that moves nothing.

        Raises:
            GatewayRefusedError: This customer cannot pay this amount.
        """

    def find(self, call: Call, order_id: str, customer_id: str, since: datetime) -> Intent | None:
        """Return a ride's payment that was made ``since``, if there is one."""

    def reserve(self, call: Call, known: Known) -> Intent:
        """Confirm a prepared payment: it is held, or it has ended for good."""

    def capture(self, call: Call, known: Known, amount: int) -> Intent:
        """Take ``amount`` cents of a held payment, and raise it first if it is too small.

        Where that is refused, what is held is taken. A refused capture ends the payment.
        """

    def end(self, call: Call, known: Known, *, taken: bool, gives_back: bool) -> Intent:
        """End a payment for good: cancel it, or give back what was taken.

        Args:
            call: the attempt.
            known: the payment.
            taken: whether it is known that the money was taken.
            gives_back: whether money that was taken is given back. Else it stays taken.
        """


class GatewayError(Exception):
    """The base of the gateway's errors."""


class NoGatewayError(GatewayError):
    """Raised when the gateway must be asked, and the stack has none."""


class GatewayUnavailableError(GatewayError):
    """Raised when nothing was answered that decides: a later attempt asks again."""


class GatewayAnswerError(GatewayError):
    """Raised for an answer that is not about what was asked, or cannot become an event.

    The message names the field, not its value.
    """


class GatewayRequestError(GatewayError):
    """Raised when the gateway refuses a request, and would refuse it again.

    ``reason`` is the gateway's text, as in `Intent.reason`. It may be about the customer, so the
    message does not contain it.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class GatewayRefusedError(GatewayRequestError):
    """Raised when the refusal is about this ride: its customer, card, amount or payment."""


class GatewayAccountError(GatewayRequestError):
    """Raised when the refusal is about our request, our settings or the account: about any ride."""
