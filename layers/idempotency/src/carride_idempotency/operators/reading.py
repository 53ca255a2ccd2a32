"""Reads all records of a store, which no consumer needs."""

import re
from collections.abc import Iterator
from typing import Any, Final, Protocol, runtime_checkable

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.record import Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores import Store
from carride_idempotency.stores.dynamodb import DynamoDBStore
from carride_idempotency.stores.memory import MemoryStore

_AT_ONCE: Final = 500


@runtime_checkable
class Listed(Protocol):
    """A store of your own that can say what it holds."""

    def records(self) -> Iterator[Record]:
        """Yield every record once, in any order."""
        ...


def records_in(
    store: Store,
    *,
    consumer: str | None = None,
    status: str | None = None,
    index: str | None = None,
) -> Iterator[Record]:
    """Yield the records of a store, in any order. One that is written meanwhile may be missing.

    Args:
        store: holds the records.
        consumer: only records of this consumer, if the store can filter; others may come too.
        status: only records in this status, likewise.
        index: of a DynamoDB table, by ``unsettledSince``: has only what waits for an operator.

    Raises:
        ConfigurationError: the store cannot say what it holds.
        StoreError: the store did not answer.
    """
    if isinstance(store, DynamoDBStore):
        return _in_table(store, consumer, status, index)
    if index is not None:
        raise ConfigurationError("only a DynamoDB table has an index")
    if isinstance(store, MemoryStore):
        return iter(list(store._records.values()))
    if isinstance(store, Listed):
        return store.records()
    from carride_idempotency.stores.valkey import ValkeyStore

    if isinstance(store, ValkeyStore):
        return _in_server(store)
    raise ConfigurationError(
        f"{type(store).__name__} cannot list its records: give it a method records() that yields "
        "them, or name the keys"
    )


def _in_table(
    store: DynamoDBStore, consumer: str | None, status: str | None, index: str | None
) -> Iterator[Record]:
    request: dict[str, Any] = {"TableName": store._table, "ConsistentRead": index is None}
    if index is not None:
        request["IndexName"] = index
    conditions = ["attribute_exists(#s)"]
    values: dict[str, Any] = {}
    if status is not None:
        conditions.append("#s = :s")
        values[":s"] = {"S": status}
    if consumer is not None:
        conditions.append("begins_with(idempotencyKey, :c)")
        values[":c"] = {"S": consumer}
    request["FilterExpression"] = " AND ".join(conditions)
    request["ExpressionAttributeNames"] = {"#s": "status"}
    if values:
        request["ExpressionAttributeValues"] = values
    start: dict[str, Any] | None = {}
    while start is not None:
        answer = store._send("Scan", request, None)
        for item in answer.get("Items", ()):
            yield record_of(item)
        start = answer.get("LastEvaluatedKey")
        request["ExclusiveStartKey"] = start


def _in_server(store: Any) -> Iterator[Record]:
    prefix = store._prefix
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "*"
    for found in store._client.scan_iter(match=pattern, count=_AT_ONCE):
        name = found.decode() if isinstance(found, bytes) else found
        record = store.read(name.removeprefix(prefix))
        if record is not None:  # None: it has expired since the scan
            yield record
