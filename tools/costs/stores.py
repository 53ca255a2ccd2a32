"""What a month of records costs in each store.

A consumer runs here over each store, and its requests are counted: what they write, and how large
the records are. Prices are those of `tools.costs.bill`. Amounts are in dollars, without free
tiers. The effects of the operations are not in them.
"""

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

import fakeredis

from carride_idempotency import (
    Consumer,
    DynamoDBStore,
    Operation,
    Policy,
    Store,
    Update,
    ValkeyStore,
)
from carride_idempotency.testing import FakeDynamoDB
from tools.costs.bill import HOURS, PRICES
from tools.costs.tables import filled, markdown

OPERATIONS: Final = 1e6
"""Of a month, for the bill of each store."""
WINDOW_DAYS: Final = 30
RESULT_BYTES: Final = 200
VALKEY_BYTES: Final = 1_168
"""What a completed record with such a result takes in a server's memory.

layers/idempotency/tests/stores/test_valkey_server.py asks a server for it.
"""
_ITEM_OVERHEAD: Final = 100  # that storage is billed for beside each item
_UNIT_BYTES: Final = 1_024
_GB: Final = 1e9
_LEAST_VALKEY_GB: Final = 0.1
_TABLE: Final = "Records"
_EFFECTS: Final = "Effects"
_DAYS: Final = HOURS / 24


class Use(NamedTuple):
    """What one operation takes of a store."""

    requests: int
    units: float
    """Write units of DynamoDB, or processing units of ElastiCache."""
    bytes: int
    """Of the record, until its window ends."""
    duplicate_units: float
    """What a further delivery takes."""


# ── What an operation takes ───────────────────────────────────────────────────────────────────────


class _Counted:
    """A transport that counts write units, by DynamoDB's rules.

    A write takes one unit for each KB of the item, and twice as many in a transaction. A refused
    write takes as many.
    """

    longest_try_s = 1.0

    def __init__(self) -> None:
        self.dynamodb = FakeDynamoDB({_EFFECTS: ("id",)})
        self.requests = 0
        self.units = 0.0

    def __call__(self, operation: str, request: Mapping[str, Any], /) -> Mapping[str, Any]:
        self.requests += 1
        if operation == "PutItem":
            self.units += _units(request["Item"])
        elif operation == "TransactWriteItems":
            # The effect is the application's own: only the record is counted.
            self.units += 2 * _units(request["TransactItems"][0]["Put"]["Item"])
        return self.dynamodb(operation, request)


def _units(item: Mapping[str, Any]) -> int:
    return math.ceil(size_of(item) / _UNIT_BYTES)


def size_of(item: Mapping[str, Any]) -> int:
    """Return the size of an item in bytes: names and values in UTF-8, numbers by their digits."""
    size = 0
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        size += len(name.encode())
        if kind == "N":
            size += math.ceil(len(value) / 2) + 1
        elif kind == "BOOL":
            size += 1
        else:
            size += len(str(value).encode())
    return size


def on_dynamodb(*, effects: bool = False, atomic: bool = False) -> Use:
    """Return what an operation takes of a table on demand."""
    counted = _Counted()
    store = DynamoDBStore(_TABLE, transport=counted)
    call = calls_over(store, effects=effects, atomic=atomic)
    call()
    first = (counted.requests, counted.units)
    call()
    (item,) = counted.dynamodb.all(_TABLE)
    return Use(*first, size_of(item) + _ITEM_OVERHEAD, counted.units - first[1])


class _CountedServer(fakeredis.FakeValkey):
    """A server in this process that counts processing units: one for each KB, at least one."""

    units: list[float]

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        execute: Callable[..., Any] = super().execute_command
        answer = execute(*arguments, **options)
        sent = sum(len(str(argument)) for argument in arguments)
        received = len(str(answer))
        units = (sent + received) / _UNIT_BYTES
        self.units.append(max(1.0, units))
        return answer


