"""Finds rides that have needed something for too long, and has them settled, once each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from carride.bookings import Booking, changed
from carride.decoding import shaped
from carride.dynamodb import CONDITION_FAILED, DynamoDB
from carride.events import SOURCE, RideEvent
from carride.history import EVENT_PREFIX, latest_in, merged, of_ride, timeline_of
from carride.overdue import INDEX, LIMIT, Stage, shard, shards, sortable_time
from carride.ride import Ride
from carride.saga_step import Outbox
from carride.settings import from_environment
from carride.telemetry import count, logger
from carride_idempotency import (
    BusyError,
    Consumer,
    EffectConflictError,
    LambdaContext,
    dynamodb_transport,
    lambda_deadline,
    marshalling,
    open_store,
)
from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.stores.transport import ServiceError
from settlement import (
    POLICY,
    Cancellation,
    Dispatched,
    Seen,
    Settlement,
    Unsettled,
    decide,
    decide_again,
)

_NEEDED_MS: Final = 15_000
"""For one more ride, and the end of the run."""
_A_TURN: Final = 100
"""How many rides a run passes over that the run before began with, and how many of those that were
set aside it looks at again."""
_BETWEEN_RUNS: Final = timedelta(minutes=5)
_REPORTED: Final = 10
"""How many failures an error holds."""
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, KeyError)
"""What is raised for an item that holds no ride."""


class Settings(Struct, frozen=True, kw_only=True):
    """The function's environment."""

    idempotency_table: str
    ride_history_table: str
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


class Tables(NamedTuple):
    """The names of the tables that the reconciler reads."""

    history: str
    bookings: str
    assignments: str
    payments: str

    @property
    def with_open_rides(self) -> tuple[str, ...]:
        """The tables whose items may need something."""
        return self.bookings, self.assignments, self.payments


class Reader:
    """Reads what is known of rides.

    Reads are consistent, except those of an index, from which the timeline comes.
    """

    def __init__(self, client: DynamoDB, tables: Tables) -> None:
        self._client = client
        self._tables = tables

    def open_rides(self, stage: Stage, before: datetime) -> list[str]:
        """Return each ride that has needed something since ``before``."""
        found: dict[str, None] = {}
        for table in self._tables.with_open_rides:
            found.update(dict.fromkeys(self._in_index(table, stage, before)))
        return list(found)

    def ride(self, order_id: str, now: datetime, limit: timedelta) -> Seen:
        """Return what is known of a ride."""
        booking = self._item(self._tables.bookings, order_id)
        latest, latest_since = self._history(order_id, now - limit)
        return Seen(
            booking=Booking.from_item(booking) if booking else None,
            booked_since=_changed_at(marshalling.values(booking)),
            latest=latest,
            latest_since=latest_since,
            dispatched=self._dispatched(order_id),
        )

    def _dispatched(self, order_id: str) -> Dispatched | None:
        assignment: dict[str, Any] = marshalling.values(
            self._item(self._tables.assignments, order_id)
        )
        if not assignment:
            return None
        heard = [entry["time"] for name, entry in assignment.items() if _is_entry(name)]
        return Dispatched(
            "carID" in assignment, assignment.get("openSince"), max(heard, default="")
        )

    def _history(self, order_id: str, since: datetime) -> tuple[Ride | None, datetime | None]:
        """Return the ride as its history has it, and when the history heard of it last.

        The time is None if it is before ``since``.
        """
        pages = self._client.query(**of_ride(self._tables.history, order_id))
        records = [marshalling.values(item) for page in pages for item in page["Items"]]
        merged_ride = merged(records)
        if not merged_ride:
            return None, None
        timeline = timeline_of(merged_ride[0])
        recent = [self._heard(record) for record in records if _is_recent(record, since)]
        return msgspec.convert(latest_in(timeline), Ride), max(recent, default=None)

    def _heard(self, record: Mapping[str, Any]) -> datetime:
        """Return when the history heard of an event: the time of the event's record.

        The event's own time does not count: its producer's clock may be ahead.
        """
        key = {"idempotencyKey": {"S": record["idempotencyKey"]}}
        answer = self._client.get_item(TableName=self._tables.history, Key=key, ConsistentRead=True)
        found: dict[str, Any] = marshalling.values(answer.get("Item", {}))
        happened = datetime.fromisoformat(record["entry"]["time"])
        if "createdAt" not in found:
            return happened
        return min(happened, datetime.fromtimestamp(found["createdAt"] / 1000, UTC))

    def _in_index(self, table: str, stage: Stage, before: datetime) -> Iterator[str]:
        latest = sortable_time(before)
        for each in shards(stage):
            pages = self._client.query(
                TableName=table,
                IndexName=INDEX,
                KeyConditionExpression="openShard = :shard AND openSince <= :before",
                ExpressionAttributeValues={
                    ":shard": {"S": each},
                    ":before": {"S": latest},
                },
            )
            for answer in pages:
                for item in answer["Items"]:
                    yield item["orderID"]["S"]

    def _item(self, table: str, order_id: str) -> Mapping[str, Any]:
        answer = self._client.get_item(
            TableName=table, Key={"orderID": {"S": order_id}}, ConsistentRead=True
        )
        item: Mapping[str, Any] = answer.get("Item", {})
        return item


