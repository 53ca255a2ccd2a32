"""Compares the replicas of a stack's tables in two regions."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import batched
from typing import Any, Final

from idempotency import marshalling
from ops.stack import OperatorError, StackRef
from ops.words import counted

_MOST_KEYS: Final = 100
"""Of a BatchGetItem request."""
_AT_ONCE: Final = 8
"""BatchGetItem requests, each of which takes a round trip between the regions."""
_POLL_SECONDS: Final = 1.0

type Wire = dict[str, dict[str, Any]]
"""A key or an item in DynamoDB's wire format."""
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
        tables = source.client("dynamodb")
        described = tables.describe_table(TableName=table)["Table"]
        names = [key["AttributeName"] for key in described["KeySchema"]]
        report(f"reading {table}: some {described['ItemCount']} items, {described['TableSizeBytes'] / 1e6:.0f} MB")
        request: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
        if output == "IdempotencyTableName":
            request["FilterExpression"] = "attribute_not_exists(updatedAt) OR updatedAt >= :since"
            request["ExpressionAttributeValues"] = {":since": {"N": str(int(since.timestamp() * 1000))}}
        behind: list[Wire] = []
        for page in tables.get_paginator("scan").paginate(**request):
            if clock() > deadline:
                raise OperatorError(
                    f"{table} is not compared after {patience:g} s, with {counted(compared, 'item')} compared so far: "
                    "run it again with a longer --catches-up-in"
                )
            keys = [{name: item[name] for name in names} for item in page["Items"]]
            compared += len(keys)
            behind += _differing(keys, _by_key(page["Items"], names), _get(target, table, keys))
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
    client = stack.client("dynamodb")

    def get(some: tuple[Wire, ...]) -> dict[str, Wire]:
        found: dict[str, Wire] = {}
        request: dict[str, Any] = {table: {"Keys": list(some), "ConsistentRead": True}}
        while request:
            answer = client.batch_get_item(RequestItems=request)
            found |= _by_key(answer["Responses"].get(table, []), list(some[0]))
            request = answer.get("UnprocessedKeys", {})
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = pool.map(get, batched(keys, _MOST_KEYS, strict=False))
        return {key: item for part in parts for key, item in part.items()}
