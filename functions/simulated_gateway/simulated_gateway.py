"""A payment gateway that takes no money, for stacks of stage `dev`. docs/payment-gateway.md describes its protocol.

It charges as often as it is asked under different keys: its client has to prevent that. Requests with the same key take
effect once, because the idempotency layer commits the payment together with the answer. The payments of one reference
are one item, whose key their ids contain: so both lookups are consistent reads.
"""

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from botocore.session import get_session
from msgspec import Meta, Struct

from carride.clients import dynamodb_client
from carride.settings import from_environment
from idempotency import Consumer, DynamoDBStore, Operation, Policy, Put, marshalling
from idempotency.http import HttpHandler, HttpProblemError
from idempotency.http_formats import Request
from idempotency.stores.transport import Transport, botocore_transport

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_MOST_PAYMENTS: Final = 20
"""Payments of one reference."""
# A key is remembered for a day. Two requests for payments of one reference conflict, and the later one runs again.
_POLICY: Final = Policy(window=86_400, max_attempts=1_000, atomic=True, conflict_reruns=5)

type Text = Annotated[str, Meta(min_length=1, max_length=256)]
type Cents = Annotated[int, Meta(gt=0, le=1_000_000_000)]
type Payment = dict[str, Any]


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


class Amount(Struct, frozen=True):
    """The body of an adjustment or a capture."""

    amount: Cents


def make_handler(
    settings: Settings, *, dynamodb: "DynamoDBClient | None" = None, transport: Transport | None = None
) -> HttpHandler:
    """Return the Lambda handler. ``dynamodb`` reads the table and ``transport`` writes it; by default clients do."""
    session = get_session()
    table = settings.simulated_gateway_table
    client: Any = dynamodb or dynamodb_client(session)
    store = DynamoDBStore(table, transport=transport or botocore_transport(session=session))
    consumer = Consumer("simulated-gateway", store, policy=_POLICY, region=settings.aws_region)

    def read(group: str) -> tuple[list[Payment], int]:
        """Return the payments of one reference, and their version."""
        key = {"idempotencyKey": {"S": f"payments#{group}"}}
        item: Any = marshalling.values(client.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item", {}))
        return item.get("payments", []), item.get("version", 0)

    @consumer.http_handler
    def handler(event: dict[str, Any], operation: Operation | None) -> object:
        request = Request.of(event)
        match operation, request.path.split("/")[1:], request.query:
            case None, ["payments"], [("reference", reference)]:
                return {"payments": read(_group(reference))[0]}
            case None, ["payments", name], _:
                return _named(name, read(name[4:36])[0])
            case Operation(), ["payments"], _:
                wanted = msgspec.to_builtins(_body(request, Reservation))
                group, status = _group(wanted["reference"]), 201
                payments, version = read(group)
                if len(payments) == _MOST_PAYMENTS:
                    raise HttpProblemError(422, f"a reference has at most {_MOST_PAYMENTS} payments", code="too_many")
                payment = {"id": f"pay_{group}_{len(payments)}", **wanted, "status": "authorized", "reason": None}
                payments.append(payment | {"captures": [], "refunds": []})
                payment = payments[-1]
            case Operation(), ["payments", name, ("adjust" | "capture" | "refund") as action], _:
                group, status = name[4:36], 200
                payments, version = read(group)
                payment = _named(name, payments)
                change(payment, action, 0 if action == "refund" else _body(request, Amount).amount)
            case _:
                raise HttpProblemError(404, "this is no operation")
        condition = "version = :version" if version else "attribute_not_exists(idempotencyKey)"
        item = {"idempotencyKey": f"payments#{group}", "version": version + 1, "payments": payments}
        operation.write(Put(table, item, condition, {":version": version} if version else None))
        return {"statusCode": status, "body": payment}

    return handler


def change(payment: Payment, action: str, amount: int) -> None:
    """Adjust, capture or refund a payment.

    Raises:
        HttpProblemError: 422: the payment does not allow it.
    """
    match action, payment["status"]:
        case "adjust", "authorized":
            payment["amount"] = amount
        case "capture", "authorized" | "captured" if amount <= payment["amount"]:
            payment.update(status="captured", amount=amount, captures=[*payment["captures"], amount])
        case "refund", _:
            payment.update(status="refunded", refunds=[*payment["refunds"], payment["amount"]])
        case _, status:
            code = "amount_too_large" if status == "authorized" else "impossible"
            raise HttpProblemError(422, f"{action} is not possible: {payment['amount']} are {status}", code=code)


def _group(reference: str) -> str:
    """Return the part that the ids of a reference's payments share: 32 digits."""
    return hashlib.blake2b(reference.encode(), digest_size=16).hexdigest()


def _named(name: str, payments: list[Payment]) -> Payment:
    for payment in payments:
        if payment["id"] == name:
            return payment
    raise HttpProblemError(404, "there is no such payment")


def _body[S: Struct](request: Request, shape: type[S]) -> S:
    try:
        return msgspec.json.decode(request.body(), type=shape)
    except msgspec.DecodeError as error:
        raise HttpProblemError(422, "the body is not complete", str(error), code="invalid") from error


handler = make_handler(from_environment(Settings))
