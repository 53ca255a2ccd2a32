"""What the API does. A ride, its event and the stored answer are one transaction.

A ride's refusal is an answer too: it is stored with its key, so that a retry gets the same one.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from api.callers import Action, refusal
from api.commands import Book, Change, TooManyChangesError
from api.problems import Kind, refused
from api.requests import ListRides, ReadRide, Request, unknown_ride
from api.tables import Booking, Tables, TokenError, timestamp
from carride import ride as rides
from carride.events import SOURCE, Fact, RideEvent
from carride.outbox import outbox_item
from carride.telemetry import logger
from idempotency import Operation, Put, RetryableError
from idempotency.http import HttpProblemError
from idempotency.stores import Store

if TYPE_CHECKING:
    from api.simulations import Simulations

type Answer = dict[str, Any]
type StartSimulator = Callable[[Mapping[str, Any]], None]

_REFUSALS: Final[Mapping[type[rides.RideError], tuple[Kind, str]]] = {
    rides.StaleVersionError: (Kind.STALE_VERSION, "version"),
    rides.IllegalTransitionError: (Kind.ILLEGAL_TRANSITION, "action"),
    TooManyChangesError: (Kind.TOO_MANY_CHANGES, "action"),
    rides.SameDestinationError: (Kind.INVALID_FIELD, "destination"),
    rides.NoTripError: (Kind.INVALID_FIELD, "destination"),
    rides.PriceError: (Kind.INVALID_FIELD, "price"),
}
"""How a ride's refusal is reported: the kind of problem, and the field."""


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    aws_region: str
    booking_table: str
    idempotency_table: str
    outbox_table: str
    ride_table: str
    simulator_function_name: str
    stage: Literal["local", "dev", "prod"]
    outbox_days: int = 7
    staff_group: str = ""


class Service:
    """Answers requests that could be read.

    Args:
        settings: the function's environment.
        tables: what the answers are read from.
        store: where the lock of the simulations is.
        start_simulator: see `carride_api.make_handler`.
        now: the present, with a time zone.
    """

    def __init__(
        self,
        settings: Settings,
        tables: Tables,
        store: Store,
        start_simulator: StartSimulator | None,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._store = store
        self._start_simulator = start_simulator
        self._now = now

    def answer(self, request: Request, operation: Operation) -> Answer:
        """Answer a request; register what it changes with the operation, which a GET does not have.

        Raises:
            HttpProblemError: the request is refused.
            RetryableError: a call of AWS failed: the client mends it by sending the request again.
        """
        try:
            match request.command:
                case Book() as command:
                    return self._book(command, request, operation)
                case Change() as command:
                    return self._change(command, request, operation)
                case ListRides() as command:
                    return self._list(command, request)
                case ReadRide() as command:
                    return self._read(command, request)
                case command:
                    return self._simulations.start(command, operation.downstream_key)
        except (ClientError, BotoCoreError) as error:
            logger.warning("an AWS service did not answer", exc_info=error)
            raise RetryableError("an AWS service did not answer") from error

    def _book(self, command: Book, request: Request, operation: Operation) -> Answer:
        """Book a ride. Its id is derived from the key: not even a forgotten key books a second ride."""
        try:
            fact = command.decide(operation.downstream_key)
        except rides.RideError as error:
            raise _refused(error) from error
        booking = Booking.of(fact, timestamp(now := self._now()), request.caller.subject)
        operation.write(self._tables.book(booking), self._publish(fact, request, now))
        location = {"Location": f"/carrides/{booking.order_id}"}
        return {"statusCode": 201, "headers": location, "body": msgspec.to_builtins(booking)}

    def _change(self, command: Change, request: Request, operation: Operation) -> Answer:
        """Change a ride, if it still has the version that the client has read."""
        seen = self._tables.find_booking(request.order_id)
        if seen is None or refusal(request.caller, command.action, seen.owner):
            raise unknown_ride(request.order_id)
        try:
            fact = command.decide(seen)
        except rides.RideError as error:
            raise _refused(error, seen.version) from error
        changed = Booking.of(fact, seen.booked_at, seen.owner)
        operation.write(self._tables.change(seen, changed), self._publish(fact, request, self._now()))
        return {"statusCode": 200, "body": msgspec.to_builtins(changed)}

    def _list(self, query: ListRides, request: Request) -> Answer:
        """List the rides of a customer that the caller may see."""
        owner = request.caller.listed_owner
        try:
            page = self._tables.list_bookings(query.customer, owner, query.limit, query.next)
        except TokenError as error:
            raise refused(Kind.INVALID_REQUEST, "not a token from an earlier page", field="next") from error
        return {"statusCode": 200, "body": msgspec.to_builtins(page)}

    def _read(self, path: ReadRide, request: Request) -> Answer:
        """Show a ride and what happened to it, if the caller may see it. Staff may see a ride whoever owns it."""
        booking = None if request.caller.staff else self._tables.find_booking(path.id)
        if refusal(request.caller, Action.READ, booking.owner if booking else None):
            raise unknown_ride(path.id)
        ride = self._tables.find_ride(path.id)
        if ride is None:
            raise unknown_ride(path.id)
        return {"statusCode": 200, "body": msgspec.to_builtins(ride)}

    @cached_property
    def _simulations(self) -> "Simulations":
        from api.simulations import Simulations  # noqa: PLC0415 - most processes start no simulation

        settings = self._settings
        return Simulations(
            settings.stage, settings.simulator_function_name, self._store, self._start_simulator, self._now
        )

    def _publish(self, fact: Fact, request: Request, now: datetime) -> Put:
        """Return the effect that publishes a fact: it writes the event to the outbox."""
        event = RideEvent.of(fact, source=SOURCE, time=now, traceparent=request.traceparent)
        kept = timedelta(days=self._settings.outbox_days)
        return Put(
            self._settings.outbox_table, outbox_item(event, region=self._settings.aws_region, now=now, kept=kept)
        )


def _refused(error: rides.RideError, version: int | None = None) -> HttpProblemError:
    kind, field = _REFUSALS[type(error)]
    return refused(kind, str(error), field=field, version=version)