def on_valkey() -> Use:
    """Return what an operation takes of ElastiCache Serverless."""
    client = _CountedServer(socket_timeout=1)
    client.units = []
    call = calls_over(ValkeyStore(client))
    call()
    client.flushdb()  # the scripts stay
    client.units.clear()
    call()
    first = list(client.units)
    call()
    return Use(len(first), sum(first), VALKEY_BYTES, sum(client.units[len(first) :]))


def calls_over(
    store: Store, *, effects: bool = False, atomic: bool = False
) -> Callable[[], object]:
    """Return what calls an idempotent function over a store, with one key and one result."""
    # Records name their region, as in Lambda.
    consumer: Consumer[Any] = Consumer(
        "billing", store, policy=Policy(atomic=atomic), region="us-east-1"
    )

    @consumer.function(key="order_id")
    def charge(order_id: str, operation: Operation | None = None) -> str:
        if effects and operation is not None:
            update = Update(_EFFECTS, {"id": order_id}, "ADD n :one", values={":one": 1})
            operation.write(update)
        return "r" * RESULT_BYTES

    return lambda: charge("7f3c1c1e-6a51-5d0c-9f5e-1b8a4c2d3e4f")


# ── What a month costs ────────────────────────────────────────────────────────────────────────────


def dynamodb_dollars(use: Use, operations: float, window_days: float) -> float:
    """Return a month's bill of a table on demand."""
    written = operations * use.units / 1e6 * PRICES["write unit"].dollars
    stored_gb = operations / _DAYS * window_days * use.bytes / _GB
    return written + stored_gb * PRICES["table storage"].dollars


def valkey_dollars(use: Use, operations: float, window_days: float) -> float:
    """Return a month's bill of a server without nodes, which has a least size."""
    processed = operations * use.units / 1e6 * PRICES["processing unit"].dollars
    stored_gb = max(_LEAST_VALKEY_GB, operations / _DAYS * window_days * use.bytes / _GB)
    return processed + stored_gb * HOURS * PRICES["memory"].dollars


def rows() -> list[tuple[str, str, str, str, str]]:
    """Return a line for each way to keep records, with the bill for the operations of a month."""
    ways = {
        "DynamoDB, claim and completion": (on_dynamodb(), dynamodb_dollars),
        "DynamoDB, with effects in the transaction": (on_dynamodb(effects=True), dynamodb_dollars),
        "DynamoDB, `atomic`, with effects": (
            on_dynamodb(effects=True, atomic=True),
            dynamodb_dollars,
        ),
        "ElastiCache Serverless for Valkey": (on_valkey(), valkey_dollars),
    }
    found = []
    for name, (use, dollars) in ways.items():
        found.append(
            (
                name,
                str(use.requests),
                f"{use.units:.3g}",
                f"{use.bytes:,}",
                f"{dollars(use, OPERATIONS, WINDOW_DAYS):,.2f}",
            )
        )
    return found


_HEAD: Final = ("store", "requests", "units", "bytes of a record", "$ a month")


def lines() -> str:
    """Return what an operation takes of each store, and a month's bill, as a table."""
    return markdown(_HEAD, rows())


def compared() -> str:
    """Return the month's bills for some volumes and windows, as a table."""
    months = []
    dynamodb = on_dynamodb()
    valkey = on_valkey()
    for operations, days in product((1e6, 1e8), (1 / 24, 1, 30)):
        volume = f"{operations / 1e6:,.0f} million"
        of_dynamodb = f"{dynamodb_dollars(dynamodb, operations, days):,.2f}"
        of_valkey = f"{valkey_dollars(valkey, operations, days):,.2f}"
        window = f"{days * 24:.0f} h" if days < 1 else f"{days:.0f} d"
        months.append((volume, window, of_dynamodb, of_valkey))
    head = ("operations a month", "window", "DynamoDB on demand $", "ElastiCache Serverless $")
    return markdown(head, months)


def current(page: str) -> str:
    """Return layers/idempotency/docs/stores.md with the current tables."""
    uses = markdown(_HEAD[:4], [row[:4] for row in rows()])
    return filled(page, "stores", {"uses": uses, "months": compared()})
