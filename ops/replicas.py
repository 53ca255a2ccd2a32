"""Compares the replicas of a stack's tables in two regions."""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import batched
from typing import Any, Final

from idempotency import marshalling
from ops.stack import OperatorError, StackRef

_MOST_KEYS: Final = 100
"""Of a BatchGetItem request."""
_POLL_SECONDS: Final = 1.0

type Wire = dict[str, dict[str, Any]]
"""A key or an item in DynamoDB's wire format."""
type Items = Mapping[str, Wire]
"""Items by their key's text."""


def wait_until_caught_up(
    source: StackRef, target: StackRef, *, patience: float, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Wait until each item of the source's replicas has been the same in both regions at some moment.

    The source must be fenced. Then the last write to each item there has arrived in the target, or a later write has
    replaced it, whatever the target writes meanwhile. Returns the number of compared items.

    Raises:
        OperatorError: items have not arrived within ``patience`` seconds for all tables together.
    """
    deadline = time.monotonic() + patience
    compared = 0
    for table in sorted(value for name, value in source.outputs.items() if name.endswith("TableName")):
        tables = source.client("dynamodb")
        schema = tables.describe_table(TableName=table)["Table"]["KeySchema"]
        names = [key["AttributeName"] for key in schema]
        behind: list[Wire] = []
        for page in tables.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
            keys = [{name: item[name] for name in names} for item in page["Items"]]
            compared += len(keys)
            behind += _differing(keys, _by_key(page["Items"], names), _get(target, table, keys))
        while behind:
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"{len(behind)} items of {table} have not arrived in {target.region} after {patience:g} s: they "
                    f"wait in {source.region}; run it again, or take --accept-duplicates"
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
    found: dict[str, Wire] = {}
    for some in batched(keys, _MOST_KEYS, strict=False):
        request: dict[str, Any] = {table: {"Keys": list(some), "ConsistentRead": True}}
        while request:
            answer = stack.client("dynamodb").batch_get_item(RequestItems=request)
            found |= _by_key(answer["Responses"].get(table, []), list(some[0]))
            request = answer.get("UnprocessedKeys", {})
    return found
