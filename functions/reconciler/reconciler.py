"""Finds rides that have needed something for too long, and has them settled, once each."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from carride.bookings import Booking, changed
from carride.decoding import shaped
from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.events import SOURCE, RideEvent
from carride.history import merged, of_ride, timeline_of
from carride.items import Outbox
from carride.overdue import INDEX, LIMIT, Stage, shard, shards, text
from carride.settings import from_environment
from carride.telemetry import count, logger
from carride_idempotency import (
    BusyError,
    Consumer,
    EffectConflictError,
    LambdaContext,
    lambda_deadline,
    marshalling,
    open_store,
)
from carride_idempotency.stores.default_transport import dynamodb_transport
from carride_idempotency.stores.transport import ServiceError
from settlement import POLICY, Cancellation, Seen, decide

_NEEDED_MS: Final = 15_000  # for one more ride, and the end of the run
_PAGE: Final = 25


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

    # The schedule's: the run's present, and its idempotency key.
    time: Annotated[datetime, Meta(tz=True)]


class Reconciler:
    """Has overdue rides settled. Reads are consistent but for those of an index, and so of the timeline."""

    def __init__(self, settings: Settings) -> None:
        transport = dynamodb_transport()
        store = open_store(f"dynamodb:{settings.idempotency_table}", transport=transport)
        self.consumer: Consumer[None] = Consumer("reconciler", store, policy=POLICY)
        self.limit = timedelta(hours=settings.overdue_hours)
        self._client = DynamoDB(transport)
        self._bookings, self._records = settings.booking_table, settings.idempotency_table
        self._saga = settings.assignment_table, settings.payment_table
        self._outbox = Outbox(
            settings.outbox_table, settings.aws_region, timedelta(days=settings.outbox_days)
        )

    def unsettled(self, now: datetime) -> int:
        """Return how many rides were dealt with in earlier runs, and need something still."""
        before = now - self.limit
        return len(
            {
                ride
                for table in self._saga
                for ride in self._in_index(table, Stage.RECONCILED, before)
            }
        )

    def reconcile(self, now: datetime, left_ms: Callable[[], int]) -> int:
        """Settle rides while there is time, and return how many; ExceptionGroup if some failed, after the others."""
        settled, failures = 0, list[Exception]()
        for order_id in self._overdue(now - self.limit):
            if left_ms() < _NEEDED_MS:
                logger.warning("out of time: the next run goes on")
                break
            try:
                settled += self._settle(order_id, now)
            except (EffectConflictError, BusyError):
                logger.info(
                    "the ride is being changed: the next run looks again", extra={"ride": order_id}
                )
            except Exception as error:  # noqa: BLE001 - one ride must not keep the others from being settled
                failures.append(error)
        if failures:
            raise ExceptionGroup(
                f"{len(failures)} rides could not be settled, {settled} were", failures
            )
        return settled

    def _settle(self, order_id: str, now: datetime) -> bool:
        decision = decide(self.find(order_id), now, self.limit)
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
                        once.operation.write(
                            changed(self._bookings, decision.before, decision.after, now)
                        )
        if not isinstance(decision, Cancellation):
            self._set_aside(order_id)
        return True

    def find(self, order_id: str) -> Seen:
        """Return what is known of a ride."""
        booking, assignment = (
            self._item(table, order_id) for table in (self._bookings, self._saga[0])
        )
        pages = self._client.query(**of_ride(self._records, order_id))
        ride = merged(marshalling.values(item) for page in pages for item in page["Items"])
        values = marshalling.values(booking)
        return Seen(
            booking=Booking.read(booking) if booking else None,
            booked_since=str(
                values.get("changedAt", values.get("openSince", values.get("bookedAt", "")))
            ),
            past=timeline_of(ride[0]) if ride else (),
            had_car="carID" in assignment,
        )

    def _overdue(self, before: datetime) -> Iterator[str]:
        """Yield each ride that has needed something since ``before``, a page at a time."""
        found: set[str] = set()
        for table in (self._bookings, *self._saga):
            for order_id in self._in_index(table, Stage.OPEN, before):
                if order_id not in found:
                    found.add(order_id)
                    yield order_id

    def _set_aside(self, order_id: str) -> None:
        """Have a ride no longer found as overdue. Items that were closed meanwhile stay closed."""
        for table in self._saga:
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
        answer = self._client.get_item(
            TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True
        )
        item: Mapping[str, Any] = answer.get("Item", {})
        return item


def make_handler(settings: Settings) -> Callable[[dict[str, Any], LambdaContext], dict[str, int]]:
    """Return the Lambda handler."""
    reconciler = Reconciler(settings)

    def handler(raw: dict[str, Any], context: LambdaContext) -> dict[str, int]:
        """Settle overdue rides, given a `Tick` as JSON, as many as there is time for; the next run goes on.

        The answer counts rides: ``reconciled`` (dealt with in this run) and ``overdue`` (dealt with
        in an earlier run, and not settled yet). A run that comes again returns what it returned
        before.
        """
        now = shaped(raw, Tick).time
        with (
            lambda_deadline(context),
            reconciler.consumer.operation(now.isoformat(), name="run") as run,
        ):
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
