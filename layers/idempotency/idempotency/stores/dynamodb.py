"""Records in a DynamoDB table: the default store.

The table has the string partition key ``idempotencyKey`` and TTL on ``expiryTimestamp``. Every write is one conditional
request that brings back the item in its way (``ReturnValuesOnConditionCheckFailure``), so that no step costs a read.
"""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from idempotency.clock import Clock, epoch_ms
from idempotency.errors import EffectConflictError, EffectsRejectedError, StoreUnavailableError
from idempotency.record import IN_PROGRESS, Record
from idempotency.stores import EffectWriter
from idempotency.stores.transport import NoAnswerError, ServiceError, Transport, botocore_transport

if TYPE_CHECKING:
    from idempotency.effects import Effect

MAX_ACTIONS: Final = 100
"""What one TransactWriteItems may hold, the record among them."""

_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.025
_LONGEST_PAUSE_S: Final = 1.0

_RETRYABLE: Final = frozenset(
    {
        "InternalServerError",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_RETRYABLE_REASONS: Final = frozenset({"ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"})

_INSERT: Final[dict[str, Any]] = {"ConditionExpression": "attribute_not_exists(idempotencyKey)"}
_STATUS_AND_OWNER: Final = {"#s": "status", "#o": "owner"}


class Requests:
    """Sends requests to DynamoDB, and sends again what a retry may still bring about."""

    def __init__(
        self,
        where: str,
        transport: Transport | None,
        clock: Clock,
        sleep: Callable[[float], None],
        jitter: Callable[[], float],
    ) -> None:
        self._where = where
        self._transport = transport or botocore_transport()
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def _call(self, operation: str, request: Mapping[str, Any], until_ms: int | None) -> Mapping[str, Any]:
        """Send until there is an answer that a retry would not change.

        botocore's own retries are off: only here is it known how much time is left, and that a transaction which met a
        conflict may be sent again under its token.
        """
        pause_s = _FIRST_PAUSE_S
        for tries_left in range(_TRIES - 1, -1, -1):
            problem: NoAnswerError | ServiceError
            try:
                return self._transport(operation, request)
            except NoAnswerError as error:
                problem = error
            except ServiceError as error:
                if not _is_retryable(error):
                    raise
                problem = error
            wait_s = pause_s * self._jitter()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            next_end_ms = self._clock() + int(1000 * (wait_s + self._transport.longest_try_s))
            if not tries_left or (until_ms is not None and next_end_ms > until_ms):
                break
            self._sleep(wait_s)
        raise StoreUnavailableError(
            f"{operation} on {self._where} was not answered in time ({problem}); the next delivery decides"
        ) from problem

    def _refused(self, operation: str, error: ServiceError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"DynamoDB refused {operation} on {self._where}: {error}. Check the table's name and the function's role."
        )


class DynamoDBStore(Requests):
    """Idempotency records in one DynamoDB table.

    Args:
        table: the table's name or ARN.
        transport: how requests reach DynamoDB; by default a botocore client with explicit timeouts.
        clock: epoch milliseconds, against which ``until_ms`` is held.
        sleep: waits between tries, in seconds.
        jitter: a number from 0 to 1 for each pause.
    """

    transactional = True
    effect_writer: EffectWriter | None = None

    def __init__(
        self,
        table: str,
        *,
        transport: Transport | None = None,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(table, transport, clock, sleep, jitter)
        self._table = table

    def insert(self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None) -> Record:
        """Write ``record`` if its key is absent."""
        found = self._write(record, _INSERT, effects, until_ms)
        if found is None:  # deleted between the refusal and the answer: DynamoDB then returns no item
            raise StoreUnavailableError(f"{record.key} was refused by a record that is gone; the next delivery decides")
        return found

    def swap(
        self, seen: Record, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if the one under its key is still as ``seen``."""
        values = {":s": {"S": seen.status}, ":a": {"N": str(seen.attempt)}}
        condition = "#s = :s AND attempt = :a"
        for name, value, kind in (("#o", seen.owner, "S"), ("leaseExpiry", seen.lease_ms, "N")):
            if value is None:
                condition += f" AND attribute_not_exists({name})"
            else:
                placeholder = f":{name.strip('#')}"
                condition += f" AND {name} = {placeholder}"
                values[placeholder] = {kind: str(value)}
        expression = {
            "ConditionExpression": condition,
            "ExpressionAttributeNames": _STATUS_AND_OWNER,
            "ExpressionAttributeValues": values,
        }
        return self._write(record, expression, effects, until_ms)

    def advance(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if its owner still holds the key, and not for longer."""
        condition = "#s = :s AND #o = :o"
        values = {":s": {"S": IN_PROGRESS}, ":o": {"S": record.owner}}
        if record.lease_ms is not None:
            condition += " AND leaseExpiry <= :l"
            values[":l"] = {"N": str(record.lease_ms)}
        expression = {
            "ConditionExpression": condition,
            "ExpressionAttributeNames": _STATUS_AND_OWNER,
            "ExpressionAttributeValues": values,
        }
        return self._write(record, expression, effects, until_ms)

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``, consistently."""
        request = {"TableName": self._table, "Key": {"idempotencyKey": {"S": key}}, "ConsistentRead": True}
        try:
            answer = self._call("GetItem", request, until_ms)
        except ServiceError as error:
            raise self._refused("GetItem", error) from error
        item = answer.get("Item")
        return record_of(item) if item else None

    def _write(
        self, record: Record, expression: Mapping[str, Any], effects: Sequence["Effect"], until_ms: int | None
    ) -> Record | None:
        put = {
            "TableName": self._table,
            "Item": item_of(record),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **expression,
        }
        if effects:
            return self._transact(record, put, effects, until_ms)
        try:
            self._call("PutItem", put, until_ms)
        except ServiceError as error:
            if error.code != "ConditionalCheckFailedException":
                raise self._refused("PutItem", error) from error
            item = error.body.get("Item")
            return record_of(item) if item else None
        return record

    def _transact(
        self, record: Record, put: Mapping[str, Any], effects: Sequence["Effect"], until_ms: int | None
    ) -> Record | None:
        if len(effects) >= MAX_ACTIONS:
            raise EffectsRejectedError(
                f"{len(effects)} effects and the record are more than the {MAX_ACTIONS} actions of one transaction"
            )
        request = {
            "TransactItems": [{"Put": put}, *(effect.action() for effect in effects)],
            # Made once for this frozen request, and kept over its retries: derived from the key, it would make a later
            # attempt's other request fail, or pass for this one.
            "ClientRequestToken": str(uuid.uuid4()),
        }
        try:
            self._call("TransactWriteItems", request, until_ms)
        except ServiceError as error:
            if error.code != "TransactionCanceledException":
                if error.code == "ValidationException":
                    raise EffectsRejectedError(f"DynamoDB rejects the effects: {error}") from error
                raise self._refused("TransactWriteItems", error) from error
            return self._cancelled(error)
        return record

    @staticmethod
    def _cancelled(error: ServiceError) -> Record | None:
        reasons = error.body["CancellationReasons"]
        if reasons[0]["Code"] == "ConditionalCheckFailed":
            item = reasons[0].get("Item")
            return record_of(item) if item else None
        raise refusal(reasons[1:], error) from error


def refusal(reasons: Sequence[Mapping[str, Any]], error: ServiceError) -> EffectConflictError | EffectsRejectedError:
    """Say which effect's condition refused a transaction, or that DynamoDB can take none of this."""
    for index, reason in enumerate(reasons):
        if reason["Code"] == "ConditionalCheckFailed":
            return EffectConflictError(index, reason.get("Item"))
    return EffectsRejectedError(f"DynamoDB rejects the effects: {error}")


def _is_retryable(error: ServiceError) -> bool:
    if error.code == "TransactionCanceledException":
        codes = {reason["Code"] for reason in error.body["CancellationReasons"]}
        return "ConditionalCheckFailed" not in codes and not codes.isdisjoint(_RETRYABLE_REASONS)
    return error.code in _RETRYABLE or error.status >= 500  # noqa: PLR2004 - HTTP's server errors


_ABSENT: Final[Mapping[str, Any]] = {}


def item_of(record: Record) -> dict[str, dict[str, Any]]:  # noqa: C901 - one line an attribute, and no loop: this is hot
    """Return the record as a stored item in the wire format; what is None is left out."""
    (
        key,
        status,
        owner,
        attempt,
        lease_ms,
        expiry,
        fingerprint,
        delivery,
        region,
        created_ms,
        updated_ms,
        result,
        error,
        retry_ms,
        dead_lettered,
        event,
        _,  # the revision is never stored
    ) = record
    item: dict[str, dict[str, Any]] = {
        "idempotencyKey": {"S": key},
        "status": {"S": status},
        "attempt": {"N": str(attempt)},
        "createdAt": {"N": str(created_ms)},
        "updatedAt": {"N": str(updated_ms)},
    }
    if owner is not None:
        item["owner"] = {"S": owner}
    if lease_ms is not None:
        item["leaseExpiry"] = {"N": str(lease_ms)}
    if expiry is not None:
        item["expiryTimestamp"] = {"N": str(expiry)}
    if fingerprint is not None:
        item["fingerprint"] = {"S": fingerprint}
    if delivery is not None:
        item["delivery"] = {"S": delivery}
    if region is not None:
        item["region"] = {"S": region}
    if result is not None:
        item["responseData"] = {"S": result}
    if error is not None:
        item["error"] = {"S": error}
    if retry_ms is not None:
        item["retryAt"] = {"N": str(retry_ms)}
    if event is not None:
        item["event"] = {"S": event}
    if dead_lettered:
        item["deadLettered"] = {"BOOL": True}
    return item


def record_of(item: Mapping[str, Mapping[str, Any]]) -> Record:
    """Return a stored item as a record; what it lacks is None, and what makes no sense is left to the decision."""
    find = item.get
    return Record(
        key=find("idempotencyKey", _ABSENT).get("S") or "",
        status=find("status", _ABSENT).get("S") or "",
        owner=find("owner", _ABSENT).get("S"),
        attempt=_number(find("attempt")) or 0,
        lease_ms=_number(find("leaseExpiry")),
        expiry=_number(find("expiryTimestamp")),
        fingerprint=find("fingerprint", _ABSENT).get("S"),
        delivery=find("delivery", _ABSENT).get("S"),
        region=find("region", _ABSENT).get("S"),
        created_ms=_number(find("createdAt")) or 0,
        updated_ms=_number(find("updatedAt")) or 0,
        result=find("responseData", _ABSENT).get("S"),
        error=find("error", _ABSENT).get("S"),
        retry_ms=_number(find("retryAt")),
        dead_lettered=find("deadLettered", _ABSENT).get("BOOL") is True,
        event=find("event", _ABSENT).get("S"),
    )


def _number(attribute: Mapping[str, Any] | None) -> int | None:
    return int(attribute["N"]) if attribute is not None and "N" in attribute else None
