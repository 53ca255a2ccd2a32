"""The rules of the protocol, each with the behaviour that goes wrong without it.

The consumers here run over DynamoDB's real wire format, in this process; requests and answers are lost on demand.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from idempotency import (
    BusyError,
    ConfigurationError,
    Consumer,
    DynamoDBStore,
    EffectConflictError,
    Observation,
    Operation,
    PermanentError,
    Put,
    RetryableError,
    Update,
)
from idempotency.dead_letters import (
    BEYOND_WINDOW,
    CORRUPT_RECORD,
    MISSING_KEY,
    PAYLOAD_MISMATCH,
    QUARANTINED,
    UNKNOWN,
    DeadLetterError,
)
from idempotency.errors import (
    LostLeaseError,
    OutOfTimeError,
    PayloadMismatchError,
    ResultOmittedError,
    RetryLaterError,
    StoreRefusedError,
    StoreUnavailableError,
)
from idempotency.stores.transport import ServiceError
from idempotency.testing import DeadLetterBox, FaultyTransport, Invocation, ManualClock
from tests.unit.idempotency.samples import event

type MakeConsumer = Callable[..., Consumer]
type MakeInvocation = Callable[..., Invocation]

KEY = "history#k1"


class Work:
    """A handler that counts its runs in DynamoDB, in the same transaction as the record."""

    def __init__(self) -> None:
        self.runs: list[Operation] = []
        self.happen: Callable[[Operation], object] = lambda _: None
        """What else happens in a run: raise, let time pass, deliver again."""

    def __call__(self, event: dict[str, Any], operation: Operation) -> object:
        """Count this run, and let happen what the test wants."""
        self.runs.append(operation)
        operation.write(Update("Rides", {"id": event["detail"]["data"]["orderID"]}, "ADD n :one", values={":one": 1}))
        return self.happen(operation)


@pytest.fixture
def work() -> Work:
    """A handler that succeeds, unless told otherwise."""
    return Work()


def effects(dynamodb: Any) -> int:
    """How often the effect of order_01 was committed."""
    item = dynamodb.get_item(TableName="Rides", Key={"id": {"S": "order_01"}}).get("Item")
    return int(item["n"]["N"]) if item else 0


def fail_with(error: Exception) -> Callable[[Operation], object]:
    """Make a handler's step that raises."""

    def happen(operation: Operation) -> object:
        raise error

    return happen


class Crash(BaseException):
    """What a killed process looks like to the code that it was running: nothing after it is executed."""


def crash(operation: Operation) -> object:
    """Die in the middle of the handler."""
    raise Crash


