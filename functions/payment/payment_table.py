"""Payments in DynamoDB: how they are read, and the writes by which a decision takes effect."""

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
    """Return what payment knows of a ride, consistently."""
    answer = client.get_item(TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True)
    if "Item" not in answer:
        return Seen(Payment(State.UNKNOWN), Stored())
    item: dict[str, Any] = marshalling.values(answer["Item"])
    payment = Payment(State(item["state"]), item.get("paymentID"), item.get("amount"))
    return Seen(payment, Stored(item["state"], item["effects"]))


def owe_undo(client: DynamoDB, table: str, event: RideEvent, seen: Seen, now: datetime) -> Seen:
    """Write down that the gateway may hold money which has to be given back; return the payment as it is in the table.

    It is written by itself, before the gateway is asked, so that the duty outlives a run that
    fails. Where the payment has changed since it was seen nothing is written: the run's own effects
    will be refused, and decided again. Nor if the event has taken effect already, in the attempt
    that took this one over: nobody would fulfil the duty.
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
    """Return the writes by which a decision takes effect: the payment's, and the events that are emitted.

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
