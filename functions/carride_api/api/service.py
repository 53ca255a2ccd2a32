"""Answers requests. A ride, its event and the stored answer are one transaction.

A refusal by the ride is stored too, so that a retry gets the same answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from api import commands
from api.callers import refusal
from api.commands import AnyChange, TooManyChangesError
from api.problems import Kind, refused
from api.requests import ApiRequest, ListRides, ReadRide, unknown_ride
from api.tables import Tables
from carride import ride as rides
from carride.bookings import Booking, booked, changed
from carride.decoding import FieldError
from carride.events import SOURCE, RideEvent
from carride.facts import CarRideCreated, Fact
from carride.overdue import sortable_time
from carride.saga_step import Outbox
from carride_idempotency import HttpProblemError, Operation, Put
from carride_idempotency.stores import Store

type StartSimulator = Callable[[str, Mapping[str, Any]], None]
"""Starts a simulation without waiting for it, given the name of the simulator's function and the
request."""

_REFUSALS: Final[Mapping[type[rides.RideError], tuple[Kind, str]]] = {
    rides.StaleVersionError: (Kind.STALE_VERSION, "version"),
    rides.IllegalTransitionError: (Kind.ILLEGAL_TRANSITION, "action"),
    rides.StartedRideError: (Kind.ILLEGAL_TRANSITION, "action"),
    TooManyChangesError: (Kind.TOO_MANY_CHANGES, "action"),
}
"""The kind of problem and the field for each refusal by a ride."""


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    aws_region: str
    booking_table: str
    idempotency_table: str
    outbox_table: str
    ride_history_table: str
    simulator_function_name: str
    stage: Literal["local", "dev", "prod"]
    outbox_days: int = 7
    staff_group: str = ""
    operator_table: str = ""
    """Has the mark of a fence. A stack in one region is never fenced."""
    stack_role: Literal["standalone", "primary", "secondary"] = "standalone"


@dataclass(frozen=True)
class Service:
    """Answers requests."""

    settings: Settings
    tables: Tables
    store: Store  # holds the lock of the simulations
    start_simulator: StartSimulator | None
    now: Callable[[], datetime]

    def book(self, request: ApiRequest, operation: Operation) -> object:
        """Book a ride.

        Its id is derived from the key, so even a forgotten key books no second ride.
        """
        now = self.now()
        try:
            ride = commands.book(request.command, operation.downstream_key)
        except FieldError as error:
            raise _refused(error) from error
        booking = Booking.of(ride, booked_at=sortable_time(now), owner=request.caller.subject)
        write = booked(self.settings.booking_table, booking, now)
        operation.write(write, self._publish(CarRideCreated.of(ride), request, now))
        location = {"Location": f"/carrides/{booking.order_id}"}
        return {"statusCode": 201, "headers": location, "body": msgspec.to_builtins(booking)}

    def change(self, request: ApiRequest, operation: Operation) -> object:
        """Change a ride, if it is at the version that the client has read."""
        command: AnyChange = request.command
        order_id: str = request.event["pathParameters"]["id"]
        seen = self.tables.find_booking(order_id)
        if seen is None or refusal(request.caller, request.who, seen.owner):
            raise unknown_ride(order_id)
        try:
            booking, fact = commands.change(command, seen, by_staff=request.caller.staff)
        except (rides.RideError, FieldError) as error:
            raise _refused(error, seen.version) from error
        now = self.now()
        write = changed(self.settings.booking_table, seen, booking, now)
        operation.write(write, self._publish(fact, request, now))
        return msgspec.to_builtins(booking)

    def list_rides(self, request: ApiRequest) -> object:
        """List the rides of a customer: all of them for staff, otherwise those of the caller."""
        query: ListRides = request.command
        owner = None if request.caller.staff else request.caller.subject
        return msgspec.to_builtins(
            self.tables.list_bookings(query.customer, owner, query.limit, query.next)
        )

    def read_ride(self, request: ApiRequest) -> object:
        """Show a ride and what happened to it.

        Staff may see every ride, other callers their own.
        """
        path: ReadRide = request.command
        if self._hides(path.id, request):
            raise unknown_ride(path.id)
        ride = self.tables.find_ride(path.id)
        if ride is None:
            raise unknown_ride(path.id)
        return msgspec.to_builtins(ride)

    def _hides(self, order_id: str, request: ApiRequest) -> bool:
        """Return whether the caller may not see a ride. Staff may see each, so none is read."""
        if request.caller.staff:
            return False
        booking = self.tables.find_booking(order_id)
        owner = booking.owner if booking else None
        return refusal(request.caller, request.who, owner) is not None

    def simulate(self, request: ApiRequest, operation: Operation) -> object:
        """Start a simulation."""
        from api import simulations  # noqa: PLC0415 - most processes start no simulation

        start = self.start_simulator or simulations.invoke
        function = self.settings.simulator_function_name
        return simulations.start(
            request.command,
            operation.downstream_key,
            stage=self.settings.stage,
            store=self.store,
            now=self.now(),
            start_simulator=lambda settled: start(function, settled),
        )

    def _publish(self, fact: Fact, request: ApiRequest, now: datetime) -> Put:
        """Return the effect that writes the event of a fact to the outbox."""
        event = RideEvent.of(fact, source=SOURCE, time=now, traceparent=request.traceparent)
        settings = self.settings
        kept = timedelta(days=settings.outbox_days)
        outbox = Outbox(settings.outbox_table, settings.aws_region, kept)
        return outbox.put(event, now)


def _refused(error: rides.RideError | FieldError, version: int | None = None) -> HttpProblemError:
    if isinstance(error, FieldError):
        return refused(Kind.INVALID_FIELD, error.problem, field=error.field, version=version)
    kind, field = _REFUSALS[type(error)]
    return refused(kind, str(error), field=field, version=version)
