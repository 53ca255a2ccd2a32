"""Since when a ride needs something, and from when on that is too long. Pure: no I/O, no clock.

An item of a ride has ``openSince`` and ``openShard`` exactly while the ride still needs something from the item's
owner. The index `INDEX` over both holds open rides only. The shards spread them over a few partitions. An item that
the reconciler has dealt with moves to a shard of `Stage.RECONCILED`, and stays there until the ride is settled.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from zlib import crc32

LIMIT: Final = timedelta(hours=4)
"""For how long a ride may need something."""
INDEX: Final = "byOpenSince"
SHARDS: Final = 4


class Stage(StrEnum):
    """What has been done about an open ride."""

    OPEN = "open"
    RECONCILED = "reconciled"
    """The reconciler has dealt with it once, and does not do so again."""


def is_overdue(open_since: str, now: datetime, limit: timedelta = LIMIT) -> bool:
    """Say whether a ride has needed something for too long.

    Args:
        open_since: the item's ``openSince``, in ISO 8601 with a time zone.
        now: with a time zone.
        limit: how long is not too long.
    """
    return datetime.fromisoformat(open_since) <= now - limit


def opened(order_id: str, now: datetime) -> dict[str, str]:
    """Return the attributes of an item whose ride needs something from now on."""
    return {"openSince": text(now), "openShard": shard(order_id)}


def shard(order_id: str, stage: Stage = Stage.OPEN) -> str:
    """Return the partition of the index that a ride belongs to."""
    return f"{stage}-{crc32(order_id.encode()) % SHARDS}"


def shards(stage: Stage) -> list[str]:
    """Return the partitions of the index for a stage."""
    return [f"{stage}-{number}" for number in range(SHARDS)]


def text(time: datetime) -> str:
    """Return a time as text that sorts, whatever its time zone."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
