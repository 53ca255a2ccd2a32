"""DynamoDB in this process: the operations on items, without a network."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from botocore.exceptions import ClientError, ReadTimeoutError

from carride_idempotency.clock import epoch_ms
from carride_idempotency.errors import ConfigurationError
from carride_idempotency.stores.transport import NoAnswerError, ServiceError
from carride_idempotency.testing.expressions import (
    InvalidRequestError,
    Item,
    Request,
    holds,
    updated,
    validate,
)

type Key = tuple[str, ...]
type KeyNames = Mapping[str, Sequence[str]]
"""The key attributes of tables or indexes, by name."""
type _Tables = dict[str, dict[Key, Item]]
type _Tokens = dict[str, tuple[float, Request]]
type _Told = Callable[[str, Item], object]

NO_NAMES: Final[KeyNames] = {}
RECORD_KEY: Final = "idempotencyKey"
"""The key attribute of a table of records, which needs no entry among the tables."""
_TOKEN_LASTS_MS: Final = 600_000
_REFUSED: Final = "ConditionalCheckFailedException"
_CANCELLED: Final = "TransactionCanceledException"
_EXCEPTIONS: Final = {code: type(code, (ClientError,), {}) for code in (_REFUSED, _CANCELLED)}


def _nobody(table: str, item: Item) -> None:
    """Tell nobody of an insert."""


class _Write(NamedTuple):
    """What a valid write leaves under a key: an item, or nothing."""

    table: str
    key: Key
    before: Item | None
    after: Item | None


class FakeDynamoDB:
    """Tables, as the layer's `Transport` and, by its methods, as a botocore client.

    Queries answer in pages of ``Limit`` items, ordered by the table's key, or that of an index that
    is named here. Every request sees all earlier writes.

    Args:
        tables: the key attributes of each table, which are strings: partition key, sort key. A
            table of records needs no entry.
        indexes: the key attributes of indexes.
        clock: epoch milliseconds. The token of a transaction is remembered for ten minutes.

    Attributes:
        inserted: called with the table and the item after each insert.
    """

    longest_try_s = 1.5
    exceptions = SimpleNamespace(**_EXCEPTIONS)

    def __init__(
        self,
        tables: KeyNames,
        clock: Callable[[], float] = epoch_ms,
        *,
        indexes: KeyNames = NO_NAMES,
    ) -> None:
        self._keys = tables
        self._indexes = indexes
        self._clock = clock
        self._items: _Tables = defaultdict(dict)
        self._tokens: _Tokens = {}
        self._lock = RLock()
        self.inserted: _Told = _nobody

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of a client, such as ``get_item``."""
        operation = name.title().replace("_", "")
        return lambda **request: self.send(operation, request)

    def all(self, table: str) -> list[Item]:
        """Return every item of a table."""
        return list(self._items[table].values())

    def clear(self, table: str) -> None:
        """Delete every item of a table."""
        self._items[table].clear()

    def delete(self, request: Request) -> None:
        """Delete the item under a request's key, unconditionally."""
        self._items[request["TableName"]].pop(self.key(request), None)

    def send(self, operation: str, request: Request) -> Mapping[str, Any]:
        """Send a client's request. Its errors are botocore's."""
        try:
            return answered(lambda: self(operation, request))
        except ServiceError as error:
            answer: Any = {"Error": {"Code": error.code, "Message": str(error)}, **error.body}
            raise _EXCEPTIONS.get(error.code, ClientError)(answer, operation) from error

    # ── Operations ────────────────────────────────────────────────────────────────────────────────

    def __call__(self, operation: str, request: Request, /) -> Mapping[str, Any]:
        """Carry a request out.

        Raises:
            ServiceError: DynamoDB would refuse the request.
            ConfigurationError: this DynamoDB lacks the operation, the table, or an option.
        """
        with self._lock:
            match operation:
                case "GetItem":
                    validate(request)
                    item = self.find(request)
                    return {} if item is None else {"Item": dict(item)}
                case "BatchGetItem":
                    return self._get_batch(request)
                case "Query" | "Scan":
                    validate(request)
                    return self._search(request)
                case "TransactWriteItems":
                    return self._transact(request)
                case "BatchWriteItem":
                    return self._write_batch(request)
                case "PutItem" | "UpdateItem" | "DeleteItem":
                    return self._write_one(operation.removesuffix("Item"), request)
        raise ConfigurationError(f"World's DynamoDB has no {operation}: take World(None) and moto")

    def _search(self, request: Request) -> Mapping[str, Any]:
        names = self._order_of(request)
        items = self._between(request, names)
        page = items[: request.get("Limit")]
        found = [item for item in page if holds(request, item, "FilterExpression")]
        answer: dict[str, Any] = {
            "Items": found,
            "Count": len(found),
            "ScannedCount": len(page),
        }
        if len(page) < len(items):
            last = page[-1]
            answer["LastEvaluatedKey"] = {name: last[name] for name in names}
        return answer

    def _order_of(self, request: Request) -> tuple[str, ...]:
        """Return the key attributes by which a search is ordered."""
        of_index = self._indexes.get(request.get("IndexName", ""), ())
        return (*of_index, *self.key_names(request["TableName"]))

    def _between(self, request: Request, names: tuple[str, ...]) -> list[Item]:
        """Return the items that a search reads, in its order, after its start."""

        def place(item: Item) -> list[str]:
            return [item[name]["S"] for name in names]

        needed = set(names)
        items = [
            item
            for item in self.all(request["TableName"])
            if item.keys() >= needed and holds(request, item, "KeyConditionExpression")
        ]
        descends = not request.get("ScanIndexForward", True)
        items.sort(key=place, reverse=descends)
        start = request.get("ExclusiveStartKey")
        if not start:
            return items
        begin = place(start)
        if descends:
            return [item for item in items if place(item) < begin]
        return [item for item in items if place(item) > begin]

    def _get_batch(self, request: Request) -> Mapping[str, Any]:
        answers: dict[str, list[Item]] = {}
        for table, wanted in request["RequestItems"].items():
            answers[table] = []
            for key in wanted["Keys"]:
                item = self.find({"TableName": table, "Key": key})
                if item is not None:
                    answers[table].append(dict(item))
        return {"Responses": answers, "UnprocessedKeys": {}}

    def _write_one(self, kind: str, request: Request) -> Mapping[str, Any]:
        validate(request)
        refusal = self._refusal(request)
        if refusal is not None:
            body = {name: value for name, value in refusal.items() if name == "Item"}
            raise ServiceError(_REFUSED, 400, "The conditional request failed", body)
        write = self._prepared(kind, request)
        self._commit([write])
        match request.get("ReturnValues", "NONE"):
            case "NONE":
                return {}
            case "ALL_OLD":
                shown = write.before
            case "ALL_NEW":
                shown = write.after
            case other:
                raise ConfigurationError(f"World's DynamoDB has no ReturnValues={other}")
        return {} if shown is None else {"Attributes": dict(shown)}

    def _write_batch(self, request: Request) -> Mapping[str, Any]:
        writes = []
        for table, entries in request["RequestItems"].items():
            for entry in entries:
                ((name, action),) = entry.items()
                kind = name.removesuffix("Request")
                writes.append(self._prepared(kind, {"TableName": table, **action}))
        if len({(write.table, write.key) for write in writes}) < len(writes):
            raise InvalidRequestError("Provided list of item keys contains duplicates")
        self._commit(writes)
        return {"UnprocessedItems": {}}

    def _transact(self, request: Request) -> Mapping[str, Any]:
        token = request.get("ClientRequestToken", "")
        since_ms, before = self._tokens.get(token, (-math.inf, None))
        if self._clock() - since_ms < _TOKEN_LASTS_MS:
            if before != request:
                raise ServiceError(
                    "IdempotentParameterMismatchException",
                    400,
                    "another request has this token",
                    {},
                )
            return {}
        actions = [
            (kind, action) for entry in request["TransactItems"] for kind, action in entry.items()
        ]
        for _, action in actions:
            validate(action)
        if len({(action["TableName"], self.key(action)) for _, action in actions}) < len(actions):
            raise InvalidRequestError(
                "Transaction request cannot include multiple operations on one item"
            )
        self._commit(self._prepared_all(actions))
        if token:
            self._tokens[token] = (self._clock(), request)
        return {}

    def _prepared_all(self, actions: Sequence[tuple[str, Request]]) -> list[_Write]:
        """Return the writes of a transaction, or raise why it is cancelled."""
        writes = []
        reasons: list[dict[str, Any]] = []
        for kind, action in actions:
            reason = self._refusal(action)
            if reason is None:
                try:
                    writes.append(self._prepared(kind, action))
                except InvalidRequestError as error:
                    if not error.depends_on_item:
                        raise
                    reason = {"Code": "ValidationError", "Message": str(error)}
            reasons.append(reason or {"Code": "None"})
        if any(reason["Code"] != "None" for reason in reasons):
            codes = ", ".join(reason["Code"] for reason in reasons)
            message = f"Transaction cancelled, please refer cancellation reasons [{codes}]"
            raise ServiceError(_CANCELLED, 400, message, {"CancellationReasons": reasons})
        return writes

    def _refusal(self, request: Request) -> dict[str, Any] | None:
        """Return why a condition refuses a write, as a cancelled transaction says it, or None."""
        found = self.find(request)
        if holds(request, found or {}, "ConditionExpression"):
            return None
        refusal: dict[str, Any] = {"Code": "ConditionalCheckFailed"}
        if found and request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD":
            refusal["Item"] = found
        return refusal

    def find(self, request: Request) -> Item | None:
        """Return the item under a request's key."""
        return self._items[request["TableName"]].get(self.key(request))

    def _prepared(self, kind: str, request: Request) -> _Write:
        """Return what a write will leave. Nothing is written yet."""
        found = self.find(request)
        after: Item | None
        match kind:
            case "Put":
                after = _copied(dict(request["Item"]))
            case "Update" if "UpdateExpression" in request:
                after = updated(request, found or {})
            case "Update":
                after = {**(found or {}), **request["Key"]}
            case "Delete":
                after = None
            case _:
                after = found
        return _Write(request["TableName"], self.key(request), found, after)

    def _commit(self, writes: Sequence[_Write]) -> None:
        """Carry out writes that are all valid."""
        for write in writes:
            if write.after is None:
                self._items[write.table].pop(write.key, None)
            else:
                self._items[write.table][write.key] = write.after
        for write in writes:
            if write.before is None and write.after is not None:
                self.inserted(write.table, write.after)

    def key_names(self, table: str) -> Sequence[str]:
        """Return the key attributes of a table."""
        return self._keys.get(table, (RECORD_KEY,))

    def key(self, request: Request) -> Key:
        """Return the key of the item that a request is about."""
        item = request.get("Item") or request["Key"]
        table = request["TableName"]
        names = self.key_names(table)
        if not item.keys() >= set(names):
            raise ConfigurationError(
                f"there is no table {table} with the key {names}: "
                "give World or FakeDynamoDB its keys"
            )
        values = []
        for name in names:
            value = item[name].get("S")
            if value is None:
                raise InvalidRequestError(
                    f"One or more parameter values were invalid: Type mismatch for key {name}"
                )
            if not value:
                raise InvalidRequestError(
                    "One or more parameter values are not valid. "
                    f"The AttributeValue for a key attribute cannot contain an empty string: {name}"
                )
            values.append(value)
        return tuple(values)


def _copied(attribute: Any) -> Any:
    """Return a copy of an attribute: `copy.deepcopy` takes several times as long."""
    if isinstance(attribute, dict):
        return {name: _copied(each) for name, each in attribute.items()}
    if isinstance(attribute, list):
        return [_copied(each) for each in attribute]
    return attribute


def answered[T](request: Callable[[], T]) -> T:
    """Return the answer to a request. Without one, raise what botocore's clients raise."""
    try:
        return request()
    except NoAnswerError as error:
        raise ReadTimeoutError(endpoint_url="dynamodb") from error
