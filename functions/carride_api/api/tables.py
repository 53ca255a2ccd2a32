"""The API's reads: booked rides and the read model. `carride.bookings` has its writes."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from api.problems import Kind, refused
from carride.bookings import OWNER_CUSTOMER, Booking, owner_customer
from carride.dynamodb import DynamoDB
from carride.history import TimelineEntry, latest_in, merged, of_ride, timeline_of
from carride.overdue import sortable_time
from carride.ride import OrderID, Ride
from carride_idempotency import marshalling

type _Position = tuple[Annotated[datetime, Meta(tz=True)], OrderID]
"""The end of a page: bookedAt and orderID, without the customer, so that a token reveals no other
customer's rides."""

_INDEXES: Final = {"customerID": "byCustomer", OWNER_CUSTOMER: "byOwner"}
"""The indexes of BookingTable by their partition key; both sort by bookedAt and hold keys alone."""


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

        Page, token and what is read depend on the rides of ``owner`` alone. None stands for all
        owners. ``token`` is ``next`` of the previous page.

        Raises:
            HttpProblemError: 400: the token is not from an earlier page.
        """
        asked = limit + 1  # one more, to know whether there is a next page
        if owner is None:
            rides = self._keys_of_rides("customerID", customer_id, asked, token)
        else:
            partition = owner_customer(owner, customer_id)
            rides = self._keys_of_rides(OWNER_CUSTOMER, partition, asked, token)
        page = rides[:limit]
        following = _token(page[-1]) if len(rides) > limit else None
        return Page(rides=tuple(self._bookings(page, customer_id)), next=following)

    def _keys_of_rides(
        self, attribute: str, partition: str, limit: int, token: str | None
    ) -> Sequence[Mapping[str, Any]]:
        """Return bookedAt and orderID of up to ``limit`` rides of an index, newest first."""
        request: dict[str, Any] = {
            "TableName": self.bookings,
            "IndexName": _INDEXES[attribute],
            "KeyConditionExpression": f"{attribute} = :partition",
            "ExpressionAttributeValues": {":partition": {"S": partition}},
            "ScanIndexForward": False,
            "Limit": limit,
        }
        if token is not None:
            booked_at, order_id = _position(token)
            start = {attribute: partition, "bookedAt": booked_at, "orderID": order_id}
            request["ExclusiveStartKey"] = marshalling.item(start)
        page = next(self.client.query(**request))
        return [marshalling.values(item) for item in page["Items"]]

    def _bookings(self, rides: Sequence[Mapping[str, Any]], customer_id: str) -> Iterator[Booking]:
        """Yield the rides under these keys that are still there, and still the customer's."""
        if not rides:
            return
        keys = [{"orderID": {"S": ride["orderID"]}} for ride in rides]
        wanted = {self.bookings: {"Keys": keys, "ConsistentRead": True}}
        found: dict[str, Booking] = {}
        for answer in self.client.batch_get_item(RequestItems=wanted):
            for item in answer["Responses"][self.bookings]:
                booking = Booking.from_item(item)
                found[booking.order_id] = booking
        for ride in rides:
            booking_now = found.get(ride["orderID"])
            if booking_now is not None and booking_now.customer_id == customer_id:
                yield booking_now

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


def _token(last: Mapping[str, Any]) -> str:
    position = msgspec.json.encode((datetime.fromisoformat(last["bookedAt"]), last["orderID"]))
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _position(token: str) -> tuple[str, str]:
    padding = "=" * (-len(token) % 4)
    try:
        content = base64.b64decode(token + padding, altchars=b"-_", validate=True)
        booked_at, order_id = msgspec.json.decode(content, type=_Position)
        return sortable_time(booked_at), order_id
    except (ValueError, OverflowError) as error:
        # Not base64, not JSON, not a position, or a time out of range.
        detail = "not a token from an earlier page"
        raise refused(Kind.INVALID_REQUEST, detail, field="next") from error
