"""The rules of the protocol by example, over DynamoDB's wire format in this process.

The explorer, the simulation and the conformance suite prove them in every order of steps and on
every store.
"""

import json
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from carride_idempotency import (
    DYNAMODB_STREAM,
    BusyError,
    ConfigurationError,
    EffectConflictError,
    Operation,
    PermanentError,
    Put,
    QuarantinedError,
)
from carride_idempotency.dead_letters import (
    BEYOND_WINDOW,
    CORRUPT_RECORD,
    QUARANTINED,
    UNKNOWN,
    DeadLetter,
)
from carride_idempotency.errors import LostLeaseError, StoreUnavailableError
from carride_idempotency.testing import Crash, DeadLetterBox, dynamodb_stream_event, sqs_event
from tests.samples import TABLE, World, crash, event, fail_with

KEY = "history#k1"
STORED_KEY = {"TableName": "Idempotency", "Key": {"idempotencyKey": {"S": KEY}}}
NO_CAR = KeyError("pickup")
CARD_REFUSED = PermanentError("card refused")


def tamper(world: World, name: str, value: dict[str, str] | None) -> None:
    """Set an attribute of the stored record, or remove it."""
    item = world.dynamodb.get_item(**STORED_KEY)["Item"] | {name: value}
    world.dynamodb.put_item(TableName=TABLE, Item={each: its for each, its in item.items() if its})


class TestClaim:
    """A claim is a conditional write that returns the existing record and recognises its own."""

    @pytest.mark.parametrize(
        ("step", "round_trips", "atomic"),
        [
            ("claim", 0, False),
            ("takeover", 1, False),
            ("commit", 1, False),
            ("atomic commit", 0, True),
        ],
    )
    def test_write_whose_answer_was_lost_is_recognised(
        self, world: World, step: str, round_trips: int, *, atomic: bool
    ) -> None:
        """A write whose answer was lost is this delivery's own, and its effects happen once."""
        if step == "takeover":
            world.crash()
            world.clock.advance(60)
        world.transport.pass_on(round_trips)
        world.transport.lose_answer()
        outcome = "Takeover" if step == "takeover" else "New"
        assert (world.deliver(atomic=atomic)["outcome"], world.effects) == (outcome, 1)

    def test_takeover_of_a_record_that_vanished_starts_again_at_the_claim(
        self, world: World
    ) -> None:
        """A failed record that TTL deletes before its takeover is claimed as new."""
        world.fail(NO_CAR)
        world.transport.pass_on()
        world.transport.meanwhile(lambda: world.dynamodb.delete_item(**STORED_KEY))
        assert (world.deliver()["attempt"], world.effects) == (1, 1)


