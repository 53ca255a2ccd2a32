"""The tables behind the API: the rides as it books them, and the read model that it answers from.

Reads only. Writes are effects, which the idempotency layer commits in one transaction.
"""

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from carride.bookings import Booking
from carride.history import entries_in
from carride.overdue import text
from carride.ride import OrderID, Ride
from idempotency import marshalling

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BY_CUSTOMER: Final = "byCustomer"
"""The index of BookingTable by customerID and bookedAt."""


class Page(Struct, frozen=True, kw_only=True):
    """Some of a customer's rides."""

    rides: Annotated[tuple[Booking, ...], Meta(description="The newest first, those alone that the caller may see.")]
    next: Annotated[str | None, Meta(description="Asks for the page behind this one; null at the end.")]


class Happening(Struct, frozen=True, kw_only=True):
    """Something that happened to a ride."""

    sequence: Annotated[int, Meta(description="The ride's version that it belongs to.")]
    type: Annotated[str, Meta(description="What happened: the type of the event.")]
    time: Annotated[str, Meta(description="When, in ISO 8601.")]
    data: Annotated[Mapping[str, Any], Meta(description="The event's data.")]


class History(Ride, frozen=True, kw_only=True):
    """A ride as the read model tells it: as it is after the latest event, whatever order the events arrived in."""

    timeline: Annotated[tuple[Happening, ...], Meta(description="What happened, in order.")]


class TokenError(ValueError):
    """Raised for a page token that `Bookings.of_customer` never made."""


class _Position(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a page ends. Without the customer: a token can never lead into another customer's rides."""

    booked_at: Annotated[datetime, Meta(tz=True)]
    order_id: OrderID


class Bookings:
    """The write model: BookingTable.

    Args:
        client: to DynamoDB.
        table: the table's name.
    """

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def find(self, order_id: str) -> Booking | None:
        """Return the ride as it is now: a consistent read."""
        answer = self._client.get_item(TableName=self._table, Key={"orderID": {"S": order_id}}, ConsistentRead=True)
        return Booking.read(answer["Item"]) if "Item" in answer else None

    def of_customer(self, customer_id: str, limit: int, token: str | None, visible: Callable[[Booking], bool]) -> Page:
        """Return a page of a customer's rides, the newest first; a ride booked just now may be missing yet.

        Args:
            customer_id: the customer.
            limit: how many rides to read; those that are not visible leave the page shorter.
            token: ``next`` of the page before.
            visible: whether a ride is shown.

        Raises:
            TokenError: ``token`` is none of an earlier page.
        """
        request: dict[str, Any] = {
            "TableName": self._table,
            "IndexName": BY_CUSTOMER,
            "KeyConditionExpression": "customerID = :customer",
            "ExpressionAttributeValues": {":customer": {"S": customer_id}},
            "ScanIndexForward": False,
            "Limit": limit,
        }
        if token is not None:
            booked_at, order_id = _position(token)
            start = {"customerID": customer_id, "bookedAt": booked_at, "orderID": order_id}
            request["ExclusiveStartKey"] = marshalling.item(start)
        answer = self._client.query(**request)
        rides = tuple(map(Booking.read, answer["Items"]))
        more = "LastEvaluatedKey" in answer and rides
        return Page(rides=tuple(filter(visible, rides)), next=_token(rides[-1]) if more else None)


def _token(last: Booking) -> str:
    position = _Position(datetime.fromisoformat(last.booked_at), last.order_id)
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def _position(token: str) -> tuple[str, str]:
    try:
        content = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(content, type=_Position)
        return text(position.booked_at), position.order_id
    except (ValueError, OverflowError) as error:  # neither base64, nor JSON, nor a position, nor a time on Earth
        raise TokenError(token) from error


class Histories:
    """The read model: RideTable, which ride_history keeps.

    Args:
        client: to DynamoDB.
        table: the table's name.
    """

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def find(self, order_id: str) -> History | None:
        """Return what is known of a ride; events that are under way still will come later."""
        answer = self._client.get_item(TableName=self._table, Key={"orderID": {"S": order_id}})
        return _history(answer["Item"]) if "Item" in answer else None


def _history(item: Mapping[str, Any]) -> History:
    entries = entries_in(marshalling.values(item))
    latest = msgspec.convert(entries[-1].fact, Ride)
    timeline = tuple(Happening(sequence=e.sequence, type=e.type, time=e.time, data=e.fact) for e in entries)
    return History(**{field: getattr(latest, field) for field in Ride.__struct_fields__}, timeline=timeline)