class TestRule1Claim:
    """A claim is a conditional write that brings the record in its way, and recognises itself."""

    def test_new_event_costs_two_round_trips_and_a_duplicate_one(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport, dynamodb: Any
    ) -> None:
        """A new event is claimed and committed, a duplicate is answered by the claim's refusal, and nothing is read."""
        handler = consumer().event_handler(work)

        assert handler(event(), invocation())["outcome"] == "New"
        assert transport.requests == ["PutItem", "TransactWriteItems"]
        assert handler(event(), invocation("request-2"))["outcome"] == "Duplicate"
        assert transport.requests == ["PutItem", "TransactWriteItems", "PutItem"]
        assert effects(dynamodb) == 1

    def test_claim_whose_answer_was_lost_is_recognised(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """A claim that took place though its answer was lost is run, not mistaken for somebody else's."""
        transport.lose_answer()

        assert consumer().event_handler(work)(event(), invocation())["outcome"] == "New"
        assert len(work.runs) == 1

    def test_takeover_whose_answer_was_lost_is_recognised(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        transport: FaultyTransport,
        clock: ManualClock,
    ) -> None:
        """A takeover that took place though its answer was lost is run under the attempt that it wrote."""
        handler = consumer().event_handler(work)
        work.happen = crash
        with pytest.raises(Crash):
            handler(event(), invocation())
        clock.advance(60)
        work.happen = lambda _: None
        transport.pass_on()
        transport.lose_answer()

        answer = handler(event(), invocation())

        assert (answer["outcome"], answer["attempt"]) == ("Takeover", 2)

    def test_commit_whose_answer_was_lost_is_recognised(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport, dynamodb: Any
    ) -> None:
        """A commit that took place though its answer was lost is a success, and its effects are there once."""
        transport.pass_on()
        transport.lose_answer()

        assert consumer().event_handler(work)(event(), invocation())["outcome"] == "New"
        assert effects(dynamodb) == 1

    def test_failure_whose_answer_was_lost_counts_once(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """A failure that was recorded though its answer was lost raises the handler's error and uses one attempt."""
        history = consumer()
        work.happen = fail_with(KeyError("pickup"))
        transport.pass_on()
        transport.lose_answer()

        with pytest.raises(KeyError):
            history.event_handler(work)(event(), invocation())

        record = history.record("k1")
        assert record is not None
        assert (record.status, record.attempt) == ("FAILED", 1)

    def test_takeover_of_a_record_that_vanished_starts_again_at_the_claim(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        transport: FaultyTransport,
        dynamodb: Any,
    ) -> None:
        """A failed record that TTL deletes between being seen and being taken over is claimed as new."""
        handler = consumer().event_handler(work)
        work.happen = fail_with(KeyError("pickup"))
        with pytest.raises(KeyError):
            handler(event(), invocation())
        work.happen = lambda _: None
        transport.pass_on()
        transport.meanwhile(lambda: dynamodb.delete_item(TableName="Idempotency", Key={"idempotencyKey": {"S": KEY}}))

        assert handler(event(), invocation())["attempt"] == 1
        assert effects(dynamodb) == 1


class TestRule2Takeover:
    """A takeover compares everything that was seen, the lease included."""

    def test_crashed_claim_is_taken_over_when_its_lease_has_ended(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, dynamodb: Any
    ) -> None:
        """A key whose holder died is run again once nobody can hold it any more."""
        handler = consumer().event_handler(work)
        work.happen = crash
        with pytest.raises(Crash):
            handler(event(), invocation())
        work.happen = lambda _: None

        clock.advance(31)
        with pytest.raises(BusyError):
            handler(event(), invocation())
        clock.advance(2)

        assert handler(event(), invocation()) == {"outcome": "Takeover", "key": KEY, "attempt": 2}
        assert effects(dynamodb) == 1

    def test_lease_longer_than_any_can_be_is_not_believed(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A claim by a clock that runs a day ahead holds its key no longer than a lease can last."""
        handler = consumer().event_handler(work)
        work.happen = crash
        clock.advance(86_400)
        with pytest.raises(Crash):
            handler(event(), invocation())
        work.happen = lambda _: None
        clock.advance(-86_400)

        assert handler(event(), invocation("request-2"))["outcome"] == "Takeover"

    def test_heartbeat_that_lands_in_between_refuses_the_takeover(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        transport: FaultyTransport,
        clock: ManualClock,
    ) -> None:
        """A holder that renews its lease just before a takeover is written keeps the key."""
        handler = consumer(lease=30).event_handler(work)
        late = Work()

        def hang(operation: Operation) -> None:
            clock.advance(200)
            transport.pass_on()
            transport.meanwhile(operation.heartbeat)
            with pytest.raises(BusyError):
                consumer(lease=30).event_handler(late)(event(), invocation("request-1"))

        work.happen = hang

        assert handler(event(), invocation(timeout_s=600))["outcome"] == "New"
        assert late.runs == []

    def test_ended_window_does_not_override_a_live_lease(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, dynamodb: Any, clock: ManualClock
    ) -> None:
        """A record whose TTL is past is still held for as long as its lease is live."""
        handler = consumer().event_handler(work)
        work.happen = crash
        with pytest.raises(Crash):
            handler(event(), invocation())
        dynamodb.update_item(
            TableName="Idempotency",
            Key={"idempotencyKey": {"S": KEY}},
            UpdateExpression="SET expiryTimestamp = :past",
            ExpressionAttributeValues={":past": {"N": str(clock() // 1000 - 60)}},
        )

        with pytest.raises(BusyError):
            handler(event(), invocation())


class TestRule3Fence:
    """Commit and failure change nothing unless the claim is still ours."""

    def overtaken(
        self, work: Work, clock: ManualClock, handler: Callable[..., Any], invocation: MakeInvocation
    ) -> Callable[[Operation], object]:
        """Make a step in which the process stalls past its lease and another delivery completes the key."""

        def happen(operation: Operation) -> str:
            work.happen = lambda _: "by the other run"
            clock.advance(60)
            handler(event(), invocation("request-2"))
            return "by the stale run"

        return happen

    def test_stale_owner_cannot_complete(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, dynamodb: Any
    ) -> None:
        """A run that was overtaken commits none of its effects, and its caller gets the committed result."""
        history = consumer()
        handler = history.event_handler(work)
        work.happen = self.overtaken(work, clock, handler, invocation)

        assert handler(event(), invocation())["outcome"] == "LostLease"
        assert effects(dynamodb) == 1

    def test_stale_owner_cannot_fail_what_is_completed(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, dynamodb: Any
    ) -> None:
        """A run that was overtaken and then raises leaves the completed record as it is."""
        history = consumer()
        handler = history.event_handler(work)
        overtaken = self.overtaken(work, clock, handler, invocation)

        def happen(operation: Operation) -> object:
            overtaken(operation)
            raise KeyError("too late")

        work.happen = happen

        assert handler(event(), invocation())["outcome"] == "LostLease"
        record = history.record("k1")
        assert record is not None
        assert (record.status, effects(dynamodb)) == ("COMPLETED", 1)

    def test_stale_owner_is_told_that_its_lease_is_lost(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        clock: ManualClock,
        seen: list[Observation],
    ) -> None:
        """A run that was overtaken by one which has not completed yet raises an error that brings the event back."""
        handler = consumer().event_handler(work)

        def happen(operation: Operation) -> None:
            work.happen = crash
            clock.advance(60)
            with pytest.raises(Crash):
                handler(event(), invocation("request-2"))

        work.happen = happen

        with pytest.raises(LostLeaseError):
            handler(event(), invocation())
        assert seen[-1].outcome == "LostLease"


class TestRule4Failure:
    """Failures are recorded, counted and, when no attempt is left, put out of the way."""

    def test_original_error_survives_a_failing_failure_write(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """The handler's own error is raised though recording it failed as well."""
        work.happen = fail_with(KeyError("pickup"))
        transport.pass_on()
        transport.answer("AccessDeniedException")

        with pytest.raises(KeyError, match="pickup") as raised:
            consumer().event_handler(work)(event(), invocation())
        assert "could not be recorded" in raised.value.__notes__[0]

    def test_last_attempt_ends_in_quarantine_and_dead_letter(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        box: DeadLetterBox,
    ) -> None:
        """The last attempt's event goes to the dead-letter queue with reason, key, attempt and itself, acknowledged."""
        history = consumer(max_attempts=3)
        handler = history.event_handler(work)
        work.happen = fail_with(KeyError("pickup"))
        for _ in range(2):
            with pytest.raises(KeyError):
                handler(event(), invocation())

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        (letter,) = box.letters
        assert letter._replace(event=None) == (QUARANTINED, "KeyError: 'pickup'", "history", KEY, 3, None)
        assert letter.event == event()
        record = history.record("k1")
        assert record is not None
        assert (record.status, record.expiry, record.dead_lettered) == ("QUARANTINED", None, True)

    def test_quarantined_key_is_never_run_and_sent_once(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """Later deliveries of a quarantined key are acknowledged and counted, without a run or another dead letter."""
        handler = consumer().event_handler(work)
        work.happen = fail_with(PermanentError("card refused"))
        handler(event(), invocation())

        assert handler(event(), invocation("request-2"))["outcome"] == "Quarantined"
        assert (len(work.runs), len(box.letters)) == (1, 1)

    def test_crashes_use_up_attempts(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, box: DeadLetterBox
    ) -> None:
        """An event that kills its process every time is quarantined when its attempts are used up, not run for ever."""
        handler = consumer(max_attempts=2).event_handler(work)
        work.happen = crash
        for _ in range(2):
            with pytest.raises(Crash):
                handler(event(), invocation())
            clock.advance(60)

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        assert (len(work.runs), box.letters[0].attempt) == (2, 2)

    def test_event_is_not_acknowledged_unless_the_dead_letter_is_stored(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """When the dead-letter queue is down the delivery raises, and the next one sends the letter."""
        handler = consumer().event_handler(work)
        work.happen = fail_with(PermanentError("card refused"))
        box.error = DeadLetterError("the queue is down")
        with pytest.raises(PermanentError, match="card refused"):
            handler(event(), invocation())
        box.error = None

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        assert (len(work.runs), len(box.letters)) == (1, 1)

    def test_other_event_under_a_quarantined_key_gets_its_own_dead_letter(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """A payload mismatch against a quarantined key is sent, though the key's own letter was sent before."""
        handler = consumer().event_handler(work)
        work.happen = fail_with(PermanentError("card refused"))
        handler(event(), invocation())

        assert handler(event(price=10), invocation("request-2"))["outcome"] == "DeadLettered"
        assert [letter.reason for letter in box.letters] == [QUARANTINED, PAYLOAD_MISMATCH]

    def test_mismatch_does_not_mark_the_quarantine_of_another_event(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """A key that was quarantined, but whose letter could not be sent, still gets its letter after a mismatch."""
        handler = consumer().event_handler(work)
        work.happen = fail_with(PermanentError("card refused"))
        box.error = DeadLetterError("the queue is down")
        with pytest.raises(PermanentError, match="card refused"):
            handler(event(), invocation())
        box.error = None
        handler(event(price=10), invocation("request-2"))

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        assert [letter.reason for letter in box.letters] == [PAYLOAD_MISMATCH, QUARANTINED]

    def test_without_a_dead_letter_queue_the_error_is_raised(
        self, store: DynamoDBStore, invocation: MakeInvocation, clock: ManualClock, work: Work
    ) -> None:
        """Without a dead-letter queue a permanent error is raised, so that the transport's own takes the event."""
        bare = Consumer("history", store, key="detail.idempotencyid", clock=clock)
        work.happen = fail_with(PermanentError("card refused"))

        with pytest.raises(PermanentError, match="card refused"):
            bare.event_handler(work)(event(), invocation())

    def test_retryable_error_uses_up_no_attempt(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, seen: list[Observation]
    ) -> None:
        """A handler that says "not now" is never quarantined for it, and a later failure still is."""
        handler = consumer(max_attempts=2).event_handler(work)
        work.happen = fail_with(BusyError("car", 1_000))
        for number in range(4):
            with pytest.raises(BusyError):
                handler(event(), invocation(f"request-{number}"))
        work.happen = fail_with(KeyError("pickup"))
        with pytest.raises(KeyError):
            handler(event(), invocation("request-8"))

        assert handler(event(), invocation("request-9"))["outcome"] == "DeadLettered"
        assert [operation.attempt for operation in work.runs] == [1, 1, 1, 1, 1, 2]

    def test_refused_commit_is_a_failure_with_its_own_reason(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        transport: FaultyTransport,
        box: DeadLetterBox,
    ) -> None:
        """What was definitely refused is recorded, so that the dead letter names the cause and no attempt waits."""
        handler = consumer(max_attempts=2).event_handler(work)
        for number in range(2):
            transport.pass_on(1 + number)
            transport.answer("AccessDeniedException")
            if number == 0:
                with pytest.raises(StoreRefusedError):
                    handler(event(), invocation("request-1"))
        handler(event(), invocation("request-2"))

        assert [letter.reason for letter in box.letters] == [QUARANTINED]
        assert "AccessDenied" in box.letters[0].message

    def test_work_that_must_not_be_repeated_is_given_up_after_a_crash(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        clock: ManualClock,
        box: DeadLetterBox,
    ) -> None:
        """With on_crash="quarantine" the event goes to the dead-letter queue as UNKNOWN, until it is released."""
        history = consumer(on_crash="quarantine")
        handler = history.event_handler(work)
        work.happen = crash
        with pytest.raises(Crash):
            handler(event(), invocation())
        clock.advance(60)
        work.happen = lambda _: None

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        assert handler(event(), invocation())["outcome"] == "Quarantined"
        assert [letter.reason for letter in box.letters] == [UNKNOWN]
        assert len(work.runs) == 1
        assert history.release("k1")
        assert handler(event(), invocation())["outcome"] == "Retried"

    def test_released_key_is_run_again_as_attempt_one(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, dynamodb: Any
    ) -> None:
        """A quarantined key that an operator releases is run at its next delivery, as attempt 1."""
        history = consumer()
        handler = history.event_handler(work)
        work.happen = fail_with(PermanentError("card refused"))
        handler(event(), invocation())
        work.happen = lambda _: None

        assert history.release("k1")
        assert not history.release("k1")
        assert handler(event(), invocation()) == {"outcome": "Retried", "key": KEY, "attempt": 1}
        assert effects(dynamodb) == 1

    def test_release_whose_answer_was_lost_is_recognised(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """An operator is told that a key was released though the answer to that was lost."""
        history = consumer()
        work.happen = fail_with(PermanentError("card refused"))
        history.event_handler(work)(event(), invocation())
        transport.pass_on()
        transport.lose_answer()

        assert history.release("k1")

    def test_back_off_holds_a_failed_key_back(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A failed key is not run before its back-off is over."""
        handler = consumer(backoff=lambda attempt: 10.0 * attempt).event_handler(work)
        work.happen = fail_with(KeyError("pickup"))
        with pytest.raises(KeyError):
            handler(event(), invocation())
        work.happen = lambda _: None

        clock.advance(9)
        with pytest.raises(RetryLaterError):
            handler(event(), invocation())
        clock.advance(2)
        assert handler(event(), invocation())["outcome"] == "Retried"

    def test_raw_event_is_kept_with_a_failure_where_asked_for(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work
    ) -> None:
        """A failed record holds the event for recovery by hand when the policy says so."""
        history = consumer(keep_event=True)
        work.happen = fail_with(KeyError("pickup"))
        with pytest.raises(KeyError):
            history.event_handler(work)(event(), invocation())

        record = history.record("k1")
        assert record is not None
        assert record.event is not None
        assert '"orderID":"order_01"' in record.event


class TestRule5Lease:
    """A lease lasts as long as the invocation can, or is short and renewed."""

    def test_lease_follows_the_deadline_of_a_short_function(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A claim holds until the function is certainly stopped."""
        history = consumer(margin=1)
        leases = []
        work.happen = lambda _: leases.append(history.record("k1"))
        history.event_handler(work)(event(), invocation(timeout_s=30))

        assert leases[0] is not None
        assert leases[0].lease_ms == clock() + 31_000

    def test_lease_of_a_long_function_is_short(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A function that may run longer than Lambda's retries wait gets a short lease, which heartbeats renew."""
        history = consumer(lease=30)
        leases = []

        def happen(operation: Operation) -> None:
            leases.append(history.record("k1"))
            clock.advance(20)
            assert operation.heartbeat()
            leases.append(history.record("k1"))

        work.happen = happen
        history.event_handler(work)(event(), invocation(timeout_s=900))

        assert [lease.lease_ms - clock() for lease in leases if lease and lease.lease_ms] == [10_000, 30_000]

    def test_heartbeat_never_outlasts_its_own_invocation(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A heartbeat near the deadline extends the lease to the deadline and its margin, and no further."""
        history = consumer(lease=30, margin=1)
        leases = []

        def happen(operation: Operation) -> None:
            clock.advance(190)
            operation.heartbeat()
            leases.append(history.record("k1"))

        work.happen = happen
        history.event_handler(work)(event(), invocation(timeout_s=200))

        assert leases[0] is not None
        assert leases[0].lease_ms == clock() + 11_000

    def test_late_heartbeat_never_shortens_the_lease(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        store: DynamoDBStore,
        clock: ManualClock,
    ) -> None:
        """A heartbeat that was given up, and arrives after the next one, leaves the longer lease as it is."""
        history = consumer(lease=30)
        leases = []

        def happen(operation: Operation) -> None:
            late = history.record("k1")
            assert late is not None
            clock.advance(20)
            assert operation.heartbeat()
            store.update_if_owner(late)
            leases.append(history.record("k1"))
            assert operation.heartbeat()

        work.happen = happen
        history.event_handler(work)(event(), invocation(timeout_s=900))

        assert leases[0] is not None
        assert leases[0].lease_ms == clock() + 30_000

    def test_losing_the_lease_sets_a_flag_that_the_work_can_see(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """Work whose key was taken over learns it from its next heartbeat."""
        handler = consumer(lease=30).event_handler(work)
        flags = []

        def happen(operation: Operation) -> None:
            work.happen = lambda _: None
            clock.advance(60)
            handler(event(), invocation("request-2", timeout_s=900))
            flags.extend([operation.lost, operation.heartbeat(), operation.lost])

        work.happen = happen
        handler(event(), invocation(timeout_s=900))

        assert flags == [True, False, True]


class TestRule6EffectsWithTheRecord:
    """Registered writes take place together with the completion, or not at all."""

    def test_conflict_of_an_effect_is_a_business_conflict(
        self, consumer: MakeConsumer, invocation: MakeInvocation, dynamodb: Any
    ) -> None:
        """A condition that the handler put on its own item raises EffectConflictError and writes nothing."""
        history = consumer()
        dynamodb.put_item(TableName="Rides", Item={"id": {"S": "car_1"}, "ride": {"S": "order_02"}})

        @history.event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            operation.write(
                Put("Rides", {"id": "order_01"}),
                Put("Rides", {"id": "car_1", "ride": "order_01"}, condition="attribute_not_exists(ride)"),
            )

        with pytest.raises(EffectConflictError) as raised:
            handler(event(), invocation())

        assert (raised.value.index, raised.value.item) == (1, {"id": {"S": "car_1"}, "ride": {"S": "order_02"}})
        assert "Item" not in dynamodb.get_item(TableName="Rides", Key={"id": {"S": "order_01"}})
        record = history.record("k1")
        assert record is not None
        assert record.status == "FAILED"

    @pytest.mark.parametrize("atomic", [False, True])
    def test_handler_is_run_again_after_a_conflict_where_the_policy_says_so(
        self, consumer: MakeConsumer, invocation: MakeInvocation, dynamodb: Any, *, atomic: bool
    ) -> None:
        """With conflict_reruns the handler decides anew on what it now finds, in the same attempt."""
        cars = ["car_1", "car_2"]
        dynamodb.put_item(TableName="Rides", Item={"id": {"S": "car_1"}, "ride": {"S": "order_02"}})

        @consumer(atomic=atomic, conflict_reruns=1).event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            operation.write(Put("Rides", {"id": cars.pop(0), "ride": "x"}, condition="attribute_not_exists(ride)"))

        assert handler(event(), invocation())["outcome"] == "New"
        assert dynamodb.get_item(TableName="Rides", Key={"id": {"S": "car_2"}})["Item"]["ride"] == {"S": "x"}

    @pytest.mark.parametrize("count", [100, 150])
    def test_more_effects_than_a_transaction_holds_are_permanent(
        self, consumer: MakeConsumer, invocation: MakeInvocation, box: DeadLetterBox, count: int
    ) -> None:
        """A hundred effects and the record do not fit into one transaction: no retry can help, nothing is written."""

        @consumer().event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            operation.write(*(Put("Rides", {"id": f"ride_{number}"}) for number in range(count)))

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        assert "100 actions" in box.letters[0].message

    def test_effect_that_cannot_be_stored_is_permanent(
        self, consumer: MakeConsumer, invocation: MakeInvocation, box: DeadLetterBox
    ) -> None:
        """A value without a form in DynamoDB sends the event to the dead-letter queue with its name."""

        @consumer().event_handler
        def handler(event: dict[str, Any], operation: Operation) -> None:
            operation.write(Put("Rides", {"id": "order_01", "price": 9.99}))

        assert handler(event(), invocation())["outcome"] == "DeadLettered"
        assert "float" in box.letters[0].message

    def test_commit_that_was_never_answered_leaves_the_record_to_decide(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport, dynamodb: Any
    ) -> None:
        """A commit whose answers were all lost raises, and the next delivery finds that it had taken place."""
        handler = consumer().event_handler(work)
        transport.pass_on()
        for _ in range(6):
            transport.lose_answer()
        with pytest.raises(StoreUnavailableError):
            handler(event(), invocation())

        assert handler(event(), invocation())["outcome"] == "Duplicate"
        assert effects(dynamodb) == 1


class TestRule7AtomicMode:
    """One transaction writes effects and completion, without a claim."""

    def test_new_event_and_duplicate_cost_one_round_trip_each(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport, dynamodb: Any
    ) -> None:
        """Atomic mode has one round trip for a new event, one for a duplicate, and one effect."""
        handler = consumer(atomic=True).event_handler(work)

        assert handler(event(), invocation())["outcome"] == "New"
        assert handler(event(), invocation("request-2"))["outcome"] == "Duplicate"
        assert transport.requests == ["TransactWriteItems"] * 2
        assert effects(dynamodb) == 1

    def test_error_is_recorded_and_the_retry_commits_as_the_next_attempt(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, dynamodb: Any
    ) -> None:
        """A failed atomic run leaves FAILED without its effects, and the retry commits over it."""
        history = consumer(atomic=True)
        handler = history.event_handler(work)
        work.happen = fail_with(KeyError("pickup"))
        with pytest.raises(KeyError):
            handler(event(), invocation())
        assert effects(dynamodb) == 0
        work.happen = lambda _: None

        assert handler(event(), invocation()) == {"outcome": "Retried", "key": KEY, "attempt": 2}
        assert effects(dynamodb) == 1

    def test_claim_that_may_be_taken_over_is_committed_over(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, dynamodb: Any
    ) -> None:
        """An atomic run that meets a dead claim commits over it, and one that meets a live claim does not."""
        work.happen = crash
        with pytest.raises(Crash):
            consumer().event_handler(work)(event(), invocation())
        work.happen = lambda _: None
        atomic = consumer(atomic=True).event_handler(work)

        with pytest.raises(BusyError):
            atomic(event(), invocation())
        assert effects(dynamodb) == 0
        clock.advance(60)
        assert atomic(event(), invocation())["outcome"] == "Takeover"
        assert effects(dynamodb) == 1

    def test_commit_whose_answer_was_lost_is_recognised(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport, dynamodb: Any
    ) -> None:
        """An atomic commit that took place though its answer was lost is this delivery's own success."""
        transport.lose_answer()

        assert consumer(atomic=True).event_handler(work)(event(), invocation())["outcome"] == "New"
        assert effects(dynamodb) == 1


class TestRule8Keys:
    """The key is computed once, carried by the operation, and never partial."""

    @pytest.mark.parametrize("key", [None, ""])
    def test_missing_key_fails_closed(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox, key: str | None
    ) -> None:
        """An event without a key is not run, and goes to the dead-letter queue."""
        assert consumer().event_handler(work)(event(key), invocation())["outcome"] == "DeadLettered"
        assert (box.letters[0].reason, work.runs) == (MISSING_KEY, [])

    def test_partly_missing_composite_key_fails_closed(
        self, store: DynamoDBStore, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """A composite key of which one part is missing is as bad as none."""
        history = Consumer(
            "history", store, key="[detail.data.tenant, detail.idempotencyid]", dead_letters=box, region="eu-west-1"
        )

        assert history.event_handler(work)(event(), invocation())["outcome"] == "DeadLettered"
        assert (box.letters[0].reason, work.runs) == (MISSING_KEY, [])

    def test_nested_operations_of_one_consumer_do_not_mix_keys(self, consumer: MakeConsumer) -> None:
        """An operation started inside another completes its own key and leaves the outer one alone."""
        history = consumer()
        with history.operation("outer") as outer:
            with history.operation("inner") as inner:
                inner.complete("inner result")
            middle = history.record("outer"), history.record("inner")
            outer.complete("outer result")

        assert [record and record.status for record in middle] == ["IN_PROGRESS", "COMPLETED"]
        with history.operation("outer") as again:
            assert (again.done, again.result) == (True, "outer result")


class TestRule9Results:
    """A result never breaks deduplication."""

    @pytest.mark.parametrize("result", [None, False, 0, "", [], {}])
    def test_falsy_results_come_back_equal(self, consumer: MakeConsumer, result: object) -> None:
        """A function whose result is empty is not run again, and its caller gets that very result."""
        runs = []

        @consumer().function(key="order_id")
        def book(order_id: str) -> object:
            runs.append(order_id)
            return result

        assert [book("order_01"), book("order_01")] == [result, result]
        assert len(runs) == 1

    @pytest.mark.parametrize("result", [object(), "x" * 300_000])
    def test_result_that_cannot_be_stored_completes_without_its_value(
        self, consumer: MakeConsumer, result: object
    ) -> None:
        """A result without a stored form, or too large, reaches its own caller, and its operation is not run again."""
        runs = []

        @consumer().function(key="order_id")
        def book(order_id: str) -> object:
            runs.append(order_id)
            return result

        assert book("order_01") is result
        with pytest.raises(ResultOmittedError):
            book("order_01")
        assert len(runs) == 1


class TestRule10Fingerprint:
    """One key with two payloads is an error, found without a read."""

    def test_other_payload_under_a_known_key_goes_to_the_dead_letter_queue(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        box: DeadLetterBox,
        transport: FaultyTransport,
    ) -> None:
        """A second event that shares a key with a first one is neither run nor taken for its duplicate."""
        handler = consumer().event_handler(work)
        handler(event(), invocation())

        assert handler(event(price=10), invocation("request-2"))["outcome"] == "DeadLettered"
        assert (box.letters[0].reason, len(work.runs)) == (PAYLOAD_MISMATCH, 1)
        assert "GetItem" not in transport.requests

    def test_another_envelope_is_no_mismatch(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work
    ) -> None:
        """The same data in an envelope with other ids, times and metadata is a duplicate."""
        handler = consumer().event_handler(work)
        handler(event(), invocation())
        replay = event() | {"id": "e2", "replay-name": "r", "time": "2027-01-15T08:00:01Z"}
        replay["detail"] |= {"traceparent": "00-1-2-01"}

        assert handler(replay, invocation("request-2"))["outcome"] == "Duplicate"

    def test_mismatch_raises_for_a_synchronous_caller(self, consumer: MakeConsumer) -> None:
        """A function called with a known key and other arguments raises."""

        @consumer().function(key="order_id")
        def book(order_id: str, price: int) -> int:
            return price

        book("order_01", 10)
        with pytest.raises(PayloadMismatchError):
            book("order_01", 11)


class TestRule11Busy:
    """A busy delivery is forgotten only where another one stands for the event."""

    @pytest.fixture
    def held(self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work) -> Work:
        """The key is held by request-1, which died."""
        work.happen = crash
        with pytest.raises(Crash):
            consumer().event_handler(work)(event(), invocation("request-1"))
        work.happen = lambda _: None
        return work

    def test_another_delivery_is_acknowledged_and_counted(
        self, held: Work, consumer: MakeConsumer, invocation: MakeInvocation, seen: list[Observation]
    ) -> None:
        """While request-1's delivery stands for the event, request-2 need not come back."""
        assert consumer().event_handler(held)(event(), invocation("request-2"))["outcome"] == "Busy"
        assert seen[-1].outcome == "Busy"

    def test_holder_that_may_not_come_again_stands_for_nothing(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work
    ) -> None:
        """While a synchronous caller's run, a function or a block holds the key, EventBridge's delivery comes back."""
        history = consumer()
        direct = {name: value for name, value in event().items() if name != "account"}
        work.happen = crash
        with pytest.raises(Crash):
            history.event_handler(work)(direct, invocation("request-1"))
        with pytest.raises(BusyError):
            history.event_handler(work)(event(), invocation("request-2"))

        with history.operation("k2", event("k2")["detail"]["data"]), pytest.raises(BusyError):
            history.event_handler(work)(event("k2"), invocation("request-3"))

    def test_two_deliveries_are_never_acknowledged_because_of_each_other(
        self, held: Work, consumer: MakeConsumer, invocation: MakeInvocation
    ) -> None:
        """Of two deliveries only the one whose id comes later may be forgotten: the first one stands for the event."""
        with pytest.raises(BusyError):
            consumer().event_handler(held)(event(), invocation("request-0"))

    def test_same_delivery_comes_back(self, held: Work, consumer: MakeConsumer, invocation: MakeInvocation) -> None:
        """Lambda's own retry of the holder raises, with the time that the lease has left, so that no event is lost."""
        with pytest.raises(BusyError) as raised:
            consumer().event_handler(held)(event(), invocation("request-1"))
        assert raised.value.lease_left_ms == 32_001

    def test_replay_comes_back(self, held: Work, consumer: MakeConsumer, invocation: MakeInvocation) -> None:
        """A replayed event raises while the key is held."""
        with pytest.raises(BusyError):
            consumer().event_handler(held)(event() | {"replay-name": "r"}, invocation("request-2"))

    def test_another_region_comes_back(self, held: Work, consumer: MakeConsumer, invocation: MakeInvocation) -> None:
        """A delivery in another region raises: the holder's delivery may have failed with its region."""
        with pytest.raises(BusyError):
            consumer(region="eu-central-1").event_handler(held)(event(), invocation("request-2"))

    def test_synchronous_caller_is_told(self, held: Work, consumer: MakeConsumer) -> None:
        """A function call is no delivery that anyone else would repeat."""
        with pytest.raises(BusyError), consumer().operation("k1", event()["detail"]["data"]):
            pass

    def test_same_delivery_takes_over_at_once_where_the_policy_says_so(
        self, held: Work, consumer: MakeConsumer, invocation: MakeInvocation, dynamodb: Any
    ) -> None:
        """Where all effects are in the commit, Lambda's retry of a crashed run need not wait for the lease."""
        handler = consumer(same_delivery_takes_over=True).event_handler(held)

        assert handler(event(), invocation("request-1"))["outcome"] == "Takeover"
        assert effects(dynamodb) == 1

    def test_wait_answers_with_the_result_of_the_other_run(
        self, consumer: MakeConsumer, clock: ManualClock, transport: FaultyTransport
    ) -> None:
        """A caller that waits gets what the holder commits meanwhile."""
        slow = consumer()
        waiting = consumer(busy="wait")
        with slow.operation("k1") as holder:
            holder.complete("the result")
            transport.pass_on()
            transport.meanwhile(lambda: holder.__exit__(None, None, None))
            with waiting.operation("k1") as waiter:
                assert (waiter.done, waiter.result) == (True, "the result")

    def test_wait_is_bounded(self, consumer: MakeConsumer, clock: ManualClock) -> None:
        """A caller that waits gives up at the limit."""
        started = clock()
        with consumer().operation("k1"), pytest.raises(BusyError), consumer(busy="wait", wait_limit=5).operation("k1"):
            pass
        assert 4_000 <= clock() - started <= 5_000


class TestRule12Time:
    """Nothing starts that the invocation's remaining time could not commit."""

    def test_nothing_starts_inside_the_reserve(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """An event that arrives too late in an invocation is left alone, unclaimed, to be delivered again."""
        with pytest.raises(OutOfTimeError):
            consumer(reserve=1).event_handler(work)(event(), invocation(timeout_s=1))
        assert (work.runs, transport.requests) == ([], [])

    def test_tries_of_a_silent_store_end_before_the_reserve(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """With three seconds left, a claim without an answer is not tried again when that could take too long."""
        for _ in range(6):
            transport.lose_request()

        with pytest.raises(StoreUnavailableError):
            consumer(reserve=1.5).event_handler(work)(event(), invocation(timeout_s=3))
        assert len(transport.requests) == 1


class TestRule13Window:
    """The window is outlasted by no delivery that is run."""

    def test_window_shorter_than_the_invocation_is_a_mistake_in_the_settings(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """Under such a window every delivery would be too old: that is said, and no event is given up for it."""
        with pytest.raises(ConfigurationError, match="shorter than the invocation"):
            consumer(window=60).event_handler(work)(event(), invocation(timeout_s=60))
        assert (work.runs, box.letters) == ([], [])

    def test_failure_is_forgotten_with_its_window(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A failed key whose record DynamoDB has not deleted yet starts again at attempt 1, with any payload."""
        handler = consumer(window=3_600, max_attempts=1).event_handler(work)
        work.happen = fail_with(BusyError("car", 1))
        with pytest.raises(BusyError):
            handler(event(), invocation())
        clock.advance(3_700)
        work.happen = lambda _: None

        later = event(price=10) | {"time": "2027-01-15T09:00:00Z"}
        assert handler(later, invocation("request-2"))["attempt"] == 1

    def test_delivery_older_than_the_window_never_runs(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, box: DeadLetterBox
    ) -> None:
        """An event whose record may be forgotten already goes to the dead-letter queue instead of being run."""
        clock.advance(86_400)

        answer = consumer(window=86_400, clock_skew=1).event_handler(work)(event(), invocation())

        assert (answer["outcome"], box.letters[0].reason, work.runs) == ("DeadLettered", BEYOND_WINDOW, [])

    def test_delivery_that_could_outlive_its_window_never_runs(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """An invocation that may still be running when the record is forgotten does not begin."""
        clock.advance(80)
        handler = consumer(window=100, clock_skew=0).event_handler(work)

        assert handler(event(), invocation(timeout_s=30))["outcome"] == "DeadLettered"
        assert work.runs == []

    def test_old_event_in_a_fresh_message_never_runs(
        self, store: DynamoDBStore, invocation: MakeInvocation, work: Work, clock: ManualClock, box: DeadLetterBox
    ) -> None:
        """An old event that a rule put into a queue a moment ago is as old as its envelope says."""
        dispatch = Consumer("dispatch", store, key="detail.idempotencyid", dead_letters=box, clock=clock)
        clock.advance(31 * 86_400)
        record = {
            "messageId": "m1",
            "body": json.dumps(event()),
            "attributes": {"SentTimestamp": str(clock()), "ApproximateReceiveCount": "1"},
        }

        assert dispatch.batch_handler(work)({"Records": [record]}, invocation()) == {"batchItemFailures": []}
        assert (box.letters[0].reason, work.runs) == (BEYOND_WINDOW, [])

    def test_duplicate_late_in_the_window_is_recognised(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock, dynamodb: Any
    ) -> None:
        """After 29 days the default window still knows the event."""
        handler = consumer().event_handler(work)
        handler(event(), invocation())
        clock.advance(29 * 86_400)

        assert handler(event(), invocation("request-2"))["outcome"] == "Duplicate"
        assert effects(dynamodb) == 1

    def test_ttl_of_a_claim_is_an_hour_past_its_lease(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work
    ) -> None:
        """However short the window, DynamoDB cannot delete a claim that still holds."""
        history = consumer(window=40, clock_skew=0)
        claims = []
        work.happen = lambda _: claims.append(history.record("k1"))
        history.event_handler(work)(event(), invocation())

        claim = claims[0]
        assert claim is not None
        assert claim.expiry is not None
        assert claim.lease_ms is not None
        assert claim.expiry - claim.lease_ms // 1000 == 3_600

    def test_completed_record_past_its_window_is_taken_as_new(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, clock: ManualClock
    ) -> None:
        """A record that TTL has not deleted yet, though its window has ended, does not answer a new event."""
        handler = consumer(window=3_600).event_handler(work)
        handler(event(), invocation())
        clock.advance(3_700)
        fresh = event() | {"time": "2027-01-15T09:01:00Z"}

        assert handler(fresh, invocation("request-2")) == {"outcome": "New", "key": KEY, "attempt": 1}


class TestRule15WarmCache:
    """A process answers duplicates that it saw completed a moment ago."""

    def test_warm_duplicate_costs_no_round_trip(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """A duplicate of what this process has just completed is answered without asking DynamoDB."""
        handler = consumer(warm_cache=10).event_handler(work)
        handler(event(), invocation())
        transport.requests.clear()

        assert handler(event(), invocation("request-2"))["outcome"] == "Duplicate"
        assert transport.requests == []

    def test_warm_answer_is_at_most_five_minutes_old(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        transport: FaultyTransport,
        clock: ManualClock,
    ) -> None:
        """After five minutes the record is asked again."""
        handler = consumer(warm_cache=10).event_handler(work)
        handler(event(), invocation())
        clock.advance(301)
        transport.requests.clear()

        assert handler(event(), invocation("request-2"))["outcome"] == "Duplicate"
        assert transport.requests == ["PutItem"]

    def test_cache_is_bounded(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """The record that was used longest ago makes room."""
        handler = consumer(warm_cache=2).event_handler(work)
        for key in ("k1", "k2", "k3"):
            handler(event(key), invocation())
        transport.requests.clear()

        handler(event("k3"), invocation("request-2"))
        assert transport.requests == []
        handler(event("k1"), invocation("request-2"))
        assert transport.requests == ["PutItem"]

    def test_warm_cache_checks_the_payload(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, box: DeadLetterBox
    ) -> None:
        """Another payload under a cached key is as wrong as under a stored one."""
        handler = consumer(warm_cache=10).event_handler(work)
        handler(event(), invocation())

        assert handler(event(price=10), invocation("request-2"))["outcome"] == "DeadLettered"
        assert box.letters[0].reason == PAYLOAD_MISMATCH


class TestRule16Tokens:
    """Owner tokens are made from the operating system's randomness, at claim time."""

    def test_every_claim_asks_the_operating_system_for_its_token(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two claims of clones that share everything made at import still have different owners."""
        drawn = []
        urandom = os.urandom

        def recorded(size: int) -> bytes:
            token = urandom(size)
            drawn.append(token.hex())
            return token

        handler = consumer().event_handler(work)
        monkeypatch.setattr(os, "urandom", recorded)
        handler(event("k1"), invocation())
        handler(event("k2"), invocation())

        owners = [operation.owner for operation in work.runs]
        assert len(set(owners)) == 2
        assert set(owners) <= set(drawn)


class TestFailsClosed:
    """What makes no sense is left alone."""

    @pytest.mark.parametrize(
        ("name", "value"), [("status", "DONE"), ("status", None), ("leaseExpiry", None), ("leaseExpiry", "soon")]
    )
    def test_corrupt_record_is_neither_run_nor_overwritten(
        self,
        consumer: MakeConsumer,
        invocation: MakeInvocation,
        work: Work,
        dynamodb: Any,
        box: DeadLetterBox,
        name: str,
        value: str | None,
    ) -> None:
        """A record with an unknown status, or a claim without a lease, stays as it is until an operator releases it."""
        history = consumer()
        handler = history.event_handler(work)
        work.happen = crash
        with pytest.raises(Crash):
            handler(event(), invocation())
        dynamodb.update_item(
            TableName="Idempotency",
            Key={"idempotencyKey": {"S": KEY}},
            UpdateExpression="REMOVE #n" if value is None else "SET #n = :v",
            ExpressionAttributeNames={"#n": name},
            **({} if value is None else {"ExpressionAttributeValues": {":v": {"S": value}}}),
        )
        before = dynamodb.get_item(TableName="Idempotency", Key={"idempotencyKey": {"S": KEY}})["Item"]

        assert handler(event(), invocation("request-2"))["outcome"] == "DeadLettered"
        assert [letter.reason for letter in box.letters] == [CORRUPT_RECORD]
        assert dynamodb.get_item(TableName="Idempotency", Key={"idempotencyKey": {"S": KEY}})["Item"] == before
        assert len(work.runs) == 1

        work.happen = lambda _: None
        assert history.release("k1")
        assert handler(event(), invocation("request-3"))["outcome"] == "Retried"

    def test_missing_permission_names_table_and_remedy(
        self, consumer: MakeConsumer, invocation: MakeInvocation, work: Work, transport: FaultyTransport
    ) -> None:
        """A refused request is retryable, so that nothing is lost while the role is mended, and says what to check."""
        transport.answer("AccessDeniedException")

        with pytest.raises(RetryableError, match=r"PutItem on Idempotency.*role") as raised:
            consumer().event_handler(work)(event(), invocation())
        assert isinstance(raised.value.__cause__, ServiceError)
