"""A payment gateway that takes no money, for stacks of stage `dev`. `gateway_rules` decides, this module stores.

Requests with the same key take effect once, because the idempotency layer commits the payment
together with the answer. The payments of one reference are one item, whose key their ids contain:
so both lookups are consistent reads.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import gateway_rules
from carride.dynamodb import DynamoDB
from carride.settings import from_environment
from carride_idempotency import Consumer, DynamoDBStore, Operation, Put, marshalling
from carride_idempotency.http import HttpHandler, HttpProblemError
from carride_idempotency.http_formats import Request
from carride_idempotency.stores.transport import Transport, dynamodb_transport
from gateway_rules import Payment, RefusedError


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    simulated_gateway_table: str
    aws_region: str


def make_handler(settings: Settings, transport: Transport) -> HttpHandler:
    """Return the Lambda handler; ``transport`` reaches its table."""
    dynamodb, table = DynamoDB(transport), settings.simulated_gateway_table
    store = DynamoDBStore(table, transport=transport)
    consumer = Consumer(
        "simulated-gateway", store, policy=gateway_rules.POLICY, region=settings.aws_region
    )

    def read(group: str) -> tuple[list[Payment], int]:
        """Return the payments of one reference, and their version."""
        key = {"idempotencyKey": {"S": f"payments#{group}"}}
        item: Any = marshalling.values(
            dynamodb.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item", {})
        )
        return msgspec.convert(item.get("payments", []), list[Payment]), item.get("version", 0)

    def answer(request: Request, operation: Operation | None) -> object:
        match operation, request.path.split("/")[1:], request.query:
            case None, ["payments"], [("reference", reference)]:
                return {"payments": msgspec.to_builtins(read(_group(reference))[0])}
            case None, ["payments", name], _:
                return msgspec.to_builtins(_named(name, read(name[4:36])[0]))
            case Operation(), ["payments"], _:
                wanted = gateway_rules.payment("", _body(request))
                group, status = _group(wanted.reference), 201
                payments, version = read(group)
                changed = replace(wanted, id=f"pay_{group}_{len(payments)}", status="authorized")
                payments.append(changed)
            case Operation(), ["payments", name, ("adjust" | "capture" | "refund") as action], _:
                group, status = name[4:36], 200
                payments, version = read(group)
                changed = _named(name, payments)
                gateway_rules.change(changed, action, _body(request))
            case _:
                raise RefusedError(404, "this is no operation")
        condition = "version = :version" if version else "attribute_not_exists(idempotencyKey)"
        item = {
            "idempotencyKey": f"payments#{group}",
            "version": version + 1,
            "payments": msgspec.to_builtins(payments),
        }
        operation.write(Put(table, item, condition, {":version": version} if version else None))
        return {"statusCode": status, "body": msgspec.to_builtins(changed)}

    @consumer.http_handler
    def handler(event: dict[str, Any], operation: Operation | None) -> object:
        try:
            return answer(Request.of(event), operation)
        except RefusedError as refused:
            raise HttpProblemError(refused.status, str(refused), code=refused.code) from refused

    return handler


def _group(reference: str) -> str:
    """Return the part that the ids of a reference's payments share: 32 digits."""
    return hashlib.blake2b(reference.encode(), digest_size=16).hexdigest()


def _named(name: str, payments: list[Payment]) -> Payment:
    for payment in payments:
        if payment.id == name:
            return payment
    raise RefusedError(404, "there is no such payment")


def _body(request: Request) -> object:
    try:
        return msgspec.json.decode(request.body())
    except msgspec.DecodeError:
        return None  # which is no body of any operation


handler = make_handler(from_environment(Settings), dynamodb_transport())
