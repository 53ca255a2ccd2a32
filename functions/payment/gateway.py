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

    payment_id: str
    status: Status
    amount: int
    """In cents."""
    reason: str | None = None
    """Why it was declined."""


class Call(NamedTuple):
    """On whose behalf the gateway is asked."""

    key: str
    """The same for every attempt at one operation: the gateway recognises by it what it was asked before."""
    repeated: bool
    """Whether an earlier run may have asked already. A gateway remembers keys for days at best, so it is asked by the
    ride's name first whether it has done it."""
    deadline_ms: int | None
    """When the invocation is stopped, in epoch milliseconds; nothing is begun that could not end before."""
    lost: Callable[[], bool]
    """Whether another attempt has taken over: then nothing more is asked."""


class GatewayError(Exception):
    """The base of what a gateway raises."""


class GatewayUnavailableError(GatewayError):
    """Raised when there was no answer, or none that says what became of it: ask again, under the same key."""


class GatewayRefusedError(GatewayError):
    """Raised when the gateway does not do what it was asked, and would not the next time."""


class Gateway(Protocol):
    """Reserves money, captures it and gives it back.

    Every method can be called again with the same key, and takes effect once. Each raises GatewayUnavailableError and
    GatewayRefusedError.
    """

    def authorize(self, call: Call, *, order_id: str, customer_id: str, amount: int) -> Charge:
        """Reserve ``amount`` cents for a ride, or decline to. There is one payment for a ride."""
        ...

    def capture(self, call: Call, *, payment_id: str, amount: int) -> Charge:
        """Take ``amount`` cents, which may differ from what was reserved: the destination may have changed."""
        ...

    def refund(self, call: Call, *, payment_id: str) -> Charge:
        """Give back what was captured, or release what is only reserved."""
        ...

    def find(self, call: Call, *, order_id: str) -> Charge | None:
        """Return a ride's payment, if the gateway has one."""
        ...
