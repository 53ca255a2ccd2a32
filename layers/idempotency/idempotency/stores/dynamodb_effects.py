"""Effects in DynamoDB for an operation whose record lives elsewhere."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from idempotency.clock import Clock, epoch_ms
from idempotency.effects import Effect, mark_of
from idempotency.errors import OutOfTimeError, StoreRefusedError
from idempotency.stores.dynamodb import Requests, conflict
from idempotency.stores.retries import Retries
from idempotency.stores.transport import LONGEST_TRY_S, Transport, botocore_transport


class DynamoDBEffects(Requests):
    """Commits effects in a transaction of their own, for stores that have none.

    An effect that has a ``mark`` is refused by an item that bears it: then this operation's effects have taken place,
    in an attempt that did not live to say so, and nothing is left to be written.

    Args:
        transport: how requests reach DynamoDB; by default a botocore client with explicit timeouts, made when the first
            effects are written.
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
        super().__init__("the tables of the effects", Retries(clock, sleep, jitter))
        self._clock = clock
        self.longest_try_s = LONGEST_TRY_S
        if transport is not None:
            self._transport, self.longest_try_s = transport, transport.longest_try_s

    def write(self, effects: Sequence[Effect], *, until_ms: int | None = None) -> None:
        """Have all effects take place, unless the mark of one shows that they have; or none of them.

        Raises:
            OutOfTimeError: making the client took so long that a first try might not end by ``until_ms``.
        """
        if not hasattr(self, "_transport"):
            self._transport = _default_transport()
            if until_ms is not None and self._clock() + self.longest_try_s * 1000 > until_ms:
                raise OutOfTimeError("the client for the effects was ready too late; nothing was written")
        reasons = self._commit([_unless_marked(effect) for effect in effects], 0, until_ms)
        if reasons and not any(map(_bears_mark, effects, reasons)):
            raise conflict(reasons)


def _default_transport() -> Transport:
    try:
        return botocore_transport()
    except Exception as error:
        raise StoreRefusedError(f"effects need a client of DynamoDB, which could not be made: {error}") from error


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
