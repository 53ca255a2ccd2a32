"""Serves the simulated gateway of stage `dev`, which takes no money; `gateway_rules` decides.

A PaymentIntent is one item, whose key is the customer and its id; the id contains the customer's
part of the key. So a customer's list and each lookup are consistent reads. No idempotency key is
kept: Stripe forgets keys too, and the state of a PaymentIntent has to suffice.
"""

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

import gateway_rules as rules
from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.settings import from_environment
from carride_idempotency import dynamodb_transport, marshalling
from carride_idempotency.stores.transport import ServiceError, Transport
from gateway_rules import Answer, Intent, RefusedError, Request

_ACCOUNT = rules.Account()
_LOCKED = 429
"""Another request works on the same PaymentIntent."""


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    simulated_gateway_table: str
    aws_region: str


class Table:
    """The PaymentIntents in DynamoDB."""

    def __init__(self, client: DynamoDB, name: str) -> None:
        self._client = client
        self._name = name

    def of_customer(self, customer: str) -> list[Intent]:
        """Return a customer's PaymentIntents, the newest first."""
        pages = self._client.query(
            TableName=self._name,
            KeyConditionExpression="customer = :customer",
            ExpressionAttributeValues={":customer": {"S": _part(customer)}},
            ConsistentRead=True,
        )
        found = [_intent(marshalling.values(item)) for page in pages for item in page["Items"]]
        return sorted(found, key=lambda each: each.created_s, reverse=True)

    def read(self, name: str) -> tuple[Intent, int]:
        """Return a PaymentIntent and its version; raise RefusedError if there is none."""
        answer = self._client.get_item(TableName=self._name, Key=_key(name), ConsistentRead=True)
        if "Item" not in answer:
            raise rules.missing(name)
        item: Any = marshalling.values(answer["Item"])
        return _intent(item), item["version"]

    def write(self, intent: Intent, seen: int) -> None:
        """Write a PaymentIntent, unless it was changed since it had the version ``seen``."""
        condition = "attribute_not_exists(id)" if seen == 0 else "version = :seen"
        values = {":intent": msgspec.to_builtins(intent), ":next": seen + 1}
        if seen:
            values[":seen"] = seen
        try:
            self._client.update_item(
                TableName=self._name,
                Key=_key(intent.id),
                UpdateExpression="SET intent = :intent, version = :next",
                ConditionExpression=condition,
                ExpressionAttributeValues=marshalling.item(values),
            )
        except ServiceError as error:
            if error.code == CONDITION_FAILED:
                raise RefusedError(_LOCKED, "lock_timeout") from error
            raise


def make_handler(
    settings: Settings, transport: Transport, *, clock: Callable[[], float] = time.time
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return the Lambda handler; ``transport`` reaches its table, ``clock`` is in seconds."""
    table = Table(DynamoDB(transport), settings.simulated_gateway_table)

    def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
        method = event["requestContext"]["http"]["method"]
        target = f"{event['rawPath']}?{event.get('rawQueryString', '')}"
        content = event.get("body") or ""
        if event.get("isBase64Encoded"):
            content = base64.b64decode(content).decode()
        try:
            answer = answer_to(table, rules.read(method, target, content), clock())
        except RefusedError as refused:
            answer = refused.answer()
        headers = {"Content-Type": "application/json"}
        return {"statusCode": answer.status, "headers": headers, "body": json.dumps(answer.body)}

    return handler


def answer_to(table: Table, request: Request, now_s: float) -> Answer:
    """Carry out a request, and answer it."""
    match request.verb:
        case "customer":
            return rules.customer(request.subject, rules.customer_named(request.subject))
        case "list":
            name = request.form["customer"]
            intents = table.of_customer(name)
            return rules.listed(request, intents, rules.customer_named(name), _ACCOUNT)
        case "create":
            customer = request.form["customer"]
            who = rules.customer_named(customer)
            name = f"pi_{_part(customer)}_{uuid.uuid4().hex[:24]}"
            intent = rules.created(request, name, who, _ACCOUNT, now_s)
            table.write(intent, 0)
            return rules.answered(request, intent)
    intent, version = table.read(request.subject)
    rules.pass_time(intent, now_s)
    if request.verb == "look":
        return rules.answered(request, intent)
    try:
        who = rules.customer_named(intent.customer)
        rules.change(intent, request, who, _ACCOUNT, now_s)
    finally:  # a refused confirmation changes it too
        table.write(intent, version)
    return rules.answered(request, intent)


def _part(customer: str) -> str:
    """Return a customer's part of the key: 24 digits."""
    return hashlib.blake2b(customer.encode(), digest_size=12).hexdigest()


def _key(name: str) -> dict[str, Any]:
    """Return the key of the item of a PaymentIntent."""
    customer = name.removeprefix("pi_").partition("_")[0] or "nobody"
    return {"customer": {"S": customer}, "id": {"S": name}}


def _intent(item: dict[str, Any]) -> Intent:
    return msgspec.convert(item["intent"], Intent)


handler = make_handler(from_environment(Settings), dynamodb_transport())
