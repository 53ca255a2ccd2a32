"""The port to the payment gateway: what payment asks of it, whoever it is. No card data ever comes near it."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol


class Status(StrEnum):
    """Where a payment stands at the gateway."""

    PENDING = "pending"
    """The gateway has not finished what it was asked."""
    AUTHORIZED = "authorized"
    DECLINED = "declined"
    CAPTURED = "captured"
    REFUNDED = "refunded"
    """The customer has the money back, or it is no longer reserved."""


class Charge(NamedTuple):
    """A payment as the gateway has it."""

    payment_id: str | None
    """None where the gateway refused to make a payment at all."""
    status: Status
    amount: int
    """In cents."""
    reason: str | None = None
    """Why it was declined: printable, at most 200 characters."""
    currency: str | None = None
    """As in ISO 4217; None where the gateway does not say."""


class Call(NamedTuple):
    """On whose behalf the gateway is asked."""

    key: str
    """The same for every attempt at one operation: the gateway recognises by it what it was asked before."""
    deadline_ms: int | None
    """When the invocation is stopped, in epoch milliseconds; nothing is begun that could not end before."""
    lost: Callable[[], bool]
    """Whether another attempt has taken over: then nothing more is asked."""


class GatewayError(Exception):
    """The base of what a gateway raises."""


class GatewayUnavailableError(GatewayError):
    """Raised when there was no answer, or none that says what became of it: ask again, under the same key."""


class GatewayRefusedError(GatewayError):
    """Raised when the gateway does not do what it was asked, and would not the next time.

    ``reason`` is the gateway's own, as `Charge.reason`; it may be about the customer, so the message leaves it out.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class GatewayAnswerError(GatewayError):
    """Raised for an answer whose values the events have no place for. The message names the field, not its value."""


class Gateway(Protocol):
    """Reserves money, captures it and gives it back.

    Every method asks first what the gateway has done already, so it can be called again, and takes effect once, also
    where the gateway has forgotten its keys. Each raises GatewayError.
    """

    def authorize(self, call: Call, *, order_id: str, customer_id: str, amount: int, currency: str) -> Charge:
        """Reserve ``amount`` cents of ``currency`` for a ride, or decline to. There is one payment for a ride."""
        ...

    def adjust(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Raise what is reserved to ``amount`` cents; the answer has the old amount where the gateway refuses."""
        ...

    def capture(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Take ``amount`` cents, at most what is reserved. DECLINED, and still reserved, where the gateway refuses."""
        ...

    def refund(self, call: Call, *, payment_id: str) -> Charge:
        """Give back what was captured, or release what is only reserved."""
        ...

    def find(self, call: Call, *, order_id: str) -> Charge | None:
        """Return a ride's payment, if the gateway has one."""
        ...
