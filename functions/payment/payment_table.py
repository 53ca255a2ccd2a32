"""Payments in DynamoDB: how they are read, and the writes by which a decision takes effect.

A ride's item keeps one entry for each event that was acted on, and counts them: more effects than entries means that
something took effect twice. The count is the item's revision too: what was decided on an older one is refused, and
decided again.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from carride.dedup import attribute_of
from carride.events import SOURCE, RideEvent
from carride.outbox import KEPT, outbox_item
from idempotency import Put, Update, marshalling
from payments import Decision, Payment, State


class Tables(NamedTuple):
    """The names of the tables."""

    payments: str
    outbox: str


class Seen(NamedTuple):
    """A payment as it was read."""

    payment: Payment
    revision: int
    """How many events were acted on until then."""
    stored: State | None = None
    """The state in the table; None where it has no item."""


def read(client: Any, table: str, order_id: str) -> Seen:
    """Return what payment knows of a ride, consistently."""
    answer = client.get_item(TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True)
    if "Item" not in answer:
        return Seen(Payment(State.UNKNOWN), 0)
    item: dict[str, Any] = marshalling.values(answer["Item"])
    state = State(item["state"])
    return Seen(Payment(state, item.get("paymentID"), item.get("amount")), item["effects"], state)


def owe_undo(client: Any, table: str, order_id: str, seen: Seen) -> Seen:
    """Write down that the gateway may hold money which has to be given back; return the payment as it is in the table.

    It is written by itself, before the gateway is asked, so that the duty outlives a run that fails. Where the payment
    has changed since it was seen nothing is written: the run's own effects will be refused, and decided again.
    """
    condition, values = _unchanged(seen)
    try:
        client.update_item(
            TableName=table,
            Key={"orderID": {"S": order_id}},
            UpdateExpression="SET #state = :due, effects = if_not_exists(effects, :zero)",
            ConditionExpression=condition,
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues=marshalling.item(values | {":due": State.UNDO_DUE.value, ":zero": 0}),
        )
    except client.exceptions.ConditionalCheckFailedException:
        return seen
    return seen._replace(stored=State.UNDO_DUE)


def effects(
    tables: Tables,
    event: RideEvent,
    seen: Seen,
    decision: Decision,
    *,
    region: str,
    now: datetime,
    kept: timedelta = KEPT,
) -> list[Put | Update]:
    """Return the writes by which a decision takes effect: the payment's, and what is to be told.

    Args:
        tables: their names.
        event: what was decided upon.
        seen: the payment as it was then; if it has changed since, the writes are refused.
        decision: what was decided.
        region: where this is; a pipe tells the events of its own region.
        now: with a time zone.
        kept: for how long what is told stays in the outbox.
    """
    told = [RideEvent.of(fact, source=SOURCE, time=now, cause=event) for fact in decision.facts]
    return [
        _remember(tables, event, seen, decision, now),
        *(Put(tables.outbox, outbox_item(told_event, region=region, now=now, kept=kept)) for told_event in told),
    ]


def _remember(tables: Tables, event: RideEvent, seen: Seen, decision: Decision, now: datetime) -> Update:
    state, payment_id, amount = decision.after
    entry = {
        "type": event.type,
        "sequence": int(event.sequence),
        "time": now.isoformat(),
        "told": [type(fact).__name__ for fact in decision.facts],
    }
    values: dict[str, object] = {":state": state, ":entry": entry, ":one": 1}
    names = {"#state": "state", "#entry": attribute_of(event)}
    expression = "SET #state = :state, #entry = :entry"
    if payment_id is not None:
        expression += ", paymentID = :payment"
        values[":payment"] = payment_id
    if amount is not None:
        expression += ", amount = :amount"
        values[":amount"] = amount
    condition, unchanged = _unchanged(seen)
    values |= unchanged
    return Update(
        tables.payments,
        {"orderID": event.subject},
        f"{expression} ADD effects :one",
        condition=condition,
        names=names,
        values=values,
    )


def _unchanged(seen: Seen) -> tuple[str, dict[str, object]]:
    """Return the condition that a payment is as it was seen, and the condition's values."""
    if seen.stored is None:
        return "attribute_not_exists(orderID)", {}
    return "#state = :was AND effects = :seen", {":was": seen.stored.value, ":seen": seen.revision}
