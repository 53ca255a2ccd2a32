"""Compares the replicas of a stack's tables in two regions."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import batched
from typing import Final

from carride_idempotency import marshalling
from ops import tables
from ops.stack import OperatorError, StackRef
from ops.tables import Wire
from ops.text import counted

_AT_ONCE: Final = 8
"""BatchGetItem requests, each of which takes a round trip between the regions."""
_POLL_SECONDS: Final = 1.0


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

    The source must be fenced. Then the last write to each item there has arrived in the target, or
    a later write has replaced it, whatever the target writes meanwhile. Records of the idempotency
    table, which are most of all items, are compared only if they were written after ``since``;
    items of other tables do not carry the time of their last write. Reports how many items a table
    has before it is read. Returns the number of compared items.

    Raises:
        OperatorError: items have not been compared or have not arrived within ``patience`` seconds
            for all tables together.
    """
    deadline = clock() + patience
    compared = 0
    for output, table in sorted(source.outputs.items()):
        if not output.endswith("TableName"):
            continue
        client = source.client("dynamodb")
        described = client.describe_table(TableName=table)["Table"]
        names = [key["AttributeName"] for key in described["KeySchema"]]
        report(
            f"reading {table}: some {described['ItemCount']} items, {described['TableSizeBytes'] / 1e6:.0f} MB"
        )
        items = tables.scan(client, table)
        if output == "IdempotencyTableName":
            since_ms = int(since.timestamp() * 1000)
            condition = "attribute_not_exists(updatedAt) OR updatedAt >= :since"
            items = tables.scan(client, table, condition, since=since_ms)
        for some in batched(items, _AT_ONCE * tables.MOST_KEYS, strict=False):
            if clock() > deadline:
                raise OperatorError(
                    f"{table} is not compared after {patience:g} s, with {counted(compared, 'item')} compared so far: "
                    "run it again with a longer --catches-up-in"
                )
            here = _by_key(some, names)
            keys = [{name: item[name] for name in names} for item in some]
            compared += len(keys)
            while keys := _differing(keys, here, _get(target, table, keys)):
                if clock() > deadline:
                    raise OperatorError(
                        f"{counted(len(keys), 'item')} of {table} had not arrived in {target.region} after "
                        f"{patience:g} s, and waited in {source.region}; run it again, or take --accept-duplicates"
                    )
                sleep(_POLL_SECONDS)
                here = _get(source, table, keys)
    return compared


def _differing(
    keys: Iterable[Wire], here: Mapping[str, object], there: Mapping[str, object]
) -> list[Wire]:
    return [key for key in keys if here.get(str(key)) != there.get(str(key))]


def _by_key(items: Iterable[Wire], names: Iterable[str]) -> dict[str, object]:
    """Return items, whose sets have no order, by the texts of their keys."""
    return {str({name: item[name] for name in names}): marshalling.values(item) for item in items}


def _get(stack: StackRef, table: str, keys: list[Wire]) -> dict[str, object]:
    read = partial(tables.get, stack.client("dynamodb"), table)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = pool.map(
            lambda some: list(read(some)), batched(keys, tables.MOST_KEYS, strict=False)
        )
        return _by_key((item for part in parts for item in part), keys[0])
