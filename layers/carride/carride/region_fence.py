"""The mark of a fenced region, by which the API knows that it must refuse writes.

It is an item of the region's OperatorTable. A setting of the function would not reach a
published version.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from carride.dynamodb import DynamoDB

KNOWN_FOR: Final = timedelta(seconds=5)
"""How old the answer of `RegionFence.is_up` may be: that long after a fence was put up, a write may
still begin."""


def mark(region: str) -> dict[str, dict[str, str]]:
    """Return the item that marks a region as fenced, which is its own key."""
    return {"id": {"S": f"fence#{region}"}}


class RegionFence:
    """Whether a region is fenced, read at most every five seconds."""

    def __init__(
        self, client: DynamoDB, table: str, region: str, now: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._table = table
        self._key = mark(region)
        self._now = now
        self._read: datetime | None = None
        self._up = False

    def is_up(self) -> bool:
        """Return whether the region is fenced; the transport's errors are raised."""
        now = self._now()
        if self._read is None or not self._read <= now < self._read + KNOWN_FOR:
            answer = self._client.get_item(
                TableName=self._table, Key=self._key, ConsistentRead=True
            )
            self._up = "Item" in answer
            self._read = now
        return self._up
