"""The API's reads: booked rides and the read model. `carride.bookings` has its writes."""

import base64
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from api.problems import Kind, refused
from carride.bookings import Booking
from carride.dynamodb import DynamoDB
from carride.history import TimelineEntry, latest_in, merged, of_ride, timeline_of
from carride.overdue import sortable_time
from carride.ride import OrderID, Ride
from carride_idempotency import marshalling

type _Position = tuple[Annotated[datetime, Meta(tz=True)], OrderID]
"""The end of a page: bookedAt and orderID, without the customer, so that a token reveals no other
customer's rides."""


class Page(Struct, frozen=True, kw_only=True):
    """Some of a customer's rides."""

    rides: Annotated[
        tuple[Booking, ...], Meta(description="Newest first; only rides that the caller may see.")
    ]
    next: Annotated[
        str | None, Meta(description="The token of the next page; null on the last page.")
    ]


class RideView(Ride, frozen=True, kw_only=True):
    """A ride in the read model, after its latest event."""

    timeline: Annotated[tuple[TimelineEntry, ...], Meta(description="What happened, in order.")]


class Tables(NamedTuple):
    """The tables by name, and a client for them."""

    client: DynamoDB
    bookings: str  # BookingTable, which the API writes
    history: str  # RideHistoryTable, whose records keep the timelines

    def find_booking(self, order_id: str) -> Booking | None:
        """Return a booked ride, read consistently."""
        answer = self.client.get_item(
            TableName=self.bookings, Key={"orderID": {"S": order_id}}, ConsistentRead=True
        )
        return Booking.from_item(answer["Item"]) if "Item" in answer else None

    def list_bookings(
        self, customer_id: str, owner: str | None, limit: int, token: str | None
    ) -> Page:
        """Return a page of a customer's rides, newest first. The newest rides may still be missing.

        Page and token depend on the rides of ``owner`` alone; None stands for all owners. ``token``
        is ``next`` of the previous page; HttpProblemError if it is not.
        """
        request: dict[str, Any] = {
            "TableName": self.bookings,
            "IndexName": "byCustomer",  # then bookedAt
            "KeyConditionExpression": "customerID = :customer",
            "ExpressionAttributeValues": {":customer": {"S": customer_id}},
            "ScanIndexForward": False,
        }
        if owner is None:
            request["Limit"] = limit + 1  # one more, to know whether there is a next page
        else:
            request["FilterExpression"] = "#owner = :owner"
            request["ExpressionAttributeNames"] = {"#owner": "owner"}
            request["ExpressionAttributeValues"][":owner"] = {"S": owner}
        if token is not None:
            booked_at, order_id = _position(token)
            start = {"customerID": customer_id, "bookedAt": booked_at, "orderID": order_id}
            request["ExclusiveStartKey"] = marshalling.item(start)
        rides: list[Booking] = []
        for answer in self.client.query(**request):
            rides += map(Booking.from_item, answer["Items"])
            if len(rides) > limit:
                break
        page = tuple(rides[:limit])
        return Page(rides=page, next=_token(page[-1]) if len(rides) > limit else None)

    def find_ride(self, order_id: str) -> RideView | None:
        """Return a ride from the read model, after the events that have arrived."""
        pages = self.client.query(**of_ride(self.history, order_id))
        found = merged(marshalling.values(item) for page in pages for item in page["Items"])
        if not found:
            return None
        timeline = timeline_of(found[0])
        # RideView ignores what the fact adds, and has defaults for fields that are newer than the
        # event.
        return msgspec.convert({**latest_in(timeline), "timeline": timeline}, RideView)


def _token(last: Booking) -> str:
    position = msgspec.json.encode((datetime.fromisoformat(last.booked_at), last.order_id))
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _position(token: str) -> tuple[str, str]:
    try:
        content = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        booked_at, order_id = msgspec.json.decode(content, type=_Position)
        return sortable_time(booked_at), order_id
    except (
        ValueError,
        OverflowError,
    ) as error:  # not base64, not JSON, not a position, or a time out of range
        raise refused(
            Kind.INVALID_REQUEST, "not a token from an earlier page", field="next"
        ) from error
