"""How long a ride has needed something, and when that is too long. Pure: no I/O, no clock.

An item of a ride has ``openSince`` and ``openShard`` exactly while the ride needs something from
the item's owner. The index `INDEX` over both holds only open rides, in partitions (shards). An item
that the reconciler has dealt with stays in a shard of `Stage.RECONCILED` until the ride is settled.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from zlib import crc32

LIMIT: Final = timedelta(hours=4)  # how long a ride may need something
INDEX: Final = "byOpenSince"
SHARDS: Final = 24  # each takes 1,000 changes a second, and a ride makes two


class Stage(StrEnum):
    """Whether the reconciler has dealt with an open ride."""

    OPEN = "open"
    RECONCILED = "reconciled"  # the reconciler does not deal with it again


def is_overdue(open_since: str, now: datetime, limit: timedelta = LIMIT) -> bool:
    """Say whether a ride has needed something for too long, since an ISO 8601 time with a zone."""
    return datetime.fromisoformat(open_since) <= now - limit


def opened(order_id: str, now: datetime) -> dict[str, str]:
    """Return the attributes of an item whose ride needs something from now on."""
    return {"openSince": sortable_time(now), "openShard": shard(order_id)}


def shard(order_id: str, stage: Stage = Stage.OPEN) -> str:
    """Return the partition of the index that a ride belongs to."""
    return f"{stage}-{crc32(order_id.encode()) % SHARDS}"


def shards(stage: Stage) -> list[str]:
    """Return the partitions of the index for a stage."""
    return [f"{stage}-{number}" for number in range(SHARDS)]


def sortable_time(time: datetime) -> str:
    """Return a time in UTC, as text that sorts."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
