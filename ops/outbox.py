"""The outbox of another region: the events that its pipe may not have published."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from carride.entry import BusEntry
from ops.site import Site

_MARGIN: Final = timedelta(minutes=1)
_SECONDS: Final = "%Y-%m-%dT%H:%M:%S"
"""How the times of the outbox begin: they can be compared as texts."""
_TEXTS: Final = (
    "id", "source", "type", "subject", "time", "dataschema", "idempotencyid", "sequence", "partitionkey",
    "correlationid", "causationid", "traceparent", "expirytime",
)  # fmt: skip


def written(site: Site, region: str, since: datetime, until: datetime) -> Iterator[BusEntry]:
    """Yield what was written to the outbox in a region, as the pipe of that region would publish it.

    Args:
        site: whose replica of the table is read.
        region: where it was written.
        since: when at the earliest.
        until: when at the latest. An event happened just before it was written: a little more is yielded at both ends.
    """
    request = {
        "TableName": site.outputs["OutboxTableName"],
        "ConsistentRead": True,
        "FilterExpression": "#region = :region AND #time BETWEEN :since AND :until",
        "ExpressionAttributeNames": {"#region": "region", "#time": "time"},
        "ExpressionAttributeValues": {
            ":region": {"S": region},
            ":since": {"S": f"{since.astimezone(UTC) - _MARGIN:{_SECONDS}}"},
            ":until": {"S": f"{until.astimezone(UTC) + _MARGIN:{_SECONDS}}"},
        },
    }
    for page in site.client("dynamodb").get_paginator("scan").paginate(**request):
        for item in page["Items"]:
            yield entry_of(item)


def entry_of(item: dict[str, dict[str, Any]]) -> BusEntry:
    """Return the entry that the template's pipe makes of an item of the outbox."""
    texts = {name: item[name]["S"] for name in _TEXTS}
    detail = {
        "specversion": "1.0",
        **texts,
        "datacontenttype": "application/json",
        "data_base64": base64.b64encode(item["data"]["B"]).decode(),
    }
    return BusEntry(
        source=texts["source"], detail=json.dumps(detail), time=datetime.fromisoformat(texts["time"]).astimezone(UTC)
    )
