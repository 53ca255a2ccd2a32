"""Records in a DynamoDB table: the default store.

The table has the string partition key ``idempotencyKey`` and TTL on ``expiryTimestamp``. Every
write is one conditional request. If it is refused it returns the stored item
(``ReturnValuesOnConditionCheckFailure``), so that no step needs a separate read.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from carride_idempotency import marshalling
from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import (
    ConfigurationError,
    EffectConflictError,
    EffectsRejectedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from carride_idempotency.record import IN_PROGRESS, Record, compared_where_damaged
from carride_idempotency.record_items import item_of, record_of
from carride_idempotency.stores.default_transport import dynamodb_transport
from carride_idempotency.stores.retries import Retries, Verdict
from carride_idempotency.stores.transport import NoAnswerError, ServiceError, Transport

if TYPE_CHECKING:
    from typing import Protocol

    from carride_idempotency.effects import Action, Effect

    class EarlierRecords(Protocol):
        """The records of another layer from which a consumer moves: `PowertoolsRecords`."""

        @property
        def store_class(self) -> "type[DynamoDBStore]":
            """The store that shares claims with them."""


_CONDITION: Final = "ConditionalCheckFailed"
_CONFLICT_OR_THROTTLING: Final = frozenset(
    {"ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
)
_INVALID: Final = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError"})
_UNANSWERED: Final = frozenset({"InternalServerError", "TransactionInProgressException"})
_PASSING: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
    }
)

_STATUS_AND_OWNER: Final = {"#s": "status", "#o": "owner"}

type Item = Mapping[str, Mapping[str, Any]]
"""An item, or its key, in the wire format."""
type Condition = tuple[str, Mapping[str, object]]
"""A condition on a record, and its values. ``#s`` is the status, ``#o`` the owner."""
ABSENT: Final[Condition] = ("attribute_not_exists(idempotencyKey)", {})


class BesideRefusedError(Exception):
    """Raised when an item of another table refuses a write; ``item`` is None if it is gone."""

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        super().__init__(item)
        self.item = item


