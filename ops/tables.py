"""Reads tables in DynamoDB's wire format: items by their keys, and items that meet a condition."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from carride_idempotency import marshalling
from ops.stack import StackRef

MOST_KEYS: Final = 100
"""Keys of one BatchGetItem."""

type Wire = dict[str, dict[str, Any]]
"""A key or an item."""


def get(dynamodb: Any, table: str, keys: Iterable[Wire]) -> Iterator[Wire]:
    """Yield the items that exist under some keys."""
    left = list(keys)
    while left:
        asked = left[:MOST_KEYS]
        left = left[MOST_KEYS:]
        request = {table: {"Keys": asked, "ConsistentRead": True}}
        answer = dynamodb.batch_get_item(RequestItems=request)
        yield from answer["Responses"].get(table, [])
        unprocessed = answer.get("UnprocessedKeys", {})
        if table in unprocessed:
            left += unprocessed[table]["Keys"]


def under(stack: StackRef, table: str, name: str, keys: Iterable[str]) -> Iterator[Wire]:
    """Yield the items that exist under keys of a table, which is given by its logical id.

    ``name`` is the attribute that is the table's partition key.
    """
    wire = [{name: {"S": key}} for key in sorted(keys)]
    return get(stack.client("dynamodb"), stack.outputs[f"{table}Name"], wire)


def get_each(dynamodb: Any, keys: Mapping[str, Wire]) -> dict[str, Wire]:
    """Return the item that each table has under its key, by the table's name, in one request."""
    left = {table: {"Keys": [key], "ConsistentRead": True} for table, key in keys.items()}
    found = dict[str, Wire]()
    while left:
        answer = dynamodb.batch_get_item(RequestItems=left)
        for table, items in answer["Responses"].items():
            if items:
                found[table] = items[0]
        left = answer.get("UnprocessedKeys", {})
    return found


def in_index(dynamodb: Any, table: str, index: str) -> Iterator[Wire]:
    """Yield every item of an index, which may lack the latest writes."""
    for page in dynamodb.get_paginator("scan").paginate(TableName=table, IndexName=index):
        yield from page["Items"]


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
