"""Whether the replicas of the stack's tables in one region have what those in another one hold."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import batched
from typing import Any, Final

from ops.site import OperatorError, Site

_MOST_KEYS: Final = 100
"""Of a BatchGetItem."""
_POLL_SECONDS: Final = 1.0
_SETS: Final = ("SS", "NS", "BS")

type Item = dict[str, dict[str, Any]]


def wait_until_caught_up(
    source: Site,
    target: Site,
    *,
    patience: float,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until each item that the source's replicas hold has been the same in both regions at some moment.

    The source has to be fenced: then the item's last write there has arrived, or a later one has replaced it, whatever
    the target writes meanwhile.

    Args:
        source: the region that no longer writes.
        target: the region that may.
        patience: seconds to wait for all tables together.
        monotonic: seconds.
        sleep: waits, in seconds.

    Returns:
        How many items were compared.

    Raises:
        OperatorError: items have not arrived.
    """
    deadline = monotonic() + patience
    compared = 0
    for table in _tables(source):
        keys, behind = _compare(source, target, table)
        compared += keys
        while behind:
            if monotonic() > deadline:
                raise OperatorError(
                    f"{len(behind)} items of {table} have not arrived in {target.region} after {patience:g} s: they "
                    f"wait in {source.region}; run it again, or take --accept-duplicates"
                )
            sleep(_POLL_SECONDS)
            behind = _differing(source, target, table, behind)
    return compared


def _tables(site: Site) -> list[str]:
    return sorted(value for name, value in site.outputs.items() if name.endswith("TableName"))


def _compare(source: Site, target: Site, table: str) -> tuple[int, list[Item]]:
    """Return how many items a table has, and the keys of those that are not the same in both regions."""
    schema = source.client("dynamodb").describe_table(TableName=table)["Table"]["KeySchema"]
    names = [key["AttributeName"] for key in schema]
    counted, behind = 0, []
    for page in source.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        here = {_text({name: item[name] for name in names}): item for item in page["Items"]}
        keys = [{name: item[name] for name in names} for item in page["Items"]]
        there = {_text({name: item[name] for name in names}): item for item in _get(target, table, keys)}
        counted += len(keys)
        behind += [key for key in keys if _text(here[_text(key)]) != _text(there.get(_text(key)))]
    return counted, behind


def _differing(source: Site, target: Site, table: str, keys: Sequence[Item]) -> list[Item]:
    names = list(keys[0])
    here, there = (
        {_text({name: item[name] for name in names}): _text(item) for item in _get(site, table, keys)}
        for site in (source, target)
    )
    return [key for key in keys if here.get(_text(key)) != there.get(_text(key))]


def _get(site: Site, table: str, keys: Sequence[Item]) -> Iterator[Item]:
    for some in batched(keys, _MOST_KEYS, strict=False):
        request: dict[str, Any] = {table: {"Keys": list(some), "ConsistentRead": True}}
        while request:
            answer = site.client("dynamodb").batch_get_item(RequestItems=request)
            yield from answer["Responses"].get(table, [])
            request = answer.get("UnprocessedKeys", {})


def _text(item: Item | None) -> str | None:
    """Return an item, or a key, in a form in which equal ones are equal: sets have no order."""
    return None if item is None else repr(_ordered(item))


def _ordered(value: Any) -> Any:
    match value:
        case dict():
            return [
                (name, sorted(inner) if name in _SETS and isinstance(inner, list) else _ordered(inner))
                for name, inner in sorted(value.items())
            ]
        case list():
            return [_ordered(inner) for inner in value]
        case _:
            return value
