"""One ride's facts and events, and tables, for tests."""

from typing import Any

from idempotency import marshalling
from tests.carride.rides import NOW, Life
from tests.carride.rides import event as event_of

__all__ = ["NOW", "Life", "create_table", "event_of", "items"]


def create_table(client: Any, name: str, *keys: str, **indexes: str) -> None:
    """Create an empty table whose partition key, and sort key, are strings; and indexes by their partition keys."""

    def schema(*keys: str) -> list[dict[str, str]]:
        return [{"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)]

    made = [
        {"IndexName": index, "KeySchema": schema(key), "Projection": {"ProjectionType": "ALL"}}
        for index, key in indexes.items()
    ]
    client.create_table(
        TableName=name,
        KeySchema=schema(*keys),
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in (*keys, *indexes.values())],
        BillingMode="PAY_PER_REQUEST",
        **({"GlobalSecondaryIndexes": made} if made else {}),
    )


def items(client: Any, table: str) -> list[dict[str, Any]]:
    """Return everything that a table holds, as Python values."""
    return [marshalling.values(item) for item in client.scan(TableName=table)["Items"]]
