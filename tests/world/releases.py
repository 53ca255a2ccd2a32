"""What an earlier release left: its tables, its open rides, and its events still on their way.

The samples are those of `tests/upgrades`. Their outbox is read by the pipe, so that each of their
events is published as that release wrote it, and meets the records that it has left.
"""

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from carride_idempotency import marshalling
from carride_idempotency.dead_letters import QUARANTINED, DeadLetter
from carride_idempotency.record import IN_PROGRESS
from carride_idempotency.record_items import item_of, record_of
from gateway_rules import Payment
from tests.upgrades.samples import Item, Samples, read
from tests.world.story import Tier

if TYPE_CHECKING:
    from tests.world.run import World

_TABLES: Final = {
    "idempotency": "IdempotencyTable",
    "history": "RideHistoryTable",
    "operator": "OperatorTable",
    "outbox": "OutboxTable",
    "cars": "CarTable",
    "bookings": "BookingTable",
    "assignments": "AssignmentTable",
    "payments": "PaymentTable",
}
"""The tables of the samples, and the template's."""
_OF_CUSTOMERS: Final = {"customer_a", "customer_b"}
"""Their rides met no failure. The others' have failed attempts, so that few faults are too many."""
_RESERVED: Final = "authorized"
_AGE_MS: Final = 60_000
"""How long ago the release ended."""


@cache
def samples(version: str) -> Samples:
    """Return what a release wrote."""
    return read(version)


def begins_ms(version: str) -> int:
    """Return when a story begins that goes on with what a release wrote."""
    return samples(version).clock_ms + _AGE_MS


def restore(world: "World") -> list[dict[str, Any]]:
    """Put what a release wrote into the tables; return its open rides, as the API has them.

    The gateway has their payments, and the dead-letter queue the letters of quarantined keys.
    """
    left = _Left(samples(world.story.release), is_whole=world.story.tier is Tier.HEAVY)
    tables = world.cloud.wiring.tables
    for name, items in left.tables.items():
        for item in items:
            if item.get("deadLettered"):
                item = _with_a_call(item)  # noqa: PLW2901 - the same record
            world.cloud.dynamodb.put_item(TableName=tables[_TABLES[name]].name, Item=item)
    for payment in left.payments():
        world.gateway.books.remember(payment)
    for letter in left.letters():
        world.queues.send("PaymentDlq", letter.body())
    world.cloud.use("records and events of the last release")
    return [ride for ride in left.bookings.values() if ride["status"] == "accepted"]


def _with_a_call(item: Item) -> Item:
    """Return a record as a handler leaves it that called another system and got no answer.

    No handler of the samples uses `Operation.external`; those of other teams do.
    """
    record = record_of(item)._replace(externals=json.dumps({"charge": None}))
    return item_of(record)


class _Left:
    """What is left of a release: all, or only the rides that met no failure."""

    def __init__(self, written: Samples, *, is_whole: bool) -> None:
        rides = _values(written.tables["bookings"])
        chosen = [ride for ride in rides if is_whole or ride["customerID"] in _OF_CUSTOMERS]
        self.bookings = {str(ride["orderID"]): ride for ride in chosen}
        self._rides = {each["id"]: each["subject"] for each in written.events}
        self.tables: dict[str, list[Item]] = {
            name: [item for item in items if self._is_left(item)]
            for name, items in written.tables.items()
        }

    def _is_left(self, item: Item) -> bool:
        """Return whether an item belongs to no ride, or to one that is left."""
        _, _, event = item.get("idempotencyKey", {}).get("S", "").rpartition("#")
        ride = self._rides.get(event)
        for name in ("orderID", "rideID", "subject"):
            ride = item.get(name, {}).get("S", ride)
        return ride is None or ride in self.bookings

    def payments(self) -> list[Payment]:
        """Return the gateway's payments: also of a run that was killed after its request."""
        found = [
            self._payment(each["orderID"], each["paymentID"], each["state"])
            for each in _values(self.tables["payments"])
            if "paymentID" in each
        ]
        for record in _values(self.tables["idempotency"]):
            ride = self._rides.get(record["idempotencyKey"].removeprefix("payment#"))
            if record["status"] == IN_PROGRESS and ride is not None:
                found.append(self._payment(ride, f"pay_{len(found) + 1:06d}", _RESERVED))
        return found

    def _payment(self, ride: str, name: str, status: str) -> Payment:
        booking = self.bookings[ride]
        amount = booking["price"]
        return Payment(
            id=name,
            reference=ride,
            customer=booking["customerID"],
            amount=amount,
            status=status,
            captures=[] if status == _RESERVED else [amount],
        )

    def letters(self) -> list[DeadLetter]:
        """Return the letters of quarantined keys."""
        return [
            DeadLetter(
                reason=QUARANTINED,
                message=each["error"],
                consumer="payment",
                key=each["idempotencyKey"],
                attempt=each["attempt"],
                event=json.loads(each["event"]),
            )
            for each in _values(self.tables["idempotency"])
            if each.get("deadLettered")
        ]


def _values(items: list[Item]) -> list[dict[str, Any]]:
    """Return items as Python values."""
    wire: Any = items
    return [marshalling.values(item) for item in wire]