class DynamoDBStore:
    """Idempotency records in one DynamoDB table.

    Args:
        table: the table's name or ARN.
        before: records of AWS Lambda Powertools, from which its consumers migrate.
        transport: sends the requests. Default: what `dynamodb_transport` makes for the environment.
        clock, sleep, jitter: epoch milliseconds, waiting in seconds, a number from 0 to 1 for each
            pause.
    """

    transactional = True
    items_beside = 1
    """How many items a commit writes besides its effects: the record."""

    def __new__(
        cls,
        table: str,  # noqa: ARG004 - `__init__` takes it; `help` shows this signature
        *,
        before: "EarlierRecords | None" = None,
        transport: Transport | None = None,  # noqa: ARG004 - as above
        clock: Clock = epoch_ms,  # noqa: ARG004 - as above
        sleep: Callable[[float], None] = time.sleep,  # noqa: ARG004 - as above
        jitter: Callable[[], float] = random.random,  # noqa: ARG004 - as above
    ) -> "DynamoDBStore":
        """Make the store, of a subclass if it also keeps the records of ``before``.

        So a caller names one class, and the code for earlier records loads only where it is used.
        """
        if before is None:
            return object.__new__(cls)
        if not hasattr(before, "store_class"):
            from carride_idempotency.errors.misuse import not_earlier_records

            raise not_earlier_records(before)
        return object.__new__(before.store_class)

    def __init__(
        self,
        table: str,
        *,
        before: "EarlierRecords | None" = None,  # noqa: ARG002 - `__new__` takes it
        transport: Transport | None = None,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(table, str) or not table:
            raise ConfigurationError(
                f"the table of a DynamoDBStore is a name or an ARN, not {table!r}: "
                "set the environment variable that holds it"
            )
        if transport is not None and not callable(transport):
            from carride_idempotency.errors.misuse import not_a_transport

            raise not_a_transport(transport)
        self._transport = transport or dynamodb_transport()
        self._table = table
        self._retries = Retries(clock, sleep, jitter)

    def put_if_absent(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record:
        """Write ``record`` if its key is absent."""
        found = self._write(record, ABSENT, effects, until_ms)
        if found is None:  # deleted after the refusal: DynamoDB returns no item
            raise StoreUnavailableError(
                f"{record.key} was refused by a record that is deleted now; "
                "the next delivery decides"
            )
        return found

    def compare_and_swap(
        self,
        seen: Record,
        record: Record,
        effects: Sequence["Effect"] = (),
        *,
        until_ms: int | None = None,
    ) -> Record | None:
        """Write ``record`` if the record under its key is still as ``seen``."""
        return self._write(record, still_as(seen), effects, until_ms)

    def update_if_owner(
        self, record: Record, effects: Sequence["Effect"] = (), *, until_ms: int | None = None
    ) -> Record | None:
        """Write ``record`` if its owner still holds the key, with no later lease."""
        return self._write(record, owned_by(record), effects, until_ms)

    def read(self, key: str, *, until_ms: int | None = None) -> Record | None:
        """Read the record under ``key``, consistently."""
        request = {"TableName": self._table, "Key": _key_of(key), "ConsistentRead": True}
        answer = self._send("GetItem", request, until_ms)
        return _found(answer.get("Item"), key)

    def _write(
        self,
        record: Record,
        condition: Condition,
        effects: Sequence["Effect"],
        until_ms: int | None,
        *,
        beside: Sequence[Mapping[str, Any]] = (),
    ) -> Record | None:
        """Write ``record`` on a condition, with effects and with items of another table.

        Raises:
            BesideRefusedError: one of these items refuses it.
        """
        text, values = condition
        item = item_of(record)
        others = _keep(item, effects) if effects else {}
        put: dict[str, Any] = {
            "TableName": self._table,
            "Item": item,
            "ConditionExpression": text,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if condition is not ABSENT:
            put["ExpressionAttributeNames"] = _STATUS_AND_OWNER
        if values:
            put["ExpressionAttributeValues"] = values
        if others or beside:
            return self._transact(record, put, others, until_ms, beside)
        try:
            self._send("PutItem", put, until_ms)
        except ServiceError as error:
            return _found(error.body.get("Item"), record.key)
        return record

    def _transact(
        self,
        record: Record,
        put: Mapping[str, Any],
        effects: Mapping[int, "Action"],
        until_ms: int | None,
        beside: Sequence[Mapping[str, Any]],
    ) -> Record | None:
        from carride_idempotency.effects import MOST_ACTIONS, action_of

        first: list[Mapping[str, object]] = [{"Put": put}, *beside]
        actions = [*first, *map(action_of, effects.values())]
        if len(actions) > MOST_ACTIONS:
            raise EffectsRejectedError(
                f"{len(actions)} are more than the {MOST_ACTIONS} actions of one transaction"
            )
        # The token is made once for this request, and kept over its retries. A token derived from
        # the key would collide with the different request of a later attempt.
        request = {"TransactItems": actions, "ClientRequestToken": os.urandom(16).hex()}
        try:
            self._send("TransactWriteItems", request, until_ms, len(actions))
        except ServiceError as error:
            reasons = _reasons(error, len(actions))
            if reasons[0].get("Code") == _CONDITION:
                return _found(reasons[0].get("Item"), record.key)
            for reason in reasons[1 : len(first)]:
                if reason.get("Code") == _CONDITION:
                    raise BesideRefusedError(reason.get("Item")) from error
            raise _conflict(reasons[len(first) :], effects) from error
        except StoreRefusedError as refused:
            cause = refused.__cause__
            if isinstance(cause, ServiceError) and _is_of_the_effects(cause, len(actions)):
                # A table with another key refuses the first request, which is an insert: only its
                # condition, that the key is absent, names no attribute of a record.
                is_insert = "ExpressionAttributeNames" not in put
                advice = self._remedy(cause) if is_insert and _is_of_the_record(cause) else ""
                raise EffectsRejectedError(
                    f"DynamoDB rejects the effects: {cause}{advice}"
                ) from cause
            raise
        return record

    def _send(
        self, operation: str, request: Mapping[str, Any], until_ms: int | None, actions: int = 0
    ) -> Mapping[str, Any]:
        """Return DynamoDB's answer, or raise a ServiceError if a condition does not hold.

        ``actions`` is the number of a transaction's actions.
        """
        return self._retries.send(
            f"{operation} on {self._table}",
            lambda: self._transport(operation, request),
            lambda error: _judge(error, actions),
            longest_try_s=self._transport.longest_try_s,
            until_ms=until_ms,
            remedy=self._remedy,
        )

    def _remedy(self, error: Exception) -> str:
        """Return what to do about a request that DynamoDB has refused for good."""
        if isinstance(error, ServiceError) and error.status == 0:
            return "; it was not sent: check where the function's credentials come from"
        if not _is_of_the_record(error):
            return "; check the table, what was sent and the role that sent it"
        return (
            ". If that is about a key: this store writes the partition key idempotencyKey, of type "
            "string, and no sort key. A table with another key can hold no record: take another "
            "table. "
            f"`aws dynamodb describe-table --table-name {self._table}` shows the keys of the table "
            "and of its indexes"
        )


def _key_of(key: str) -> Item:
    return {"idempotencyKey": {"S": key}}


def _found(item: Item | None, key: str) -> Record | None:
    """Return the item that was answered for a key as a record; None if there is none."""
    if not item:
        return None
    check_key(item, _key_of(key))
    return record_of(item)


def check_key(item: Item, asked: Item) -> None:
    """Check that an answered item has the key that was asked.

    Raises:
        StoreUnavailableError: it has another one. So the answer is another request's, such as that
            of a process which shares the connection, and what became of this one is unknown.
    """
    for name, wanted in asked.items():
        found = item.get(name)
        if not found or not _is_same(found, wanted):
            raise StoreUnavailableError(
                f"the answer is not about {asked}: it holds an item of another key"
            )


def _is_same(value: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two values of a key are equal: a number may be written in several ways."""
    return value == other or marshalling.value({**value}) == marshalling.value({**other})


def owned_by(record: Record) -> Condition:
    """Return the condition that the owner of ``record`` holds the key, with no later lease."""
    condition = "#s = :s AND #o = :o"
    values: dict[str, object] = {":s": {"S": IN_PROGRESS}, ":o": {"S": record.owner}}
    if record.lease_ms is not None:
        condition += " AND leaseExpiry <= :l"
        values[":l"] = {"N": str(record.lease_ms)}
    return condition, values


def still_as(seen: Record) -> Condition:
    """Return the condition that a record is still as it was seen, and its values.

    What was not seen must still be absent, or of another type.
    """
    stored = compared_where_damaged(seen)
    if stored is not None:
        return _still_stored(stored)
    lease = None if seen.lease_ms is None else str(seen.lease_ms)
    conditions = []
    values: dict[str, object] = {}
    for name, placeholder, value, kind in (
        ("#s", ":s", str(seen.status) or None, "S"),
        ("#o", ":o", seen.owner, "S"),
        ("attempt", ":attempt", str(seen.attempt), "N"),
        ("leaseExpiry", ":leaseExpiry", lease, "N"),
    ):
        if value is None:
            conditions.append(f"NOT attribute_type({name}, :type{kind})")
            values[f":type{kind}"] = {"S": kind}
        elif value == "0":  # as an absent number is read
            conditions.append(f"({name} = {placeholder} OR attribute_not_exists({name}))")
            values[placeholder] = {kind: value}
        else:
            conditions.append(f"{name} = {placeholder}")
            values[placeholder] = {kind: value}
    return " AND ".join(conditions), values


def _still_stored(compared: Sequence[Mapping[str, Any] | None]) -> Condition:
    """Return the condition that a damaged record still has these attributes: those of `COMPARED`.

    Of one that is neither text nor a number, only the type is compared.
    """
    conditions = []
    values: dict[str, object] = {}
    for name, attribute in zip(("#s", "#o", "attempt", "leaseExpiry"), compared, strict=True):
        if attribute is None:
            conditions.append(f"attribute_not_exists({name})")
            continue
        placeholder = f":{name.removeprefix('#')}"
        ((kind, _),) = attribute.items()
        if kind in {"S", "N"}:
            conditions.append(f"{name} = {placeholder}")
            values[placeholder] = attribute
        else:
            conditions.append(f"attribute_type({name}, {placeholder})")
            values[placeholder] = {"S": kind}
    return " AND ".join(conditions), values


def _conflict(
    reasons: Sequence[Mapping[str, Any]], effects: Mapping[int, "Action"]
) -> EffectConflictError:
    """Return the error of the first effect whose condition does not hold.

    ``reasons`` are those of the ``effects``, in their order. Effects have their position as key.
    """
    for (position, effect), reason in zip(effects.items(), reasons, strict=True):
        if reason.get("Code") == _CONDITION:
            item = reason.get("Item")
            key = getattr(effect, "key", None)  # only its table knows which attributes a Put's are
            if item and key:
                check_key(item, marshalling.item(key))
            return EffectConflictError(position, item)
    raise LookupError("no condition was refused")


def _judge(error: Exception, actions: int) -> Verdict | None:
    """Return what an error says about a request.

    ``actions`` is the number of a transaction's actions.
    """
    if isinstance(error, NoAnswerError):
        return Verdict.UNANSWERED
    if not isinstance(error, ServiceError):
        return None
    if error.code == "TransactionCanceledException":
        return _judge_cancelled(error, actions)
    if error.code == "ConditionalCheckFailedException":
        return Verdict.ANSWERED
    if error.code in _UNANSWERED or error.status >= 500:  # noqa: PLR2004 - HTTP's server errors
        return Verdict.UNANSWERED
    if error.code in _PASSING:
        return Verdict.PASSING
    return Verdict.REFUSED


def _is_of_the_effects(refusal: ServiceError, actions: int) -> bool:
    """Return whether DynamoDB refused a transaction because an effect is invalid."""
    if refusal.code == "ValidationException":
        return True
    return any(reason.get("Code") in _INVALID for reason in _reasons(refusal, actions)[1:])


def _is_of_the_record(refusal: Exception) -> bool:
    """Return whether DynamoDB refused a request because of the record's key or attributes."""
    if not isinstance(refusal, ServiceError):
        return False
    if refusal.code == "ValidationException":
        return True
    reasons: Sequence[Mapping[str, Any]] = refusal.body.get("CancellationReasons") or ({},)
    return reasons[0].get("Code") == "ValidationError"


def _judge_cancelled(error: ServiceError, actions: int) -> Verdict:
    reasons = _reasons(error, actions)
    codes = {reason.get("Code") for reason in reasons} if reasons else _codes_in(str(error))
    if _CONDITION in codes:
        # Without reasons, nothing says which condition does not hold.
        return Verdict.ANSWERED if reasons else Verdict.REFUSED
    if codes & _INVALID:
        return Verdict.REFUSED
    if codes & _CONFLICT_OR_THROTTLING:
        return Verdict.PASSING
    return Verdict.REFUSED


def _codes_in(message: str) -> set[str]:
    """Return the codes that an error's message names: an answer without reasons has them there."""
    known = {_CONDITION} | _INVALID | _CONFLICT_OR_THROTTLING
    return {code for code in known if code in message}


def _reasons(error: ServiceError, actions: int) -> Sequence[Mapping[str, Any]]:
    """Return why each action was refused; nothing if DynamoDB does not give a reason for each."""
    reasons: Sequence[Mapping[str, Any]] = error.body.get("CancellationReasons") or ()
    return reasons if len(reasons) == actions else ()


def _keep(item: dict[str, dict[str, Any]], effects: Sequence["Effect"]) -> dict[int, "Action"]:
    """Add what a record keeps to its item.

    Return the effects on items of their own, by their position.
    """
    from carride_idempotency.effects import Keep

    others: dict[int, Action] = {}
    for position, effect in enumerate(effects):
        if isinstance(effect, Keep):
            item |= marshalling.item(effect.attributes)
            item.pop("expiryTimestamp", None)
        else:
            others[position] = effect
    return others
