"""Payments in DynamoDB: reads them, and returns the writes by which a decision takes effect."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.events import RideEvent
from carride.history import EVENT_PREFIX
from carride.saga_step import Outbox, Stored, step, still_open
from carride_idempotency import Put, Update, marshalling
from carride_idempotency.stores.transport import ServiceError
from gateway import Step
from payments import (
    Action,
    Asked,
    Decision,
    Payment,
    State,
    asked_for,
    may_owe,
    still_asked,
    with_refusal,
)


class PaymentChangedError(Exception):
    """Raised when another run has changed the payment: read it again, and decide again."""


class Seen(NamedTuple):
    """A payment as it was read."""

    payment: Payment
    stored: Stored
    asked: Mapping[Step, Asked] = {}
    heard: frozenset[str] = frozenset()
    """The idempotency ids of the events that have taken effect."""

    def unchanged(self) -> tuple[str, dict[str, object]]:
        """Return the condition that the payment has not changed, and its values.

        In the condition, ``#state`` is the attribute that has the state.
        """
        condition, values = self.stored.unchanged()
        asked = "asked = :wasAsked"
        if not self.asked:
            asked = f"(attribute_not_exists(asked) OR {asked})"
        return f"{condition} AND {asked}", values | {":wasAsked": _plain(self.asked)}


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
    )
    heard = {name.removeprefix(EVENT_PREFIX) for name in item if name.startswith(EVENT_PREFIX)}
    return Seen(
        payment,
        Stored(state, item["effects"]),
        asked=msgspec.convert(item.get("asked", {}), dict[Step, Asked]),
        heard=frozenset(heard),
    )


def record_request(
    client: DynamoDB, table: str, event: RideEvent, seen: Seen, *, action: Action, now: datetime
) -> Seen:
    """Record what the gateway is about to be asked for; return the payment as it is then.

    This is a write of its own, before the gateway is asked: a run that is killed leaves behind that
    the gateway may hold money, and from a refund on the duty to give it back.

    Nothing is recorded for an event that has taken effect before, and comes again because its
    record was forgotten. What was to be asked for it has been asked, and answered.

    Raises:
        PaymentChangedError: The payment has changed since it was ``seen``, or another attempt has
            already completed the event.
    """
    asked = asked_for(seen.asked, action, now)
    state = seen.payment.state
    if action in {Action.REFUND, Action.UNDO}:
        state = State.UNDO_DUE
    if asked == seen.asked and state == seen.stored.state:
        return seen
    if event.idempotencyid in seen.heard:
        return seen
    condition, unchanged = seen.unchanged()
    since, opening = still_open(event.subject, now)
    values = {":state": state.value, ":zero": 0, ":asked": _plain(asked)}
    try:
        client.update_item(
            TableName=table,
            Key={"orderID": {"S": event.subject}},
            UpdateExpression=(
                "SET #state = :state, effects = if_not_exists(effects, :zero), "
                f"asked = :asked, {since}"
            ),
            ConditionExpression=f"{condition} AND attribute_not_exists(#entry)",
            ExpressionAttributeNames={
                "#state": "state",
                "#entry": EVENT_PREFIX + event.idempotencyid,
            },
            ExpressionAttributeValues=marshalling.item(unchanged | opening | values),
        )
    except ServiceError as error:
        raise _as_changed(error, event) from error
    return seen._replace(stored=Stored(state, seen.stored.effects), asked=asked)


def record_refusal(client: DynamoDB, table: str, event: RideEvent, seen: Seen, reason: str) -> Seen:
    """Record that a capture was refused for good; return the payment as it is then.

    This is a write of its own, before what is reserved is released: an attempt that comes later
    finds nothing reserved, and has to know why.

    Raises:
        PaymentChangedError: The payment has changed since it was ``seen``.
    """
    if Step.CAPTURE not in seen.asked:
        return seen
    asked = with_refusal(seen.asked, reason)
    condition, unchanged = seen.unchanged()
    try:
        client.update_item(
            TableName=table,
            Key={"orderID": {"S": event.subject}},
            UpdateExpression="SET asked = :asked",
            ConditionExpression=condition,
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues=marshalling.item({**unchanged, ":asked": _plain(asked)}),
        )
    except ServiceError as error:
        raise _as_changed(error, event) from error
    return seen._replace(asked=asked)


def _as_changed(error: ServiceError, event: RideEvent) -> Exception:
    """Return what a refused condition means; any other error as it is."""
    if error.code != CONDITION_FAILED:
        return error
    return PaymentChangedError(f"the payment of {event.subject} was changed meanwhile")


def effects(
    table: str,
    event: RideEvent,
    seen: Seen,
    action: Action,
    decision: Decision,
    *,
    outbox: Outbox,
    now: datetime,
) -> list[Put | Update]:
    """Return the writes of a decision: the payment, and the emitted events.

    They are refused if the payment has changed since it was ``seen``. ``action`` is what the
    gateway was asked for.
    """
    after = decision.after
    asked = still_asked(seen.asked, action, now) if decision.is_answered else seen.asked
    attributes: dict[str, object] = {
        "asked": _plain(asked),
        "paymentID": after.payment_id,
        "amount": after.amount,
        "currency": after.currency,
        "raiseRefused": after.raise_refused or None,
    }
    payment, *emitted = step(
        table,
        event,
        seen.stored,
        state=after.state,
        attributes={name: value for name, value in attributes.items() if value is not None},
        facts=decision.facts,
        is_open=may_owe(after, asked),
        outbox=outbox,
        now=now,
    )
    condition, unchanged = seen.unchanged()
    values = {**(payment.values or {}), **unchanged}
    return [payment._replace(condition=condition, values=values), *emitted]


def _plain(asked: Mapping[Step, Asked]) -> object:
    """Return what the table keeps of the requests."""
    return msgspec.to_builtins(asked)
