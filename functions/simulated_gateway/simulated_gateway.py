"""Stores the payments of a gateway that takes no money, for stage `dev`; `gateway_rules` decides.

Requests with the same key take effect once, because the idempotency layer commits the payment
together with the answer. The payments of one reference are one item, whose key their ids contain.
So both lookups are consistent reads.
"""

import hashlib
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import gateway_rules
from carride.dynamodb import DynamoDB
from carride.settings import from_environment
from carride_idempotency import (
    ANY_CALLER,
    Consumer,
    DynamoDBStore,
    HttpHandler,
    HttpProblemError,
    Operation,
    Put,
    dynamodb_transport,
    marshalling,
)
from carride_idempotency.http.formats import Request
from carride_idempotency.stores.transport import Transport
from gateway_rules import Payment, RefusedError


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    simulated_gateway_table: str
    aws_region: str


class Group(NamedTuple):
    """The payments of one reference, as they were read."""

    name: str  # the part that their ids share: 32 digits
    payments: list[Payment]
    version: int  # 0 if there are none

    def payment(self, payment_id: str) -> Payment:
        """Return one of the payments; raise RefusedError if there is no such payment."""
        for payment in self.payments:
            if payment.id == payment_id:
                return payment
        raise RefusedError(404, "there is no such payment")


class Ledger:
    """The payments in the table."""

    def __init__(self, client: DynamoDB, table: str) -> None:
        self._client = client
        self._table = table

    def group(self, name: str) -> Group:
        """Read the payments of one reference, consistently."""
        answer = self._client.get_item(
            TableName=self._table,
            Key={"idempotencyKey": {"S": f"payments#{name}"}},
            ConsistentRead=True,
        )
        item: Any = marshalling.values(answer.get("Item", {}))
        payments = msgspec.convert(item.get("payments", []), list[Payment])
        return Group(name, payments, item.get("version", 0))

    def group_of(self, payment_id: str) -> Group:
        """Read the payments among which a payment is."""
        return self.group(payment_id.removeprefix("pay_")[:32])

    def written(self, group: Group) -> Put:
        """Return the write of a changed group.

        It is refused if the group was changed since it was read.
        """
        item = {
            "idempotencyKey": f"payments#{group.name}",
            "version": group.version + 1,
            "payments": msgspec.to_builtins(group.payments),
        }
        if group.version == 0:
            return Put(self._table, item, "attribute_not_exists(idempotencyKey)")
        return Put(self._table, item, "version = :version", {":version": group.version})


def make_handler(settings: Settings, transport: Transport) -> HttpHandler:
    """Return the Lambda handler; ``transport`` reaches its table."""
    table = settings.simulated_gateway_table
    ledger = Ledger(DynamoDB(transport), table)
    consumer = Consumer(
        "simulated-gateway",
        DynamoDBStore(table, transport=transport),
        policy=gateway_rules.POLICY,
        region=settings.aws_region,
    )

    @consumer.http_handler(caller=ANY_CALLER)  # the gateway has one client
    def handler(event: dict[str, Any], operation: Operation | None) -> object:
        request = Request.of(event)
        try:
            if operation is None:
                return look_up(ledger, request)
            return change(ledger, request, operation)
        except RefusedError as refused:
            raise HttpProblemError(refused.status, str(refused), code=refused.code) from refused

    return handler


def look_up(ledger: Ledger, request: Request) -> object:
    """Answer a request that changes nothing."""
    match request.path.split("/")[1:], request.query:
        case ["payments"], [("reference", reference)]:
            found = ledger.group(_group_name(reference)).payments
            return {"payments": msgspec.to_builtins(found)}
        case ["payments", payment_id], _:
            return msgspec.to_builtins(ledger.group_of(payment_id).payment(payment_id))
    raise RefusedError(404, "this is not an operation")


def change(ledger: Ledger, request: Request, operation: Operation) -> object:
    """Carry out a request that makes or changes a payment, and answer it with the payment."""
    match request.path.split("/")[1:]:
        case ["payments"]:
            status = 201
            wanted = gateway_rules.payment("", _body(request))
            group = ledger.group(_group_name(wanted.reference))
            payment_id = f"pay_{group.name}_{len(group.payments)}"
            payment = replace(wanted, id=payment_id, status="authorized")
            group.payments.append(payment)
        case ["payments", payment_id, ("adjust" | "capture" | "refund") as action]:
            status = 200
            group = ledger.group_of(payment_id)
            payment = group.payment(payment_id)
            gateway_rules.change(payment, action, _body(request))
        case _:
            raise RefusedError(404, "this is not an operation")
    operation.write(ledger.written(group))
    return {"statusCode": status, "body": msgspec.to_builtins(payment)}


def _group_name(reference: str) -> str:
    """Return what the ids of a reference's payments share."""
    return hashlib.blake2b(reference.encode(), digest_size=16).hexdigest()


def _body(request: Request) -> object:
    """Return the JSON of a request; None, which is the body of no operation, if it is not JSON."""
    try:
        return msgspec.json.decode(request.body())
    except msgspec.DecodeError:
        return None


handler = make_handler(from_environment(Settings), dynamodb_transport())
