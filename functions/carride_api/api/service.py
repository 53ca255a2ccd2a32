"""What the API does: each request takes effect once, whatever becomes of its answer.

A booked or changed ride, the event that tells of it and the record that remembers the answer are one transaction. What
a ride refuses is an answer too: it is remembered with its key, so that a retry never meets another one.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from api.callers import refusal
from api.commands import Book, Change, Simulate, TooManyChangesError, TooMuchError
from api.http import Request
from api.problems import Kind, refused
from api.tables import Bookings
from carride.bookings import Booking, booked, changed
from carride.events import SOURCE, Fact, RideEvent
from carride.items import Outbox
from carride.overdue import text
from carride.ride import (
    IllegalTransitionError,
    NoTripError,
    SameDestinationError,
    StaleVersionError,
)
from carride.simulation import SpecError
from idempotency import Operation, Put

type Answer = dict[str, Any]


class Service:
    """Books and changes rides, and starts simulations.

    The public methods answer a request, or raise HttpProblemError for what a ride refuses.

    Args:
        bookings: the rides.
        table: the rides' table.
        outbox: takes the events of booked and changed rides.
        simulate: starts a simulation and does not wait for its end.
        take_turn: lets a simulation begin, named by its request, or raises HttpProblemError.
        most_events: of one simulation.
        now: the present, with a time zone.
    """

    def __init__(
        self,
        bookings: Bookings,
        table: str,
        outbox: Outbox,
        *,
        simulate: Callable[[Mapping[str, Any]], None],
        take_turn: Callable[[str], None],
        most_events: int,
        now: Callable[[], datetime],
    ) -> None:
        self._bookings = bookings
        self._table = table
        self._outbox = outbox
        self._simulate = simulate
        self._take_turn = take_turn
        self._most_events = most_events
        self._now = now

    def book(self, request: Request[Book], operation: Operation) -> Answer:
        """Book a ride. Its id follows from the key: not even a forgotten key can book a second one."""
        try:
            fact = request.command.decide(operation.downstream_key)
        except NoTripError as error:
            raise refused(Kind.INVALID_FIELD, str(error), field="destination") from error
        now = self._now()
        booking = Booking.of(fact.ride(), text(now), request.caller.subject)
        operation.write(booked(self._table, booking, now), self._emit(fact, now, request.traceparent))
        location = {"Location": f"/carrides/{booking.order_id}"}
        return {"statusCode": 201, "headers": location, "body": msgspec.to_builtins(booking)}

    def change(self, request: Request[Change], operation: Operation) -> Answer:
        """Change a ride, if it is still as the client has seen it."""
        seen = self._bookings.find(request.order_id)
        if seen is None or refusal(request.caller, request.command.action, seen.owner):
            raise refused(Kind.UNKNOWN_RIDE, f"no ride is called {request.order_id}")
        try:
            fact = request.command.decide(seen)
        except StaleVersionError as error:
            raise refused(Kind.STALE_VERSION, str(error), field="version", version=error.version) from error
        except TooManyChangesError as error:
            raise refused(Kind.TOO_MANY_CHANGES, str(error), field="action", version=seen.version) from error
        except IllegalTransitionError as error:
            raise refused(Kind.ILLEGAL_TRANSITION, str(error), field="action", version=seen.version) from error
        except (SameDestinationError, NoTripError) as error:
            raise refused(Kind.INVALID_FIELD, str(error), field="destination") from error
        booking, now = Booking.of(fact.ride(), seen.booked_at, seen.owner), self._now()
        operation.write(changed(self._table, seen, booking, now), self._emit(fact, now, request.traceparent))
        return {"statusCode": 200, "body": msgspec.to_builtins(booking)}

    def simulate(self, request: Request[Simulate], operation: Operation) -> Answer:
        """Start a simulation; started twice it publishes the same facts, which the consumers recognise."""
        try:
            settled = request.command.settled(int(operation.downstream_key[:7], 16), self._most_events)
        except SpecError as error:
            fits = error.fits if isinstance(error, TooMuchError) else None
            raise refused(Kind.INVALID_FIELD, str(error), field=error.field, fits=fits) from error
        self._take_turn(operation.downstream_key)
        spec = msgspec.to_builtins(settled) | {"time": self._now().isoformat()}
        self._simulate(spec)
        return {"statusCode": 202, "body": spec}

    def _emit(self, fact: Fact, now: datetime, traceparent: str | None) -> Put:
        """Return the effect that emits the event of a fact."""
        return self._outbox.put(RideEvent.of(fact, source=SOURCE, time=now, traceparent=traceparent), now)
