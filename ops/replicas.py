"""Compares the replicas of a stack's tables in two regions."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import batched
from typing import Final

from idempotency import marshalling
from ops import tables
from ops.stack import OperatorError, StackRef
from ops.tables import Wire
from ops.words import counted

_AT_ONCE: Final = 8
"""BatchGetItem requests, each of which takes a round trip between the regions."""
_POLL_SECONDS: Final = 1.0

type Items = Mapping[str, Wire]
"""Items by their key's text."""


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
    """Wait until each item of the source's replicas has been the same in both regions at some moment.

    The source must be fenced. Then the last write to each item there has arrived in the target, or a later write has
    replaced it, whatever the target writes meanwhile. Records of the idempotency table, which are most of all items,
    are compared only if they were written after ``since``; items of other tables do not carry the time of their last
    write. Reports how many items a table has before it is read. Returns the number of compared items.

    Raises:
        OperatorError: items have not been compared or have not arrived within ``patience`` seconds for all tables
            together.
    """
    deadline = clock() + patience
    compared = 0
    for output, table in sorted(source.outputs.items()):
        if not output.endswith("TableName"):
            continue
        client = source.client("dynamodb")
        described = client.describe_table(TableName=table)["Table"]
        names = [key["AttributeName"] for key in described["KeySchema"]]
        report(f"reading {table}: some {described['ItemCount']} items, {described['TableSizeBytes'] / 1e6:.0f} MB")
        items = tables.scan(client, table)
        if output == "IdempotencyTableName":
            since_ms = int(since.timestamp() * 1000)
            condition = "attribute_not_exists(updatedAt) OR updatedAt >= :since"
            items = tables.scan(client, table, condition, since=since_ms)
        behind: list[Wire] = []
        for some in batched(items, _AT_ONCE * tables.MOST_KEYS, strict=False):
            if clock() > deadline:
                raise OperatorError(
                    f"{table} is not compared after {patience:g} s, with {counted(compared, 'item')} compared so far: "
                    "run it again with a longer --catches-up-in"
                )
            keys = [{name: item[name] for name in names} for item in some]
            compared += len(keys)
            behind += _differing(keys, _by_key(some, names), _get(target, table, keys))
        while behind:
            if clock() > deadline:
                raise OperatorError(
                    f"{counted(len(behind), 'item')} of {table} had not arrived in {target.region} after "
                    f"{patience:g} s, and waited in {source.region}; run it again, or take --accept-duplicates"
                )
            sleep(_POLL_SECONDS)
            behind = _differing(behind, _get(source, table, behind), _get(target, table, behind))
    return compared


def _differing(keys: Iterable[Wire], here: Items, there: Items) -> list[Wire]:
    """Return the keys of the items that differ. Sets are compared without regard to order."""
    return [key for key in keys if _values(here.get(str(key))) != _values(there.get(str(key)))]


def _values(item: Wire | None) -> object:
    return None if item is None else marshalling.values(item)


def _by_key(items: Iterable[Wire], names: Iterable[str]) -> dict[str, Wire]:
    return {str({name: item[name] for name in names}): item for item in items}


def _get(stack: StackRef, table: str, keys: list[Wire]) -> dict[str, Wire]:
    client, names = stack.client("dynamodb"), list(keys[0]) if keys else []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = pool.map(
            lambda some: list(tables.get(client, table, some)), batched(keys, tables.MOST_KEYS, strict=False)
        )
        return _by_key((item for part in parts for item in part), names)
