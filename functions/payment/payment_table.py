"""Payments in DynamoDB: reads them, and returns the writes by which a decision takes effect."""

from datetime import datetime
from typing import Any, NamedTuple

from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.events import RideEvent
from carride.history import EVENT_PREFIX
from carride.items import Outbox, Stored, step, still_open
from carride_idempotency import Put, Update, marshalling
from carride_idempotency.stores.transport import ServiceError
from payments import OPEN, Decision, Payment, State


class Seen(NamedTuple):
    """A payment as it was read."""

    payment: Payment
    stored: Stored


def read(client: DynamoDB, table: str, order_id: str) -> Seen:
    """Read what payment knows of a ride, consistently."""
    answer = client.get_item(TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True)
    if "Item" not in answer:
        return Seen(Payment(State.UNKNOWN), Stored())
    item: dict[str, Any] = marshalling.values(answer["Item"])
    payment = Payment(State(item["state"]), item.get("paymentID"), item.get("amount"))
    return Seen(payment, Stored(item["state"], item["effects"]))


def owe_undo(client: DynamoDB, table: str, event: RideEvent, seen: Seen, now: datetime) -> Seen:
    """Record that the gateway may hold money to give back; return the payment as it is then.

    This is a write of its own, before the gateway is asked: a run that fails leaves the duty behind.
    Nothing is written if the payment has changed since it was ``seen``. Then the run's own effects
    are refused, and the event is decided again. Nothing is written either if another attempt has
    already completed the event, because no later event would fulfil the duty.
    """
    condition, unchanged = seen.stored.unchanged()
    since, values = still_open(event.subject, now)
    try:
        client.update_item(
            TableName=table,
            Key={"orderID": {"S": event.subject}},
            UpdateExpression=f"SET #state = :due, effects = if_not_exists(effects, :zero), {since}",
            ConditionExpression=f"{condition} AND attribute_not_exists(#entry)",
            ExpressionAttributeNames={
                "#state": "state",
                "#entry": EVENT_PREFIX + event.idempotencyid,
            },
            ExpressionAttributeValues=marshalling.item(
                unchanged | values | {":due": State.UNDO_DUE.value, ":zero": 0}
            ),
        )
    except ServiceError as error:
        if error.code != CONDITION_FAILED:
            raise
        return seen
    return seen._replace(stored=Stored(State.UNDO_DUE, seen.stored.effects))


def effects(
    table: str, event: RideEvent, seen: Seen, decision: Decision, *, outbox: Outbox, now: datetime
) -> list[Put | Update]:
    """Return the writes of a decision: the payment, and the emitted events.

    They are refused if the payment has changed since it was ``seen``.
    """
    state, payment_id, amount = decision.after
    attributes = {"paymentID": payment_id, "amount": amount}
    return step(
        table,
        event,
        seen.stored,
        state=state,
        attributes={name: value for name, value in attributes.items() if value is not None},
        facts=decision.facts,
        is_open=state in OPEN,
        outbox=outbox,
        now=now,
    )
