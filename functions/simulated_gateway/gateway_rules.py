"""The rules of the simulated payment gateway: what a request does to a payment. Pure, without keys.

It captures as often as it is asked under different keys. Its client must prevent that.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from carride_idempotency import Policy

POLICY: Final = Policy(window=86_400, max_attempts=1_000, atomic=True, conflict_reruns=5)
"""A key is remembered for a day. Two requests for payments of one reference conflict, and the later
one runs again."""

type Text = Annotated[str, Meta(min_length=1, max_length=256)]
type Cents = Annotated[int, Meta(gt=0, le=1_000_000_000)]


class RefusedError(Exception):
    """Raised when a request cannot take effect. The message is the answer's title."""

    def __init__(self, status: int, title: str, code: str = "impossible") -> None:
        super().__init__(title)
        self.status = status
        self.code = code


class _Amount(Struct):
    amount: Cents


class _Refund(Struct):
    status: str | None = None  # as the client knows it


class _Reservation(_Amount, kw_only=True):
    reference: Text  # the client's name for it
    customer: Text
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$(?!\n)")] = "EUR"


class Payment(_Reservation, kw_only=True):
    """A payment in the ledger; amounts are in cents."""

    id: str
    status: str = "pending"
    reason: str | None = None
    captures: list[int] = []
    refunds: list[int] = []


def payment(name: str, body: object) -> Payment:
    """Return the pending payment that the body of a request asks for, with this id.

    Raises:
        RefusedError: The body is not that of a reservation.
    """
    return Payment(id=name, **msgspec.structs.asdict(_read(body, _Reservation)))


def change(found: Payment, action: str, body: object) -> None:
    """Adjust, capture or refund a payment.

    Raises:
        RefusedError: The payment, or the body of the request, does not allow it.
    """
    if action == "refund":
        known = _read(body, _Refund).status
        if known not in {None, found.status}:
            raise RefusedError(422, f"{found.id} is {found.status}, not {known}", "changed")
        amount = found.amount
    else:
        amount = _read(body, _Amount).amount
    match action, found.status:
        case "adjust", "authorized":
            found.amount = amount
        case "capture", "authorized" | "captured":
            if amount > found.amount:
                raise RefusedError(
                    422, f"{found.customer} has {found.amount} reserved", "amount_too_large"
                )
            found.status = "captured"
            found.amount = amount
            found.captures.append(amount)
        case "refund", "authorized" | "captured" | "refunded":
            found.status = "refunded"
            found.refunds.append(amount)
        case _, status:
            raise RefusedError(422, f"{found.id} is {status}: {action} is not possible")


def _read[S: Struct](body: object, shape: type[S]) -> S:
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise RefusedError(422, f"the body is not complete: {error}", "invalid") from error