def _is_entry(name: str) -> bool:
    return name.startswith(EVENT_PREFIX)


def _is_recent(record: Mapping[str, Any], since: datetime) -> bool:
    return datetime.fromisoformat(record["entry"]["time"]) > since


def _changed_at(booking: Mapping[str, Any]) -> str:
    """Return when a booking changed last, in ISO 8601; empty without a booking.

    Of one that has ended, it is when the ride was booked.
    """
    return str(booking.get("changedAt", booking.get("bookedAt", "")))


def in_turn(rides: Sequence[str], now: datetime) -> list[str]:
    """Return rides in the order in which a run looks at them: each run begins further on.

    A run may have time for some only, and a ride that stays as it is would else be in the way of
    the others in every run. Each round begins one ride later than the round before, so each ride
    is the first one of some run.
    """
    if not rides:
        return []
    step = _A_TURN if len(rides) > _A_TURN else 1
    passed = step * int(now.timestamp() // _BETWEEN_RUNS.total_seconds())
    rounds = passed // len(rides)
    first = (passed + rounds) % len(rides)
    return [*rides[first:], *rides[:first]]


class Reconciler:
    """Has overdue rides settled."""

    def __init__(self, settings: Settings) -> None:
        transport = dynamodb_transport()
        store = open_store(f"dynamodb:{settings.idempotency_table}", transport=transport)
        self.consumer: Consumer[None] = Consumer("reconciler", store, policy=POLICY)
        self.limit = timedelta(hours=settings.overdue_hours)
        self._client = DynamoDB(transport)
        self._tables = Tables(
            settings.ride_history_table,
            settings.booking_table,
            settings.assignment_table,
            settings.payment_table,
        )
        self.reader = Reader(self._client, self._tables)
        self._outbox = Outbox(
            settings.outbox_table, settings.aws_region, timedelta(days=settings.outbox_days)
        )

    def unsettled(self, now: datetime) -> list[str]:
        """Return the rides that were dealt with in earlier runs, and still need something."""
        return self.reader.open_rides(Stage.RECONCILED, now - self.limit)

    def reconcile(self, now: datetime, unsettled: Sequence[str], left_ms: Callable[[], int]) -> int:
        """Settle rides while there is time, and return how many.

        Args:
            now: the run's present.
            unsettled: the rides that were set aside before.
            left_ms: returns the time that is left.

        Raises:
            ExceptionGroup: Some rides could not be settled. It is raised after the others were.
        """
        settled = 0
        failed = 0
        failures: list[Exception] = []
        # Those that were set aside come first, because they are few: the others may take all the
        # time.
        again = in_turn(unsettled, now)[:_A_TURN]
        overdue = in_turn(self.reader.open_rides(Stage.OPEN, now - self.limit), now)
        to_settle = [(self._settle_again, each) for each in again]
        to_settle += [(self._settle, each) for each in overdue]
        for settle, order_id in to_settle:
            if left_ms() < _NEEDED_MS:
                logger.warning("out of time: the next run goes on")
                break
            try:
                settled += settle(order_id, now)
            except (EffectConflictError, BusyError):
                logger.info(
                    "the ride is being changed: the next run looks again", extra={"ride": order_id}
                )
            except Exception as error:  # noqa: BLE001 - one ride must not keep the others from being settled
                failed += 1
                if len(failures) < _REPORTED:
                    failures.append(error)
        if settled:
            count("reconciler", {"Reconciled": settled})
        if failures:
            raise ExceptionGroup(f"{failed} rides could not be settled, {settled} were", failures)
        return settled

    def _settle_again(self, order_id: str, now: datetime) -> bool:
        """Settle a driven ride of which dispatch has heard since it was set aside.

        Payment may never have heard of such a ride's car. Then nothing else has the ride paid.
        """
        with suppress(*_UNREADABLE):
            decision = decide_again(self.reader.ride(order_id, now, self.limit), now, self.limit)
            if decision is not None:
                return self._emit(decision, now)
        return False

    def _settle(self, order_id: str, now: datetime) -> bool:
        """Settle a ride, and return whether it was dealt with."""
        try:
            decision = decide(self.reader.ride(order_id, now, self.limit), now, self.limit)
        except _UNREADABLE as error:
            logger.error("a ride cannot be read", extra={"ride": order_id, "error": repr(error)})
            self._set_aside(order_id, self._tables.with_open_rides)
            return True
        match decision:
            case None:
                return False
            case Cancellation():
                self._emit(decision, now)
                return True
            case Settlement():
                self._emit(decision, now)
            case Unsettled(reason):
                logger.error("a ride stays overdue", extra={"ride": order_id, "reason": reason})
        self._set_aside(order_id, (self._tables.assignments, self._tables.payments))
        return True

    def _emit(self, decision: Cancellation | Settlement, now: datetime) -> bool:
        """Emit the event of a decision, once, together with the change of the booking.

        Return False if an earlier run has emitted it.
        """
        event = RideEvent.of(decision.fact, source=SOURCE, time=now)
        with self.consumer.operation(event.idempotencyid, name="settle") as once:
            if once.done:
                return False
            once.operation.write(self._outbox.put(event, now))
            if isinstance(decision, Cancellation):
                booking = changed(self._tables.bookings, decision.before, decision.after, now)
                once.operation.write(booking)
        return True

    def _set_aside(self, order_id: str, tables: Iterable[str]) -> None:
        """Have a ride no longer found as overdue. Items that were closed meanwhile stay closed."""
        for table in tables:
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


def make_handler(
    settings: Settings, *, clock: Clock = epoch_ms
) -> Callable[[dict[str, Any], LambdaContext], dict[str, int]]:
    """Return the Lambda handler."""
    reconciler = Reconciler(settings)

    def handler(raw: dict[str, Any], context: LambdaContext) -> dict[str, int]:
        """Settle as many overdue rides as there is time for, given a `Tick` as JSON.

        The next run settles the others.

        The answer counts rides: ``reconciled`` (dealt with in this run) and ``overdue`` (dealt with
        in an earlier run, and not settled yet). A run that comes again returns what it returned
        before. One that comes while another delivery of it runs does nothing.
        """
        now = shaped(raw, Tick).time
        with lambda_deadline(context, clock):
            try:
                return once(now, context)
            except BusyError:
                # It began within the length of a lease, and Lambda repeats it if it fails.
                logger.info("another delivery of this tick is running")
                return {"reconciled": 0, "overdue": 0}

    def once(now: datetime, context: LambdaContext) -> dict[str, int]:
        with reconciler.consumer.operation(now.isoformat(), name="run") as run:
            if not run.done:
                # Counted first: whatever fails below, somebody hears of the rides that stay
                # overdue.
                unsettled = reconciler.unsettled(now)
                overdue = len(unsettled)
                if overdue:
                    count("reconciler", {"Overdue": overdue})
                left_ms = context.get_remaining_time_in_millis
                reconciled = reconciler.reconcile(now, unsettled, left_ms)
                counts = {"reconciled": reconciled, "overdue": overdue}
                logger.info("reconciled", extra=counts)
                run.complete(counts)
        result: dict[str, int] = run.result
        return result

    return handler


handler = make_handler(from_environment(Settings))
