"""A booking that nobody can read, as after an import that went wrong.

It stays overdue, and the reconciler says so. It holds up no other ride.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from carride.overdue import LIMIT, Stage, opened
from carride_idempotency import marshalling

if TYPE_CHECKING:
    from tests.world.run import World

_RIDE: Final = "ride_that_nobody_can_read"
_KEY: Final = {"orderID": {"S": _RIDE}}


def put(world: "World") -> None:
    """Have such a booking from the beginning, long overdue."""
    since = datetime.now(UTC) - LIMIT - timedelta(hours=1)
    item = {"orderID": _RIDE, "status": "accepted", "version": 1, **opened(_RIDE, since)}
    world.cloud.dynamodb.put_item(TableName=_table(world), Item=marshalling.item(item))
    world.cloud.use("a booking that nobody can read")


def remove(world: "World") -> Iterator[str]:
    """Have an operator delete it in the end; yield what the reconciler should have done."""
    found = [each for each in world.table("BookingTable") if each["orderID"] == _RIDE]
    for each in found:
        if not str(each["openShard"]).startswith(Stage.RECONCILED):
            yield f"{_RIDE} is not set aside"
    if not world.cloud.counts["metric: reconciler Overdue"]:
        yield f"{_RIDE} stays overdue, and nobody was told"
    world.cloud.dynamodb.delete_item(TableName=_table(world), Key=_KEY)


def _table(world: "World") -> str:
    return world.cloud.wiring.tables["BookingTable"].name
