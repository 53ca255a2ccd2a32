"""The port to a payment gateway: its types and errors. Payment never sees card data."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """Where a payment stands at the gateway."""

    PENDING = "pending"  # the gateway has not finished what it was asked
    AUTHORIZED = "authorized"
    DECLINED = "declined"
    CAPTURED = "captured"
    REFUNDED = "refunded"  # the customer got the money back, or it is no longer reserved


class Step(StrEnum):
    """What a request changes at the gateway."""

    RESERVE = "reserve"
    CAPTURE = "capture"  # with the raise of the reservation before it
    GIVE_BACK = "give back"


class Charge(NamedTuple):
    """A payment as the gateway has it."""

    payment_id: str | None  # None if the gateway refused to make a payment at all
    status: Status
    amount: int  # in cents
    reason: str | None = None  # why it was declined: printable, at most 200 characters
    currency: str | None = None  # as in ISO 4217; None without a payment


class Known(NamedTuple):
    """A payment that is known already. Every answer about it must be about the same."""

    order_id: str  # the ride that it is for
    payment_id: str
    currency: str | None = None  # None if it was not recorded


class Call(NamedTuple):
    """The attempt that asks the gateway."""

    deadline_ms: int | None  # epoch milliseconds; nothing is begun that could not end before
    lost: Callable[[], bool]  # whether another attempt has taken over: then nothing more is asked
    key_numbers: Mapping[Step, int] = {}
    """Which key each step uses. A gateway may keep an error under a key. Then the step needs
    another key, once the gateway cannot finish the first request any more."""
    note_refusal: Callable[[str], object] = lambda _: None
    """Is told why a capture was refused for good, before what is reserved is released."""

    def key(self, step: Step, name: str) -> str:
        """Return the idempotency key of a step's request."""
        number = self.key_numbers.get(step, 1)
        if number == 1:
            return name
        return f"{name}-{number}"


class GatewayError(Exception):
    """The base of the gateway's errors."""


class NoGatewayError(GatewayError):
    """Raised when the gateway must be asked, and the stack has none."""


class GatewayUnavailableError(GatewayError):
    """Raised when the outcome of a request is unknown: ask again, under the same key."""


class GatewayRefusedError(GatewayError):
    """Raised when the gateway refuses a request, and would refuse it again.

    ``reason`` is the gateway's text, as in `Charge.reason`. It may be about the customer, so the
    message does not contain it.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class GatewayAnswerError(GatewayError):
    """Raised for an answer that cannot become an event.

    The message names the field, not its value.
    """
