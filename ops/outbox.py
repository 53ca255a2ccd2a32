"""Reads the events of a region's outbox that its pipe may not have published."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from carride.entry import Entry
from ops.stack import StackRef

_MARGIN: Final = timedelta(minutes=1)
_SECONDS: Final = "%Y-%m-%dT%H:%M:%S"
"""How the times of the outbox begin. They are compared as texts."""
_TEXTS: Final = (
    "id", "source", "type", "subject", "time", "dataschema", "idempotencyid", "sequence", "partitionkey",
    "correlationid", "causationid", "traceparent", "expirytime",
)  # fmt: skip


def written(stack: StackRef, region: str, since: datetime, until: datetime) -> Iterator[Entry]:
    """Yield what a region wrote to its outbox, in the form in which its pipe publishes it.

    Args:
        stack: the stack whose replica of the table is read.
        region: the region that wrote it.
        since: earliest time.
        until: latest time. An event happens shortly before it is written, so both ends are extended by a minute.
    """
    request = {
        "TableName": stack.outputs["OutboxTableName"],
        "ConsistentRead": True,
        "FilterExpression": "#region = :region AND #time BETWEEN :since AND :until",
        "ExpressionAttributeNames": {"#region": "region", "#time": "time"},
        "ExpressionAttributeValues": {
            ":region": {"S": region},
            ":since": {"S": f"{since.astimezone(UTC) - _MARGIN:{_SECONDS}}"},
            ":until": {"S": f"{until.astimezone(UTC) + _MARGIN:{_SECONDS}}"},
        },
    }
    for page in stack.client("dynamodb").get_paginator("scan").paginate(**request):
        yield from map(entry_of, page["Items"])


def entry_of(item: dict[str, dict[str, Any]]) -> Entry:
    """Return the entry that the template's pipe makes of an item of the outbox."""
    texts = {name: item[name]["S"] for name in _TEXTS}
    detail = {
        "specversion": "1.0",
        **texts,
        "datacontenttype": "application/json",
        "data_base64": base64.b64encode(item["data"]["B"]).decode(),
    }
    time = datetime.fromisoformat(texts["time"]).astimezone(UTC)
    return Entry(source=texts["source"], detail=json.dumps(detail), time=time)
