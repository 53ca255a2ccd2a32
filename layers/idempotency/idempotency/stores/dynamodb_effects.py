"""Effects in DynamoDB for an operation whose record lives elsewhere."""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from idempotency.clock import Clock, epoch_ms
from idempotency.effects import Effect, mark_of
from idempotency.errors import EffectsRejectedError
from idempotency.stores.dynamodb import MAX_ACTIONS, Requests, refusal
from idempotency.stores.transport import ServiceError, Transport


class DynamoDBEffects(Requests):
    """Commits effects in a transaction of their own, for stores that have none.

    An effect that has a ``mark`` is refused by an item that bears it: then this operation's effects have taken place,
    in an attempt that did not live to say so, and nothing is left to be written.

    Args:
        transport: how requests reach DynamoDB; by default a botocore client with explicit timeouts.
        clock: epoch milliseconds, against which ``until_ms`` is held.
        sleep: waits between tries, in seconds.
        jitter: a number from 0 to 1 for each pause.
    """

    def __init__(
        self,
        *,
        transport: Transport | None = None,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__("the tables of the effects", transport, clock, sleep, jitter)
        self.longest_try_s = self._transport.longest_try_s

    def write(self, effects: Sequence[Effect], *, until_ms: int | None = None) -> None:
        """Have all effects take place, unless the mark of one shows that they have; or none of them."""
        if len(effects) > MAX_ACTIONS:
            raise EffectsRejectedError(
                f"{len(effects)} effects are more than the {MAX_ACTIONS} actions of a transaction"
            )
        request = {
            "TransactItems": [_unless_marked(effect) for effect in effects],
            "ClientRequestToken": str(uuid.uuid4()),  # kept over the retries of this frozen request
        }
        try:
            self._call("TransactWriteItems", request, until_ms)
        except ServiceError as error:
            if error.code == "ValidationException":
                raise EffectsRejectedError(f"DynamoDB rejects the effects: {error}") from error
            if error.code != "TransactionCanceledException":
                raise self._refused("TransactWriteItems", error) from error
            reasons = error.body["CancellationReasons"]
            if not any(map(_bears_mark, effects, reasons)):
                raise refusal(reasons, error) from error


def _unless_marked(effect: Effect) -> dict[str, Any]:
    """Return the effect's action, on the condition that its item does not bear its mark."""
    mark = mark_of(effect)
    action: dict[str, Any] = effect.action()
    if mark is None:
        return action
    (request,) = action.values()
    names = request.setdefault("ExpressionAttributeNames", {})
    placeholder = next((name for name, attribute in names.items() if attribute == mark), "#mark")
    names[placeholder] = mark
    unmarked = f"attribute_not_exists({placeholder})"
    condition = request.get("ConditionExpression")
    request["ConditionExpression"] = unmarked if condition is None else f"({condition}) AND {unmarked}"
    request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    return action


def _bears_mark(effect: Effect, reason: Mapping[str, Any]) -> bool:
    return mark_of(effect) in reason.get("Item", ())
