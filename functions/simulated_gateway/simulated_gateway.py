"""A payment gateway without money, for stacks of stage `dev`. docs/payment-gateway.md describes its protocol.

It charges as often as it is asked under different keys: its client has to prevent double charges. Requests with the
same key take effect once, because the idempotency layer commits the payment together with the answer.
"""

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from botocore.session import get_session
from msgspec import Meta, Struct
from msgspec.structs import replace

from carride.clients import dynamodb_client
from carride.settings import from_environment
from idempotency import Consumer, DynamoDBStore, Operation, Policy, Put, marshalling
from idempotency.http import HttpHandler, HttpProblemError
from idempotency.http_formats import Request
from idempotency.stores.transport import Transport, botocore_transport

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_MOST_PAYMENTS: Final = 20
"""Payments of one reference; they share an item."""
# A key is remembered for a day. Two requests for payments of one reference conflict, and the later one runs again.
_POLICY: Final = Policy(window=86_400, max_attempts=1_000, atomic=True, conflict_reruns=5)

type Text = Annotated[str, Meta(min_length=1, max_length=256)]
type Cents = Annotated[int, Meta(gt=0, le=1_000_000_000)]


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    simulated_gateway_table: str
    aws_region: str


class Reservation(Struct, frozen=True):
    """The body of a request for a payment."""

    reference: Text
    customer: Text
    amount: Cents
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$(?!\n)")] = "EUR"


class Change(Struct, frozen=True):
    """The body of a request that changes a payment; a refund has no amount."""

    amount: Cents | None = None


class Payment(Struct, frozen=True, kw_only=True):
    """A payment; amounts are in cents."""

    id: str
    reference: str
    customer: str
    amount: int
    currency: str
    status: str = "authorized"
    reason: str | None = None
    captures: tuple[int, ...] = ()
    refunds: tuple[int, ...] = ()


class Books:
    """The payments in the table: one item for those of one reference, so that both lookups are consistent reads."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def look_up(self, request: Request) -> object:
        """Answer a question, which changes nothing."""
        match request.path.split("/")[1:], request.query:
            case ["payments"], [("reference", reference)]:
                return {"payments": msgspec.to_builtins(self._of(_partition(reference))[0])}
            case ["payments", name], _:
                return msgspec.to_builtins(self._payment(name)[0])
        raise _refused(404, "nothing is here")

    def change(self, request: Request, operation: Operation) -> object:
        """Reserve money, or change a payment."""
        match request.path.split("/")[1:]:
            case ["payments"]:
                wanted = _body(request, Reservation)
                partition = _partition(wanted.reference)
                payments, version = self._of(partition)
                if len(payments) == _MOST_PAYMENTS:
                    raise _refused(422, f"a reference has at most {_MOST_PAYMENTS} payments", "too_many")
                payment = Payment(id=f"pay_{partition}_{len(payments)}", **msgspec.structs.asdict(wanted))
                operation.write(self._put(partition, [*payments, payment], version))
                return {"statusCode": 201, "body": msgspec.to_builtins(payment)}
            case ["payments", name, ("adjust" | "capture" | "refund") as action]:
                before, payments, version = self._payment(name)
                after = changed(before, action, _body(request, Change).amount)
                kept = [after if payment.id == name else payment for payment in payments]
                operation.write(self._put(name.split("_")[1], kept, version))
                return msgspec.to_builtins(after)
        raise _refused(404, "this is no operation")

    def _payment(self, name: str) -> tuple[Payment, list[Payment], int]:
        """Return a payment, all payments of its reference, and their version."""
        payments, version = self._of(name.split("_")[1]) if name.count("_") == 2 else ([], 0)  # noqa: PLR2004 - its form
        for payment in payments:
            if payment.id == name:
                return payment, payments, version
        raise _refused(404, "there is no such payment")

    def _of(self, partition: str) -> tuple[list[Payment], int]:
        """Return the payments of one reference, and their version."""
        key = {"idempotencyKey": {"S": f"payments#{partition}"}}
        answer: Any = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        item: dict[str, Any] = marshalling.values(answer.get("Item", {}))
        return msgspec.convert(item.get("payments", []), list[Payment]), item.get("version", 0)

    def _put(self, partition: str, payments: list[Payment], version: int) -> Put:
        item = {
            "idempotencyKey": f"payments#{partition}",
            "version": version + 1,
            "payments": msgspec.to_builtins(payments),
        }
        unchanged = "version = :version" if version else "attribute_not_exists(idempotencyKey)"
        return Put(self._table, item, unchanged, {":version": version} if version else None)


def changed(payment: Payment, action: str, amount: int | None) -> Payment:
    """Return what an action makes of a payment.

    Raises:
        HttpProblemError: 422: the action is not possible.
    """
    match action, payment.status, amount:
        case "adjust", "authorized", int():
            return replace(payment, amount=amount)
        case "capture", ("authorized" | "captured"), int() if amount <= payment.amount:
            return replace(payment, status="captured", amount=amount, captures=(*payment.captures, amount))
        case "capture", ("authorized" | "captured"), int():
            raise _refused(422, f"only {payment.amount} is reserved", "amount_too_large")
        case "refund", ("authorized" | "captured" | "refunded"), _:
            return replace(payment, status="refunded", refunds=(*payment.refunds, payment.amount))
    raise _refused(422, f"{action} is not possible: the payment is {payment.status}", "impossible")


def _partition(reference: str) -> str:
    """Return the part that the ids of a reference's payments share."""
    return hashlib.blake2b(reference.encode(), digest_size=16).hexdigest()


def _body[S: Struct](request: Request, shape: type[S]) -> S:
    try:
        return msgspec.json.decode(request.body(), type=shape)
    except msgspec.DecodeError as error:
        raise HttpProblemError(422, "The body is not complete", str(error), code="invalid") from error


def _refused(status: int, title: str, code: str = "not_found") -> HttpProblemError:
    return HttpProblemError(status, title, code=code)


def make_handler(
    settings: Settings, *, dynamodb: "DynamoDBClient | None" = None, transport: Transport | None = None
) -> HttpHandler:
    """Return the Lambda handler.

    Args:
        settings: the function's environment.
        dynamodb: reads the table; by default a client of its own.
        transport: carries the transactions to DynamoDB; by default a client of its own.
    """
    session = get_session()
    table = settings.simulated_gateway_table
    books = Books(dynamodb or dynamodb_client(session), table)
    store = DynamoDBStore(table, transport=transport or botocore_transport(session=session))
    consumer = Consumer("simulated-gateway", store, policy=_POLICY, region=settings.aws_region)

    @consumer.http_handler
    def handler(event: dict[str, Any], operation: Operation | None) -> object:
        request = Request.of(event)
        return books.look_up(request) if operation is None else books.change(request, operation)

    return handler


handler = make_handler(from_environment(Settings))
