"""Open rides in DynamoDB: which are overdue, what is known of one, and that it was dealt with."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from carride.bookings import Booking
from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.history import merged, of_ride, timeline_of
from carride.overdue import INDEX, Stage, shard, shards, text
from idempotency import marshalling
from idempotency.stores.transport import ServiceError
from settlement import Seen

_PAGE: Final = 25


class Tables(NamedTuple):
    """The names of the tables."""

    bookings: str
    assignments: str
    payments: str
    records: str

    @property
    def of_the_saga(self) -> tuple[str, str]:
        """The tables of those who settle a ride."""
        return self.assignments, self.payments


class OpenRides:
    """Reads open rides, consistently but for the index.

    Args:
        client: to DynamoDB.
        tables: their names.
    """

    def __init__(self, client: DynamoDB, tables: Tables) -> None:
        self._client = client
        self._tables = tables

    def overdue(self, before: datetime) -> Iterator[str]:
        """Yield each ride that has needed something since ``before``, a page at a time."""
        found: set[str] = set()
        for table in (self._tables.bookings, *self._tables.of_the_saga):
            for order_id in self._in_index(table, Stage.OPEN, before):
                if order_id not in found:
                    found.add(order_id)
                    yield order_id

    def unsettled(self, before: datetime) -> int:
        """Return how many rides were dealt with, and need something still."""
        return len(
            {
                order_id
                for table in self._tables.of_the_saga
                for order_id in self._in_index(table, Stage.RECONCILED, before)
            }
        )

    def find(self, order_id: str) -> Seen:
        """Return what is known of a ride. Its latest events may be missing."""
        booking, assignment = (
            self._item(table, order_id) for table in (self._tables.bookings, self._tables.assignments)
        )
        pages = self._client.query(**of_ride(self._tables.records, order_id))
        ride = merged(marshalling.values(item) for page in pages for item in page["Items"])
        values = marshalling.values(booking)
        return Seen(
            booking=Booking.read(booking) if booking else None,
            booked_since=str(values.get("changedAt", values.get("openSince", values.get("bookedAt", "")))),
            past=timeline_of(ride[0]) if ride else (),
            had_car="carID" in assignment,
        )

    def set_aside(self, order_id: str) -> None:
        """Have a ride no longer found as overdue. Items that were closed meanwhile stay closed."""
        for table in self._tables.of_the_saga:
            try:
                self._client.update_item(
                    TableName=table,
                    Key={"orderID": {"S": order_id}},
                    UpdateExpression="SET openShard = :reconciled",
                    ConditionExpression="openShard = :open",
                    ExpressionAttributeValues={
                        ":open": {"S": shard(order_id)},
                        ":reconciled": {"S": shard(order_id, Stage.RECONCILED)},
                    },
                )
            except ServiceError as error:
                if error.code != CONDITION_FAILED:
                    raise

    def _in_index(self, table: str, stage: Stage, before: datetime) -> Iterator[str]:
        for each in shards(stage):
            pages = self._client.query(
                TableName=table,
                IndexName=INDEX,
                KeyConditionExpression="openShard = :shard AND openSince <= :before",
                ExpressionAttributeValues={":shard": {"S": each}, ":before": {"S": text(before)}},
                Limit=_PAGE,
            )
            yield from (item["orderID"]["S"] for page in pages for item in page["Items"])

    def _item(self, table: str, order_id: str) -> Mapping[str, Any]:
        answer = self._client.get_item(TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True)
        item: Mapping[str, Any] = answer.get("Item", {})
        return item
