"""Every store, with a place for effects, as the suites take them."""

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from idempotency import DynamoDBStore, EffectConflictError, MemoryStore, Update
from idempotency.clock import Clock
from idempotency.effects import Check, Effect
from idempotency.stores import Store
from idempotency.stores.transport import BotocoreTransport, Transport
from idempotency.stores.valkey import ValkeyStore
from tests.idempotency.samples import create_tables

FIRST_CHARGE: Final = "attribute_not_exists(charges)"
"""The condition of a charge that must be the only one."""

PREFIX: Final = "test:"
"""What the Valkey stores of the tests put before their keys."""


class Backend(NamedTuple):
    """One store, opened empty."""

    store: Store
    clock: Clock
    table: str
    """Where effects are written."""
    charges: Callable[[str], int]
    """How many effects on a ride were committed."""
    forgotten_in_s: Callable[[str], float | None]
    """After how many seconds the backend itself drops a key; None: never."""
    keeps_times: bool = True
    """Times come back as they were written. Otherwise they are moved by as much as the answers were late."""

    def charge(self, ride: str, condition: str | None = None) -> Update:
        return Update(self.table, {"id": ride}, "ADD charges :one", condition, {":one": 1})


type Opener = Callable[[Clock], AbstractContextManager[Backend]]


@contextlib.contextmanager
def open_memory(clock: Clock) -> Iterator[Backend]:
    """A MemoryStore whose effects are counted in this process."""
    charges: Counter[str] = Counter()

    def apply(effects: Sequence[Effect]) -> None:
        for index, effect in enumerate(effects):
            assert isinstance(effect, Update | Check)
            if effect.condition == FIRST_CHARGE and charges[str(effect.key["id"])]:
                raise EffectConflictError(index)
        charges.update(str(effect.key["id"]) for effect in effects if isinstance(effect, Update))

    store = MemoryStore(apply=apply, clock=clock)
    yield Backend(store, clock, "Rides", charges.__getitem__, _ends_with_the_window(store, clock))


def _ends_with_the_window(store: Store, clock: Clock) -> Callable[[str], float | None]:
    def forgotten_in_s(key: str) -> float | None:
        found = store.read(key)
        return None if found is None or found.expiry is None else found.expiry - clock() / 1000

    return forgotten_in_s


class OneAtATime:
    """A lock around moto, which checks a condition and writes in two steps."""

    def __init__(self, transport: Transport) -> None:
        self.longest_try_s = transport.longest_try_s
        self._transport = transport
        self._lock = threading.Lock()

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        with self._lock:
            return self._transport(operation, request)


@contextlib.contextmanager
def dynamodb(client: Any, transport: Transport | None = None, *, one_at_a_time: bool = False) -> Iterator[Opener]:
    """Open DynamoDBStores over two tables of this run's own: emptied each time, and deleted in the end.

    Args:
        client: makes and reads the tables.
        transport: the stores' own; by default over the same client.
        one_at_a_time: whether requests wait for each other.
    """
    prefix = f"carride-test-{uuid.uuid4().hex[:12]}"
    tables = {f"{prefix}-records": "idempotencyKey", f"{prefix}-rides": "id"}
    transport = transport or BotocoreTransport(client, 1.5)
    if one_at_a_time:
        transport = OneAtATime(transport)

    @contextlib.contextmanager
    def opener(clock: Clock) -> Iterator[Backend]:
        for table, key in tables.items():
            for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
                for item in page["Items"]:
                    client.delete_item(TableName=table, Key={key: item[key]})
        yield _backend(client, transport, clock, *tables)

    try:
        create_tables(client, tables)
        for table in tables:
            client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 2})
        yield opener
    finally:
        for table in tables:
            with contextlib.suppress(client.exceptions.ResourceNotFoundException):
                client.delete_table(TableName=table)


def _backend(client: Any, transport: Transport, clock: Clock, records: str, rides: str) -> Backend:
    def item(table: str, key: str, value: str) -> Mapping[str, Any]:
        found = client.get_item(TableName=table, Key={key: {"S": value}}, ConsistentRead=True)
        attributes: Mapping[str, Any] = found.get("Item", {})
        return attributes

    def charges(ride: str) -> int:
        return int(item(rides, "id", ride).get("charges", {"N": "0"})["N"])

    def forgotten_in_s(key: str) -> float | None:
        ttl = item(records, "idempotencyKey", key).get("expiryTimestamp")
        return None if ttl is None else int(ttl["N"]) - clock() / 1000  # DynamoDB reads its TTL in epoch seconds

    return Backend(DynamoDBStore(records, transport=transport, clock=clock), clock, rides, charges, forgotten_in_s)


@contextlib.contextmanager
def open_valkey(client: Any, clock: Clock) -> Iterator[Backend]:
    """A ValkeyStore over an empty server."""
    client.flushall()

    def forgotten_in_s(key: str) -> float | None:
        left_ms = client.pttl(PREFIX + key)
        return None if left_ms == -1 else left_ms / 1000

    store = ValkeyStore(client, prefix=PREFIX, clock=clock)
    yield Backend(store, clock, "", lambda ride: 0, forgotten_in_s, keeps_times=False)
