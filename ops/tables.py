"""Reads tables in DynamoDB's wire format: items by their keys, and items that meet a condition."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from carride_idempotency import marshalling

MOST_KEYS: Final = 100
"""Keys of one BatchGetItem."""

type Wire = dict[str, dict[str, Any]]
"""A key or an item."""


def get(dynamodb: Any, table: str, keys: Iterable[Wire]) -> Iterator[Wire]:
    """Yield the items that exist under some keys."""
    left = list(keys)
    while left:
        wanted, left = left[:MOST_KEYS], left[MOST_KEYS:]
        answer = dynamodb.batch_get_item(
            RequestItems={table: {"Keys": wanted, "ConsistentRead": True}}
        )
        yield from answer["Responses"].get(table, [])
        left += answer.get("UnprocessedKeys", {}).get(table, {"Keys": []})["Keys"]


def scan(dynamodb: Any, table: str, condition: str = "", **given: object) -> Iterator[Wire]:
    """Yield the items that meet a condition, in which ``#name`` is an attribute, and ``:name`` a given value."""
    filters: dict[str, Any] = {"FilterExpression": condition} if condition else {}
    if names := re.findall(r"#\w+", condition):
        filters["ExpressionAttributeNames"] = {name: name[1:] for name in names}
    if given:
        filters["ExpressionAttributeValues"] = {
            f":{name}": marshalling.attribute(each) for name, each in given.items()
        }
    for page in dynamodb.get_paginator("scan").paginate(
        TableName=table, ConsistentRead=True, **filters
    ):
        yield from page["Items"]