class TestTakeover:
    """A takeover compares everything that was seen, the lease included."""

    def test_ended_window_does_not_override_a_live_lease(self, world: World) -> None:
        """A live lease holds even if the record's TTL has passed."""
        world.crash()
        tamper(world, "expiryTimestamp", {"N": str(world.clock() // 1000 - 60)})
        with pytest.raises(BusyError):
            world.deliver()


class TestFailure:
    """Failures are recorded and counted; after the last attempt the key is quarantined."""

    def test_last_attempt_ends_in_quarantine_and_dead_letter(self, world: World) -> None:
        """After the last attempt the event is dead-lettered with the reason, and acknowledged."""
        for _ in range(2):
            world.fail(NO_CAR, keep_event=True)
            assert json.loads(world.record().event or "") == event(), (
                "it is kept for recovery by hand"
            )
        world.work.step = fail_with(NO_CAR)
        assert world.deliver()["outcome"] == "DeadLettered"
        assert world.box.letters == [
            (QUARANTINED, "KeyError: 'pickup'", "history", KEY, 3, event())
        ]
        record = world.record()
        assert (record.status, record.expiry, record.dead_lettered) == ("QUARANTINED", None, True)

    def test_work_that_must_not_be_repeated_is_given_up_after_a_crash(self, world: World) -> None:
        """With on_crash="quarantine" the event is dead-lettered once, as UNKNOWN, till released."""
        world.crash(on_crash="quarantine")
        world.clock.advance(60)
        outcomes = [world.deliver(on_crash="quarantine")["outcome"] for _ in range(2)]
        assert outcomes == ["DeadLettered", "Quarantined"]
        assert (world.reasons, len(world.work.runs)) == ([UNKNOWN], 1)
        world.transport.pass_on()
        world.transport.lose_answer()
        assert [world.consumer().release("k1") for _ in range(2)] == [True, False]
        assert world.deliver(on_crash="quarantine") == {
            "outcome": "Retried",
            "key": KEY,
            "attempt": 1,
        }

    def test_an_outage_uses_up_no_attempt(self, world: World) -> None:
        """While a service is out of order, its exceptions count no attempt; all others do."""
        for _ in range(5):
            world.fail(ConnectionResetError("gateway"), outages=(ConnectionError,))
        assert world.record().attempt == 0
        world.fail(KeyError("pickup"), outages=(ConnectionError,))
        assert world.record().attempt == 1
        assert world.deliver(outages=(ConnectionError,))["outcome"] == "Retried"

    def test_crashed_key_is_released_when_no_attempt_can_run(self, world: World) -> None:
        """A key whose attempts all crashed is released a minute after the last lease, no sooner."""
        for _ in range(2):
            world.crash(max_attempts=2)
            world.clock.advance(60)
        assert not world.consumer().release("k1")
        world.clock.advance(60)
        assert world.consumer().release("k1")
        assert world.deliver(max_attempts=2)["attempt"] == 1

    def test_mark_belongs_to_the_quarantine_whose_letter_was_sent(self, world: World) -> None:
        """After a release, a late mark of the earlier quarantine changes nothing."""

        class SlowQueue(DeadLetterBox):
            def send(self, dead_letter: DeadLetter) -> None:
                super().send(dead_letter)
                assert world.consumer().release("k1")

        slow = world.consumer(dead_letters=SlowQueue()).event_handler(world.work)
        world.work.step = fail_with(CARD_REFUSED)
        assert slow(event(), world.invocation())["outcome"] == "DeadLettered"
        assert (world.record().status, world.record().dead_lettered) == ("FAILED", False)

    @pytest.mark.parametrize(
        ("ends", "says"),
        {
            "it fails at every attempt": ([NO_CAR] * 3, "KeyError: 'pickup'"),
            "it crashes at every attempt": ([None] * 4, "every attempt ended without an answer"),
            "it is refused for good": ([CARD_REFUSED], "PermanentError: card refused"),
        }.values(),
    )
    def test_each_letter_of_a_quarantined_key_says_why_it_was_given_up(
        self, world: World, ends: list[Exception | None], says: str
    ) -> None:
        """A copy that is only refused has the letter that the last attempt has."""
        for error in ends:
            world.work.step = crash if error is None else fail_with(error)
            with suppress(KeyError, Crash):
                world.deliver()
            world.clock.advance(60)
        tamper(world, "deadLettered", None)
        assert world.deliver()["outcome"] == "DeadLettered"
        assert [letter.message for letter in world.box.letters] == [says] * 2

    def test_letter_of_a_quarantine_is_sent_once(self, world: World) -> None:
        """A caller that is not a transport gets the error each time, and adds no letter."""

        def charge(order: str) -> None:
            raise CARD_REFUSED

        call = world.consumer().function(key="order", name="card")(charge)
        for error in (PermanentError, QuarantinedError, QuarantinedError):
            with pytest.raises(error):
                call("order_01")
        assert world.reasons == [QUARANTINED]


class TestLease:
    """A lease lasts as long as the invocation can, or is short and renewed."""

    @pytest.mark.parametrize(
        ("timeout_s", "waits_s", "lefts_ms"),
        [(30, [0], [31_000]), (900, [20, 870], [10_000, 30_000, -840_000, 11_000])],
    )
    def test_lease_of_a_long_function_is_short(
        self, world: World, timeout_s: int, waits_s: list[int], lefts_ms: list[int]
    ) -> None:
        """It lasts until deadline and margin, unless the function may outlast Lambda's retries.

        Then it is renewed.
        """
        left_ms = []

        def step(operation: Operation) -> None:
            for seconds in waits_s:
                world.clock.advance(seconds)
                left_ms.append((world.record().lease_ms or 0) - world.clock())
                if timeout_s == 900:
                    operation.heartbeat()
                    left_ms.append((world.record().lease_ms or 0) - world.clock())

        world.work.step = step
        world.deliver(timeout_s=timeout_s, lease=30, margin=1)
        assert left_ms == lefts_ms

    @pytest.mark.parametrize("completes", [True, False])
    def test_losing_the_lease_sets_a_flag_that_the_work_can_see(
        self, world: World, *, completes: bool
    ) -> None:
        """It sees ``operation.lost`` before its next heartbeat, and returns the record's result."""
        flags = []

        def step(operation: Operation) -> None:
            world.clock.advance(60)
            if completes:
                world.work.step = lambda _: None
                world.deliver(by="request-2", timeout_s=900)
            else:
                world.crash(by="request-2", timeout_s=900)
            flags.extend([operation.lost, operation.heartbeat(), operation.lost])

        world.work.step = step
        with nullcontext() if completes else pytest.raises(LostLeaseError):
            world.deliver(timeout_s=900)
        assert (flags, world.seen[-1].outcome) == ([True, False, True], "LostLease")


class TestEffects:
    """Registered writes take place together with the completion, or not at all."""

    @pytest.mark.parametrize("atomic", [False, True])
    def test_handler_is_run_again_after_a_conflict_where_the_policy_says_so(
        self, world: World, *, atomic: bool
    ) -> None:
        """A refused effect fails the attempt.

        With conflict_reruns the handler runs again in the same one.
        """
        taken = {"id": {"S": "car_1"}, "ride": {"S": "order_02"}}
        world.dynamodb.put_item(TableName="Rides", Item=taken)
        cars = iter(["car_1", "car_1", "car_2"])
        world.work.step = lambda operation: operation.write(
            Put(
                "Rides",
                {"id": next(cars), "ride": "order_01"},
                condition="attribute_not_exists(ride)",
            )
        )
        with pytest.raises(EffectConflictError) as raised:
            world.deliver(atomic=atomic)
        assert (raised.value.index, raised.value.item) == (1, taken)
        assert (world.effects, world.record().status) == (0, "FAILED")
        assert world.deliver(atomic=atomic, conflict_reruns=1)["outcome"] == "Retried"
        assert "Item" in world.dynamodb.get_item(TableName="Rides", Key={"id": {"S": "car_2"}})
        assert (world.effects, world.record().attempt) == (1, 2)

    def test_effects_that_can_never_be_written_are_permanent(self, world: World) -> None:
        """No retry can help where a transaction would hold too much, and nothing is written."""
        effects = [Put("Rides", {"id": f"ride_{number}"}) for number in range(99)]
        world.work.step = lambda operation: operation.write(*effects)
        assert world.deliver()["outcome"] == "DeadLettered"
        assert "more than the 99" in world.box.letters[0].message
        assert world.effects == 0


class TestBusy:
    """A busy delivery is acknowledged only if another delivery of the event will be retried."""

    @pytest.fixture
    def held(self, world: World) -> World:
        """The key is held by request-1, which died."""
        world.crash()
        return world

    @pytest.mark.parametrize(
        ("message", "by", "region"),
        [
            (event(), "request-1", "eu-west-1"),
            (event(), "request-2", "eu-central-1"),
            (event() | {"replay-name": "r"}, "request-2", "eu-west-1"),
            (event(), "request-0", "eu-west-1"),
        ],
        ids=["the same", "another region's", "a replay", "one with a smaller id"],
    )
    def test_delivery_that_nothing_stands_for_comes_back(
        self, held: World, message: dict[str, Any], by: str, region: str
    ) -> None:
        """They raise BusyError with the lease's time left.

        Otherwise two could be dropped because of each other.
        """
        with pytest.raises(BusyError) as raised:
            held.deliver(message, by=by, region=region)
        assert raised.value.lease_left_ms == 32_001

    def test_holder_that_may_not_come_again_stands_for_nothing(self, world: World) -> None:
        """While a synchronous call or a block has the key, EventBridge's delivery is busy."""
        world.crash({name: value for name, value in event().items() if name != "account"})
        with pytest.raises(BusyError):
            world.deliver(by="request-2")
        with (
            world.consumer().operation("k2", event("k2")["detail"]["data"]),
            pytest.raises(BusyError),
        ):
            world.deliver(event("k2"), by="request-3")

    def test_holder_on_its_last_attempt_stands_for_nothing(self, world: World) -> None:
        """If it crashes nobody runs the key again, so the copy must come back."""
        world.crash(max_attempts=1)
        with pytest.raises(BusyError):
            world.deliver(by="request-2", max_attempts=1)
        assert world.deliver(by="request-2", max_attempts=2)["outcome"] == "Busy"

    def test_wait_is_bounded_and_answers_with_the_result_of_the_other_run(
        self, world: World
    ) -> None:
        """A caller that waits gives up at the limit, or gets what the holder commits meanwhile."""
        started = world.clock()
        waiting = world.consumer(policy={"busy": "wait", "wait_limit": 5})
        holding = world.consumer().operation("k1")
        with holding as holder:
            holder.complete("the result")
            with pytest.raises(BusyError), waiting.operation("k1"):
                pass
            assert 4_000 <= world.clock() - started <= 5_000
            world.transport.pass_on()
            world.transport.meanwhile(lambda: holding.__exit__(None, None, None))
            with waiting.operation("k1") as waiter:
                assert (waiter.done, waiter.result) == (True, "the result")


class TestTime:
    """Nothing starts unless the remaining time covers its commit."""

    def test_tries_of_a_silent_store_end_before_the_reserve(self, world: World) -> None:
        """A claim without an answer is not retried if the retry could outlast the invocation."""
        for _ in range(6):
            world.transport.lose_request()
        with pytest.raises(StoreUnavailableError):
            world.deliver(timeout_s=3, reserve=1.5)
        assert len(world.transport.requests) == 1


class TestWindow:
    """No delivery runs that is older than the window."""

    def test_window_shorter_than_the_invocation_is_a_mistake_in_the_settings(
        self, world: World
    ) -> None:
        """The error names the setting, and no event is dead-lettered."""
        with pytest.raises(ConfigurationError, match="shorter than the invocation"):
            world.deliver(timeout_s=60, window=60)
        assert (world.work.runs, world.reasons) == ([], [])

    @pytest.mark.parametrize("failed", [False, True])
    def test_record_counts_until_its_window_ends(self, world: World, *, failed: bool) -> None:
        """After the window a key starts anew, with any payload, even if its record is there."""
        policy: Any = {"window": 3_600, "max_attempts": 1}
        if failed:
            world.fail(BusyError("car", 1), **policy)
        else:
            world.deliver(**policy)
        world.clock.advance(3_700)
        later = event(price=10) | {"time": "2027-01-15T09:01:00Z"}
        assert world.deliver(later, **policy)["attempt"] == 1

    @pytest.mark.parametrize("late_s", [86_400, 86_400 - 31])
    def test_delivery_that_could_outlive_its_window_never_runs(
        self, world: World, late_s: int
    ) -> None:
        """An event older than its window, or nearly, is dead-lettered."""
        world.clock.advance(late_s)
        assert world.deliver(window=86_400)["outcome"] == "DeadLettered"
        assert (world.reasons, world.work.runs) == ([BEYOND_WINDOW], [])

    def test_old_event_in_a_fresh_message_never_runs(self, world: World) -> None:
        """The age of a queued event is that of its envelope, not of its message."""
        world.clock.advance(31 * 86_400)
        handler = world.consumer("dispatch").batch_handler(world.work)
        assert handler(sqs_event(event(), clock=world.clock), world.invocation()) == {
            "batchItemFailures": []
        }
        assert (world.reasons, world.work.runs) == ([BEYOND_WINDOW], [])

    def test_ttl_of_a_claim_is_an_hour_past_its_lease(self, world: World) -> None:
        """DynamoDB's TTL deletes no claim before an hour after its lease."""
        world.crash(window=40, clock_skew=0)
        claim = world.record()
        assert (claim.expiry or 0) - (claim.lease_ms or 0) // 1000 == 3_600


class TestWarm:
    """A process answers redeliveries of what it completed a moment ago, and nothing else."""

    def test_warm_redelivery_costs_no_round_trip_for_five_minutes(self, world: World) -> None:
        """The memory is bounded in age and size."""
        handler = world.consumer(policy={"warm_cache": 2}).event_handler(world.work)
        for key in ("k1", "k2", "k3"):
            handler(event(key), world.invocation())

        def again(message: dict[str, Any], outcome: str) -> list[str]:
            world.transport.requests.clear()
            assert handler(message, world.invocation())["outcome"] == outcome
            return world.transport.requests

        assert again(event("k2"), "Duplicate") == again(event("k3"), "Duplicate") == []
        assert again(event("k3", price=10), "DeadLettered") == ["PutItem"]
        # The least recently used key made room.
        assert again(event("k1"), "Duplicate") == ["PutItem"]
        world.clock.advance(301)
        assert again(event("k3"), "Duplicate") == ["PutItem"]

    @pytest.mark.parametrize("atomic", [False, True])
    @pytest.mark.parametrize("replayed", [{}, {"replay-name": "r"}], ids=["redriven", "replayed"])
    def test_what_is_asked_for_again_is_not_lost(
        self, world: World, replayed: dict[str, str], *, atomic: bool
    ) -> None:
        """After an operator removed the record, no process takes the next delivery for a copy."""
        handler = world.consumer(policy={"atomic": atomic}).event_handler(world.work)
        handler(event(), world.invocation())
        world.dynamodb.delete_item(**STORED_KEY)
        assert handler(event() | replayed, world.invocation("request-2"))["outcome"] == "New"

    def test_a_log_that_is_read_again_is_not_lost(self, world: World) -> None:
        """A stream that an operator reads again has the same ids."""
        log = world.consumer(key="NewImage.id.S", source=DYNAMODB_STREAM)
        read = log.batch_handler(world.work)
        batch = dynamodb_stream_event({"id": "k1"}, key="id", clock=world.clock)
        for _ in range(2):
            read(batch, world.invocation())
            world.dynamodb.delete_item(**STORED_KEY)
        assert len(world.work.runs) == 2

    def test_a_call_whose_record_was_removed_is_made_again(self, world: World) -> None:
        """A function's caller has no delivery that comes again, so its copies ask the store."""
        made = []

        @world.consumer().function(key="order")
        def ship(order: str) -> None:
            made.append(order)

        for _ in range(2):
            ship("k1")
            stored = {"idempotencyKey": {"S": "history/ship#k1"}}
            world.dynamodb.delete_item(TableName=TABLE, Key=stored)
        assert made == ["k1", "k1"]


class TestFailsClosed:
    """A record that is not understood stays as it is."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("status", {"S": "DONE"}),
            ("status", None),
            ("leaseExpiry", None),
            ("leaseExpiry", {"S": "soon"}),
        ],
    )
    def test_corrupt_record_is_neither_run_nor_overwritten(
        self, world: World, name: str, value: Any
    ) -> None:
        """A record that cannot be understood stays as it is until an operator releases it."""
        world.crash()
        tamper(world, name, value)
        before = world.dynamodb.get_item(**STORED_KEY)["Item"]
        assert world.deliver(by="request-2")["outcome"] == "DeadLettered"
        assert (world.reasons, len(world.work.runs)) == ([CORRUPT_RECORD], 1)
        assert world.dynamodb.get_item(**STORED_KEY)["Item"] == before

        assert world.consumer().release("k1")
        assert world.deliver(by="request-3")["outcome"] == "Retried"
