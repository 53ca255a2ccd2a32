"""Reads tables in DynamoDB's wire format: items by their keys, and items that meet a condition."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import batched
from typing import Any, Final

from carride_idempotency import marshalling
from carride_idempotency.operators.reading import keys_in
from carride_idempotency.stores.retries import Retries, Verdict
from ops.stack import StackRef

MOST_KEYS: Final = 100
"""Keys of one BatchGetItem."""

type Wire = dict[str, dict[str, Any]]
"""A key or an item."""

_retries: Final = Retries()


class _NothingReadError(Exception):
    """Raised if an answer has left out every key."""


def get(dynamodb: Any, table: str, keys: Iterable[Wire]) -> Iterator[Wire]:
    """Yield the items that exist under some keys."""
    for some in batched(keys, MOST_KEYS, strict=False):
        asked = {table: {"Keys": [*some], "ConsistentRead": True}}
        for found in _answers(dynamodb, asked):
            yield from found.get(table, [])


def under(stack: StackRef, table: str, name: str, keys: Iterable[str]) -> Iterator[Wire]:
    """Yield the items that exist under keys of a table, which is given by its logical id.

    ``name`` is the attribute that is the table's partition key.
    """
    wire = [{name: {"S": key}} for key in sorted(keys)]
    return get(stack.client("dynamodb"), stack.outputs[f"{table}Name"], wire)


def get_each(dynamodb: Any, keys: Mapping[str, Wire]) -> dict[str, Wire]:
    """Return the item that each table has under its key, by the table's name, in one request."""
    asked = {table: {"Keys": [key], "ConsistentRead": True} for table, key in keys.items()}
    found = dict[str, Wire]()
    for answer in _answers(dynamodb, asked):
        for table, items in answer.items():
            if items:
                found[table] = items[0]
    return found


def _answers(dynamodb: Any, asked: Mapping[str, Any]) -> Iterator[Mapping[str, list[Wire]]]:
    """Yield the items of a BatchGetItem by table, until every key was read.

    An answer may leave keys out. Each one that has read a key starts the tries anew.

    Raises:
        StoreError: no key was read in any of the tries.
    """
    left = asked
    while left:
        answer = _retries.send(
            "BatchGetItem",
            partial(_part_of, dynamodb, left),
            _judge,
            longest_try_s=0.0,  # nothing limits when the last try ends
            until_ms=None,
        )
        yield answer["Responses"]
        left = answer.get("UnprocessedKeys", {})


def _part_of(dynamodb: Any, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer for at least one of the keys that are asked for."""
    answer: Mapping[str, Any] = dynamodb.batch_get_item(RequestItems=asked)
    if keys_in(answer.get("UnprocessedKeys", {})) == keys_in(asked):
        raise _NothingReadError("no key was read")
    return answer


def _judge(error: Exception) -> Verdict | None:
    """Return what an error says; None for those of the client, which tries again by itself."""
    return Verdict.PASSING if isinstance(error, _NothingReadError) else None


def scan(dynamodb: Any, table: str, condition: str = "", **given: object) -> Iterator[Wire]:
    """Yield the items that meet a condition.

    In it ``#name`` is an attribute, and ``:name`` a given value.
    """
    request: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
    names = re.findall(r"#\w+", condition)
    if condition:
        request["FilterExpression"] = condition
    if names:
        request["ExpressionAttributeNames"] = {name: name[1:] for name in names}
    if given:
        values = {f":{name}": marshalling.attribute(value) for name, value in given.items()}
        request["ExpressionAttributeValues"] = values
    for page in dynamodb.get_paginator("scan").paginate(**request):
        yield from page["Items"]
