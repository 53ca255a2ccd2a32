"""Payments in DynamoDB: reads them, and returns the writes by which a decision takes effect."""

from datetime import datetime
from typing import Any, NamedTuple

from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.events import RideEvent
from carride.history import EVENT_PREFIX
from carride.saga_step import Outbox, Stored, step, still_open
from carride_idempotency import Put, Update, marshalling
from carride_idempotency.stores.transport import ServiceError
from gateway import Intent
from payments import Decision, Payment, State, may_owe


class PaymentChangedError(Exception):
    """Raised when another run has changed the payment: read it again, and decide again."""


class Seen(NamedTuple):
    """A payment as it was read."""

    payment: Payment
    stored: Stored
    heard: frozenset[str] = frozenset()
    """The idempotency ids of the events that have taken effect."""

    def unchanged(self) -> tuple[str, dict[str, object]]:
        """Return the condition that the payment has not changed, and its values.

        In the condition, ``#state`` is the attribute that has the state.
        """
        condition, values = self.stored.unchanged()
        payment_id = self.payment.payment_id
        if payment_id is None:
            return f"{condition} AND attribute_not_exists(paymentID)", values
        return f"{condition} AND paymentID = :wasPayment", values | {":wasPayment": payment_id}


def read_payment(client: DynamoDB, table: str, order_id: str) -> Seen:
    """Read what payment knows of a ride, consistently."""
    key = {"orderID": {"S": order_id}}
    answer = client.get_item(TableName=table, Key=key, ConsistentRead=True)
    if "Item" not in answer:
        return Seen(Payment(State.UNKNOWN), Stored())
    return _seen(marshalling.values(answer["Item"]))


def _seen(item: dict[str, Any]) -> Seen:
    """Return what an item says of its payment."""
    state = item["state"]
    payment = Payment(
        State(state),
        payment_id=item.get("paymentID"),
        amount=item.get("amount"),
        currency=item.get("currency"),
        due=item.get("due"),
    )
    heard = {name.removeprefix(EVENT_PREFIX) for name in item if name.startswith(EVENT_PREFIX)}
    return Seen(
        payment,
        Stored(state, item["effects"]),
        heard=frozenset(heard),
    )


def record_payment(
    client: DynamoDB, table: str, event: RideEvent, seen: Seen, intent: Intent, *, now: datetime
) -> Seen:
    """Record the payment that was prepared for a ride; return the payment as it is then.

    This is a write of its own, before the gateway is asked to reserve anything: whatever happens
    to this run, later ones know the id. A payment whose id was not recorded is never confirmed.

    Raises:
        PaymentChangedError: The payment has changed since it was ``seen``, or another attempt has
            already completed the event.
    """
    known = seen.payment._replace(
        payment_id=intent.payment_id, amount=intent.amount, currency=intent.currency
    )
    return _record(client, table, event, seen, known, now=now)


def record_duty(
    client: DynamoDB, table: str, event: RideEvent, seen: Seen, *, now: datetime
) -> Seen:
    """Record that the ride's money has to be given back; return the payment as it is then.

    This is a write of its own, before the gateway is asked: a run that is killed leaves the duty
    behind. Nothing is recorded for an event that has taken effect before, and comes again because
    its record was forgotten.

    Raises:
        PaymentChangedError: As `record_payment`.
    """
    if seen.stored.state == State.UNDO_DUE or event.idempotencyid in seen.heard:
        return seen
    due = seen.payment._replace(state=State.UNDO_DUE)
    return _record(client, table, event, seen, due, now=now)


def _record(
    client: DynamoDB, table: str, event: RideEvent, seen: Seen, known: Payment, *, now: datetime
) -> Seen:
    condition, unchanged = seen.unchanged()
    since, opening = still_open(event.subject, now)
    attributes = _attributes(known)
    values: dict[str, object] = {":state": known.state.value, ":zero": 0}
    values |= {f":{name}": value for name, value in attributes.items()}
    sets = "".join(f"{name} = :{name}, " for name in attributes)
    try:
        client.update_item(
            TableName=table,
            Key={"orderID": {"S": event.subject}},
            UpdateExpression=(
                f"SET #state = :state, effects = if_not_exists(effects, :zero), {sets}{since}"
            ),
            ConditionExpression=f"{condition} AND attribute_not_exists(#entry)",
            ExpressionAttributeNames={
                "#state": "state",
                "#entry": EVENT_PREFIX + event.idempotencyid,
            },
            ExpressionAttributeValues=marshalling.item(unchanged | opening | values),
        )
    except ServiceError as error:
        if error.code != CONDITION_FAILED:
            raise
        raise PaymentChangedError(
            f"the payment of {event.subject} was changed meanwhile"
        ) from error
    stored = Stored(known.state, seen.stored.effects)
    return seen._replace(payment=known, stored=stored)


def _attributes(payment: Payment) -> dict[str, object]:
    """Return what the table keeps of a payment, besides its state."""
    attributes: dict[str, object] = {
        "paymentID": payment.payment_id,
        "amount": payment.amount,
        "currency": payment.currency,
        "due": payment.due,
        "raiseRefused": payment.raise_refused or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def effects(
    table: str,
    event: RideEvent,
    seen: Seen,
    decision: Decision,
    *,
    outbox: Outbox,
    now: datetime,
) -> list[Put | Update]:
    """Return the writes of a decision: the payment, and the emitted events.

    They are refused if the payment has changed since it was ``seen``.
    """
    after = decision.after
    payment, *emitted = step(
        table,
        event,
        seen.stored,
        state=after.state,
        attributes=_attributes(after),
        facts=decision.facts,
        is_open=may_owe(after),
        outbox=outbox,
        now=now,
    )
    condition, unchanged = seen.unchanged()
    values = {**(payment.values or {}), **unchanged}
    return [payment._replace(condition=condition, values=values), *emitted]
