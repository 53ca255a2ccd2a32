"""Reads many records of a store, or all of them, which no consumer needs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import batched
from typing import Any, Final, Protocol, runtime_checkable

from carride_idempotency.errors import ConfigurationError, StoreUnavailableError
from carride_idempotency.record import Record
from carride_idempotency.record_items import record_of
from carride_idempotency.stores import Store
from carride_idempotency.stores.dynamodb import DynamoDBStore, _judge, _key_of
from carride_idempotency.stores.memory import MemoryStore
from carride_idempotency.stores.transport import ServiceError

type _ReadAtOnce = Callable[[Sequence[str]], Iterator[Record]]
"""Reads the records under keys."""

_AT_ONCE: Final = 500
"""Keys of one pipeline to a server."""
_MOST_KEYS: Final = 100
"""Keys of one BatchGetItem."""
_MOST_KEY_BYTES: Final = 2_048
"""The most that DynamoDB takes as a partition key."""


@runtime_checkable
class Listed(Protocol):
    """A store of your own that can say what it holds."""

    def records(self) -> Iterator[Record]:
        """Yield every record once, in any order."""
        ...


def records_at(store: Store, keys: Iterable[str]) -> Iterator[Record]:
    """Yield the records that exist under keys, each once and in any order.

    A DynamoDB table, and a server that is not a cluster, are asked for many at once. Other stores
    are asked for each.

    Args:
        store: holds the records.
        keys: as records have them. One that no table can have has no record.

    Raises:
        StoreError: the store did not answer.
    """
    wanted = sorted({*keys})
    if isinstance(store, DynamoDBStore):
        wanted = [key for key in wanted if len(key.encode(errors="replace")) <= _MOST_KEY_BYTES]
    read = _read_at_once(store)
    if read is None or len(wanted) == 1:
        return _one_by_one(store, wanted)
    return read(wanted)


def _read_at_once(store: Store) -> _ReadAtOnce | None:
    """Return how many records of a store are read at once; None if it has only its own read."""
    if type(store) is DynamoDBStore:  # one that migrates reads another table, too
        return partial(_at_in_table, store)
    from carride_idempotency.stores.valkey import ValkeyStore

    # The pipeline of a cluster's client has no scripts.
    if isinstance(store, ValkeyStore) and not hasattr(store._client, "get_nodes"):
        return partial(_at_in_server, store)
    return None


def _one_by_one(store: Store, keys: Iterable[str]) -> Iterator[Record]:
    for key in keys:
        record = store.read(key)
        if record is not None:
            yield record


def _at_in_table(store: DynamoDBStore, keys: Sequence[str]) -> Iterator[Record]:
    for some in batched(keys, _MOST_KEYS):
        yield from map(record_of, _batch_of(store, some))


def _batch_of(store: DynamoDBStore, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the items under up to 100 keys.

    An answer of 16 MB leaves keys out, and so does one of a busy table. Each answer that has read a
    key starts the tries anew.
    """
    left: Any = {store._table: {"ConsistentRead": True, "Keys": [*map(_key_of, keys)]}}
    while left:
        answer = store._retries.send(
            f"BatchGetItem on {store._table}",
            partial(_part_of, store, left),
            partial(_judge, actions=0),
            longest_try_s=store._transport.longest_try_s,
            until_ms=None,
            remedy=store._remedy,
        )
        for items in answer["Responses"].values():
            _check_keys([item["idempotencyKey"]["S"] for item in items], keys)
            yield from items
        left = answer.get("UnprocessedKeys")


def _part_of(store: DynamoDBStore, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer for at least one of the wanted keys."""
    answer = store._transport("BatchGetItem", {"RequestItems": wanted})
    if keys_in(answer.get("UnprocessedKeys", {})) == keys_in(wanted):
        raise ServiceError("ThrottlingException", 200, "no key was read", {})
    return answer


def keys_in(request: Mapping[str, Any]) -> int:
    """Return how many keys a BatchGetItem asks for."""
    return sum(len(table["Keys"]) for table in request.values())


def _check_keys(answered: Iterable[str], asked: Iterable[str]) -> None:
    """Check that an answer is about the keys that were asked for.

    Raises:
        StoreUnavailableError: it is another request's.
    """
    if not {*answered} <= {*asked}:
        raise StoreUnavailableError("the answer is about other keys: it is another request's")


def _at_in_server(store: Any, keys: Sequence[str]) -> Iterator[Record]:
    from carride_idempotency.stores.valkey import _READ, _record_of, _text

    def ask() -> list[Any]:
        pipeline = store._client.pipeline(transaction=False)
        for key in some:
            pipeline.eval(_READ.text, 1, store._prefix + key, str(store._clock()))
        answers: list[Any] = pipeline.execute()
        return answers

    for some in batched(keys, _AT_ONCE):
        answers = store._send(f"reading {len(some)} records", ask, None)
        for key, (server_ms, answered, fields) in zip(some, answers, strict=True):
            _check_keys([_text(answered)], [store._prefix + key])
            record = _record_of(key, fields, server_ms, store._clock())
            if record is not None:
                yield record


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
    conditions = list[str]()
    values: dict[str, Any] = {}
    if index is None:  # which holds records alone, and may be the last to show a damaged one
        conditions.append("attribute_exists(#s)")
    if status is not None:
        conditions.append("#s = :s")
        values[":s"] = {"S": status}
    if consumer is not None:
        conditions.append("begins_with(idempotencyKey, :c)")
        values[":c"] = {"S": consumer}
    if conditions:
        request["FilterExpression"] = " AND ".join(conditions)
    if index is None or status is not None:
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
    found = store._client.scan_iter(match=pattern, count=_AT_ONCE)
    names = (name.decode() if isinstance(name, bytes) else name for name in found)
    for some in batched(names, _AT_ONCE):
        yield from records_at(store, (name.removeprefix(prefix) for name in some))
