"""Payments in DynamoDB: how they are read, and the writes by which a decision takes effect.

A ride's item keeps one entry for each event that was acted on, and counts them: more effects than entries means that
something took effect twice. The count is the item's revision too: what was decided on an older one is refused, and
decided again.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from carride.applied import attribute_of
from carride.events import SOURCE, RideEvent
from carride.outbox import KEPT, outbox_item
from idempotency import Put, Update, wire
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


def read(client: Any, table: str, order_id: str) -> Seen:
    """Return what payment knows of a ride, consistently."""
    answer = client.get_item(TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True)
    if "Item" not in answer:
        return Seen(Payment(State.UNKNOWN), 0)
    item: dict[str, Any] = wire.values(answer["Item"])
    return Seen(Payment(State(item["state"]), item.get("paymentID"), item.get("amount")), item["effects"])


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
    condition = "attribute_not_exists(orderID)"
    if seen.revision:
        condition = "effects = :seen"
        values[":seen"] = seen.revision
    return Update(
        tables.payments,
        {"orderID": event.subject},
        f"{expression} ADD effects :one",
        condition=condition,
        names=names,
        values=values,
        mark=attribute_of(event),
    )
