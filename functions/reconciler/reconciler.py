"""Finds rides that have needed something for too long, and has them settled, once each."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from carride.bookings import changed
from carride.decoding import shaped
from carride.dynamodb import DynamoDB
from carride.events import SOURCE, RideEvent
from carride.items import Outbox
from carride.overdue import LIMIT
from carride.settings import from_environment
from carride.telemetry import count, logger
from idempotency import (
    BusyError,
    Consumer,
    EffectConflictError,
    LambdaContext,
    lambda_deadline,
    open_store,
)
from idempotency.stores.transport import dynamodb_transport
from open_rides import OpenRides, Tables
from settlement import Cancellation, decide

_NEEDED_MS: Final = 15_000
"""For one more ride, and the end of the run."""


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    idempotency_table: str
    booking_table: str
    assignment_table: str
    payment_table: str
    outbox_table: str
    aws_region: str
    overdue_hours: Annotated[float, Meta(gt=0)] = LIMIT / timedelta(hours=1)
    outbox_days: int = 7


class Tick(Struct, frozen=True):
    """What the schedule sends."""

    time: Annotated[datetime, Meta(tz=True)]
    """For when the run is scheduled. It is the run's present, and its idempotency key."""


class Reconciler:
    """Has overdue rides settled."""

    def __init__(self, settings: Settings) -> None:
        transport = dynamodb_transport()
        store = open_store(f"dynamodb:{settings.idempotency_table}", transport=transport)
        self.consumer: Consumer[None] = Consumer("reconciler", store)
        self.limit = timedelta(hours=settings.overdue_hours)
        self._bookings = settings.booking_table
        self._outbox = Outbox(settings.outbox_table, settings.aws_region, timedelta(days=settings.outbox_days))
        self._open_rides = OpenRides(
            DynamoDB(transport),
            Tables(
                settings.booking_table, settings.assignment_table, settings.payment_table, settings.idempotency_table
            ),
        )

    def unsettled(self, now: datetime) -> int:
        """Return how many rides were dealt with in earlier runs, and need something still."""
        return self._open_rides.unsettled(now - self.limit)

    def reconcile(self, now: datetime, left_ms: Callable[[], int]) -> int:
        """Settle rides while there is time, and return how many.

        Raises:
            ExceptionGroup: some rides failed; the others are dealt with.
        """
        settled, failures = 0, list[Exception]()
        for order_id in self._open_rides.overdue(now - self.limit):
            if left_ms() < _NEEDED_MS:
                logger.warning("out of time: the next run goes on")
                break
            try:
                settled += self._settle(order_id, now)
            except (EffectConflictError, BusyError):
                logger.info("the ride is being changed: the next run looks again", extra={"ride": order_id})
            except Exception as error:  # noqa: BLE001 - one ride must not keep the others from being settled
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"{len(failures)} rides could not be settled, {settled} were", failures)
        return settled

    def _settle(self, order_id: str, now: datetime) -> bool:
        decision = decide(self._open_rides.find(order_id), now, self.limit)
        if decision is None:
            return False
        if decision.fact is None:
            logger.error("an overdue ride is unknown", extra={"ride": order_id})
        else:
            event = RideEvent.of(decision.fact, source=SOURCE, time=now)
            with self.consumer.operation(event.idempotencyid, name="settle") as once:
                if not once.done:
                    once.operation.write(self._outbox.put(event, now))
                    if isinstance(decision, Cancellation):
                        once.operation.write(changed(self._bookings, decision.before, decision.after, now))
        if not isinstance(decision, Cancellation):
            self._open_rides.set_aside(order_id)
        return True


def make_handler(settings: Settings) -> Callable[[dict[str, Any], LambdaContext], dict[str, int]]:
    """Return the Lambda handler."""
    reconciler = Reconciler(settings)

    def handler(raw: dict[str, Any], context: LambdaContext) -> dict[str, int]:
        """Settle overdue rides, as many as there is time for; the next run goes on.

        Args:
            raw: a `Tick` as JSON.
            context: says how much time is left.

        Returns:
            Counts of rides: ``reconciled`` (dealt with in this run) and ``overdue`` (dealt with in an earlier run, and
            not settled yet). A run that comes again returns what it returned before.
        """
        now = shaped(raw, Tick).time
        with lambda_deadline(context), reconciler.consumer.operation(now.isoformat(), name="run") as run:
            if not run.done:
                overdue = reconciler.unsettled(now)
                reconciled = reconciler.reconcile(now, context.get_remaining_time_in_millis)
                counts = {"reconciled": reconciled, "overdue": overdue}
                count("reconciler", Reconciled=reconciled, Overdue=overdue)
                logger.info("reconciled", extra=counts)
                run.complete(counts)
        result: dict[str, int] = run.result
        return result

    return handler


handler = make_handler(from_environment(Settings))
