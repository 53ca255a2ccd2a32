"""What the API does: each request takes effect once, whatever becomes of its answer.

A booked or changed ride, the event that tells of it and the record that remembers the answer are one transaction. What
a ride refuses is an answer too: it is remembered with its key, so that a retry never meets another one.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NotRequired, TypedDict, cast

import msgspec

from api.commands import Book, Change, Simulate
from api.problems import Kind, Problem, problem
from api.tables import Booking, Bookings, text
from carride.events import SOURCE, Fact, RideEvent
from carride.outbox import KEPT, outbox_item
from carride.ride import (
    IllegalTransitionError,
    NoTripError,
    SameDestinationError,
    StaleVersionError,
)
from carride.simulation import SpecError
from idempotency import Consumer, Operation, Policy, Put
from idempotency.observation import Observer
from idempotency.stores import Store

type Key = tuple[str, str]
"""The caller, and the idempotency key that it chose: callers cannot meet in one record."""

WINDOW_S: Final = 86_400
"""For how long a key is remembered: longer than any client retries."""

# Nothing but an outage or a bug makes an attempt fail, and the client may retry for as long as it likes.
_MAX_ATTEMPTS: Final = 1_000

_GIVEN: Final = cast("Operation", None)
"""Stands for the operation in a signature: the idempotency layer gives it."""


class Answer(TypedDict):
    """What a request is answered with, in JSON's types: it is remembered."""

    status: int
    body: dict[str, Any]
    location: NotRequired[str]
    """Where the ride that was made can be read."""


class Service:
    """Books and changes rides, and starts simulations.

    The public methods raise what the idempotency layer raises: PayloadMismatchError for a key of another request,
    BusyError for one that is being processed, EffectConflictError for one that booked a ride and was then forgotten.

    Args:
        store: where answers are remembered.
        bookings: the rides.
        outbox: name of the table from which events go to the bus.
        region: where this process runs.
        simulate: starts a simulation and does not wait for its end.
        now: the present, with a time zone.
        observe: is told what became of every request.
        kept: for how long what is told stays in the outbox.
    """

    def __init__(
        self,
        store: Store,
        bookings: Bookings,
        outbox: str,
        region: str,
        *,
        simulate: Callable[[Mapping[str, Any]], None],
        now: Callable[[], datetime],
        observe: Observer,
        kept: timedelta = KEPT,
    ) -> None:
        self._bookings = bookings
        self._outbox = outbox
        self._region = region
        self._simulate = simulate
        self._now = now
        self._kept = kept
        # A conflict on a ride is another request that was faster: run again, the decision sees what that one has done.
        atomic = Policy(atomic=True, window=WINDOW_S, max_attempts=_MAX_ATTEMPTS, conflict_reruns=2)
        self._rides = Consumer("carride-api", store, policy=atomic, observe=observe, region=region)
        # Starting a simulation is no write in a table: it is claimed first, and a copy meanwhile is told to wait.
        claimed = Policy(window=WINDOW_S, max_attempts=_MAX_ATTEMPTS)
        self._simulations = Consumer("carride-api-simulate", store, policy=claimed, observe=observe, region=region)

    # What is asked for are the arguments of `once`, by which one request is told from another under the same key. How
    # it was asked (the trace) is none of them: a retry comes with another.

    def book(self, key: Key, command: Book, traceparent: str | None = None) -> Answer:
        """Book a ride. Its id follows from the key: not even a forgotten key can book a second one."""

        def once(key: Key, command: Book, operation: Operation = _GIVEN) -> Answer:  # noqa: ARG001 - names the record
            try:
                fact = command.decide(operation.downstream_key)
            except NoTripError as error:
                return _refusal(problem(Kind.INVALID_FIELD, str(error), field="destination"))
            now = self._now()
            booking = Booking.of(fact.ride(), text(now))
            operation.write(self._bookings.booked(booking), self._told(fact, now, traceparent))
            return {"status": 201, "body": msgspec.to_builtins(booking), "location": f"/carrides/{booking.order_id}"}

        return self._rides.function(key="key")(once)(key, command)

    def change(self, key: Key, order_id: str, action: str, command: Change, traceparent: str | None = None) -> Answer:
        """Change a ride, if it is still as the client has seen it. ``action`` tells alike commands apart."""

        def once(
            key: Key,  # noqa: ARG001 - names the record
            order_id: str,
            action: str,  # noqa: ARG001 - belongs to what is asked for
            command: Change,
            operation: Operation = _GIVEN,
        ) -> Answer:
            seen = self._bookings.find(order_id)
            if seen is None:
                return _refusal(problem(Kind.UNKNOWN_RIDE, f"no ride is called {order_id}"))
            try:
                fact = command.decide(seen)
            except StaleVersionError as error:
                return _refusal(problem(Kind.STALE_VERSION, str(error), field="version", version=error.version))
            except IllegalTransitionError as error:
                return _refusal(problem(Kind.ILLEGAL_TRANSITION, str(error), field="action", version=seen.version))
            except (SameDestinationError, NoTripError) as error:
                return _refusal(problem(Kind.INVALID_FIELD, str(error), field="destination"))
            changed = Booking.of(fact.ride(), seen.booked_at)
            operation.write(self._bookings.changed(seen, changed), self._told(fact, self._now(), traceparent))
            return {"status": 200, "body": msgspec.to_builtins(changed)}

        return self._rides.function(key="key")(once)(key, order_id, action, command)

    def simulate(self, key: Key, command: Simulate) -> Answer:
        """Start a simulation; started twice it publishes the same facts, which the consumers recognise."""

        def once(key: Key, command: Simulate, operation: Operation = _GIVEN) -> Answer:  # noqa: ARG001 - as above
            try:
                settled = command.settled(seed=int(operation.downstream_key[:7], 16))
            except SpecError as error:
                return _refusal(problem(Kind.INVALID_FIELD, str(error), field=error.field))
            request = msgspec.to_builtins(settled) | {"time": self._now().isoformat()}
            self._simulate(request)
            return {"status": 202, "body": request}

        return self._simulations.function(key="key")(once)(key, command)

    def _told(self, fact: Fact, now: datetime, traceparent: str | None) -> Put:
        """Return the effect that has the fact told."""
        event = RideEvent.of(fact, source=SOURCE, time=now, traceparent=traceparent)
        return Put(self._outbox, outbox_item(event, region=self._region, now=now, kept=self._kept))


def _refusal(refused: Problem) -> Answer:
    return {"status": refused.status, "body": msgspec.to_builtins(refused)}
