"""Compares the replicas of a stack's tables in two regions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import batched
from typing import Final

from carride_idempotency import marshalling
from ops import tables
from ops.audit.evidence import RECORD_TABLES
from ops.stack import OperatorError, StackRef
from ops.tables import Wire
from ops.text import counted

_AT_ONCE: Final = 8
"""BatchGetItem requests, each of which takes a round trip between the regions."""
_POLL_SECONDS: Final = 1.0
_ITEMS_OF_A_ROUND: Final = _AT_ONCE * tables.MOST_KEYS
_OF_RECORDS: Final = frozenset(f"{table}Name" for table in RECORD_TABLES)
"""The outputs of the tables whose items carry the time of their last write."""


def wait_until_caught_up(
    source: StackRef,
    target: StackRef,
    *,
    since: datetime,
    patience: float,
    report: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Wait until each item of the source was the same in both regions at some moment.

    The source must be fenced. Then the last write to each item there has arrived in the target, or
    a later write has replaced it, whatever the target writes meanwhile.

    Records, which are most of all items, are compared only if they were written after ``since``.
    Items of other tables do not carry the time of their last write. ``report`` hears how many items
    a table has before it is read. The result is the number of compared items.

    Raises:
        OperatorError: items have not been compared or have not arrived within ``patience`` seconds
            for all tables together.
    """
    deadline = clock() + patience
    compared = 0
    for output, table in sorted(source.outputs.items()):
        if not output.endswith("TableName"):
            continue
        key_names = _announce(source, table, report)
        changed_since = since if output in _OF_RECORDS else None
        items = _items(source, table, changed_since)
        for some in batched(items, _ITEMS_OF_A_ROUND, strict=False):
            if clock() > deadline:
                raise OperatorError(
                    f"{table} is not compared after {patience:g} s, with "
                    f"{counted(compared, 'item')} compared so far: "
                    "run it again with a longer --catches-up-in"
                )
            here = _by_key(some, key_names)
            compared += len(some)
            keys = [_key_of(item, key_names) for item in some]
            keys = _differing(keys, here, _get(target, table, keys))
            while keys:
                if clock() > deadline:
                    raise OperatorError(
                        f"{counted(len(keys), 'item')} of {table} had not arrived in "
                        f"{target.region} after {patience:g} s, and waited in {source.region}: "
                        "run it again, or take --accept-duplicates"
                    )
                sleep(_POLL_SECONDS)
                here = _get(source, table, keys)
                keys = _differing(keys, here, _get(target, table, keys))
    return compared


def _announce(source: StackRef, table: str, report: Callable[[str], None]) -> list[str]:
    """Report how large a table is, and return the names of its keys."""
    answer = source.client("dynamodb").describe_table(TableName=table)
    described = answer["Table"]
    count = described["ItemCount"]
    megabytes = described["TableSizeBytes"] / 1e6
    report(f"reading {table}: some {count} items, {megabytes:.0f} MB")
    keys = described["KeySchema"]
    return [key["AttributeName"] for key in keys]


def _items(source: StackRef, table: str, changed_since: datetime | None) -> Iterator[Wire]:
    """Read a table's items, or those that may have been written after a time."""
    client = source.client("dynamodb")
    if changed_since is None:
        return tables.scan(client, table)
    since_ms = int(changed_since.timestamp() * 1000)
    condition = "attribute_not_exists(updatedAt) OR updatedAt >= :since"
    return tables.scan(client, table, condition, since=since_ms)


def _differing(
    keys: Iterable[Wire], here: Mapping[str, object], there: Mapping[str, object]
) -> list[Wire]:
    return [key for key in keys if here.get(str(key)) != there.get(str(key))]


def _key_of(item: Wire, key_names: Iterable[str]) -> Wire:
    return {name: item[name] for name in key_names}


def _by_key(items: Iterable[Wire], key_names: Iterable[str]) -> dict[str, object]:
    """Return items, whose sets have no order, by the texts of their keys."""
    return {str(_key_of(item, key_names)): marshalling.values(item) for item in items}


def _get(stack: StackRef, table: str, keys: list[Wire]) -> dict[str, object]:
    client = stack.client("dynamodb")
    found = dict[str, object]()

    def read(some: tuple[Wire, ...]) -> list[Wire]:
        return list(tables.get(client, table, some))

    key_names = list(keys[0])
    batches = batched(keys, tables.MOST_KEYS, strict=False)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for items in pool.map(read, batches):
            found.update(_by_key(items, key_names))
    return found
