"""What the Valkey store does with clocks, lost answers and clients, beyond what every store does."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
import redis
import valkey
from redis.backoff import NoBackoff
from redis.retry import Retry

from idempotency import ConfigurationError, Put
from idempotency.errors import StoreUnavailableError
from idempotency.record import COMPLETED, IN_PROGRESS, Record
from idempotency.stores.valkey import ValkeyStore
from idempotency.testing import ManualClock

KEY = "history#order_01"
LEASE_MS = 30_000
HOUR_MS = 3_600_000
MOST_TRIES = 6
PATIENCE_MS = 20_000
"""Far more than these tests take, and far less than any time that they compare."""


class FlakyValkey(fakeredis.FakeValkey):
    """A client that loses requests and answers when told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.faults: deque[str] = deque()
        self.sent = 0

    def evalsha(self, *arguments: Any) -> Any:
        """Run a script, or meet the next fault."""
        self.sent += 1
        fault = self.faults.popleft() if self.faults else None
        if fault == "request lost":
            raise valkey.exceptions.ConnectionError(fault)
        answer = super().evalsha(*arguments)
        if fault == "answer lost":
            raise valkey.exceptions.TimeoutError(fault)
        return answer


@pytest.fixture
def client() -> Iterator[FlakyValkey]:
    """A client of an empty server."""
    with FlakyValkey(socket_timeout=1) as client:
        yield client


@pytest.fixture
def store(client: FlakyValkey, clock: ManualClock) -> ValkeyStore:
    """A store whose pauses move the test's clock."""
    return ValkeyStore(client, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0)


def claim(clock: ManualClock, owner: str = "owner-1", **changes: Any) -> Record:
    """A claim by the caller's clock."""
    now_ms = clock()
    record = Record(
        KEY, IN_PROGRESS, owner, 1, now_ms + LEASE_MS, now_ms // 1000 + 7_200, None, None, None, now_ms, now_ms
    )
    return record._replace(**changes)


def left_ms(store: ValkeyStore, clock: ManualClock) -> int:
    """How long the claim still holds, in the eyes of this caller."""
    record = store.read(KEY)
    assert record is not None
    assert record.lease_ms is not None
    return record.lease_ms - clock()


class TestTime:
    """Callers speak in their own clock; the server's decides."""

    @pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS, 365 * 24 * HOUR_MS])
    def test_difference_between_clocks_does_not_change_a_lease(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock, ahead_ms: int
    ) -> None:
        """Another client sees as much of a lease as is left, however wrong its clock or its owner's is."""
        store.insert(claim(clock))
        other_clock = ManualClock(clock() + ahead_ms)
        other = ValkeyStore(client, clock=other_clock)
        assert LEASE_MS - PATIENCE_MS < left_ms(other, other_clock) <= LEASE_MS

    def test_lease_may_seem_longer_and_never_shorter(self, client: FlakyValkey) -> None:
        """What the network takes is added to a lease, on its way in and on its way out."""

        def now() -> int:
            return time.time_ns() // 1_000_000

        store = ValkeyStore(client, clock=now)
        record = claim(ManualClock(now()))
        store.insert(record)
        found = store.read(KEY)
        assert record.lease_ms is not None
        assert found is not None
        assert found.lease_ms is not None
        assert record.lease_ms <= found.lease_ms <= record.lease_ms + PATIENCE_MS

    def test_all_times_that_are_compared_are_translated(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """Lease, window and back-off move to the reader's clock; what is only for people stays as it was written."""
        record = claim(clock, retry_ms=clock() + LEASE_MS)
        store.insert(record)
        found = ValkeyStore(client, clock=lambda: clock() + HOUR_MS).read(KEY)
        assert found is not None
        assert found.retry_ms == pytest.approx(clock() + LEASE_MS + HOUR_MS, abs=PATIENCE_MS)
        assert found.expiry == pytest.approx(clock() // 1000 + 7_200 + 3_600, abs=PATIENCE_MS // 1000)
        assert (found.created_ms, found.updated_ms) == (record.created_ms, record.updated_ms)

    def test_key_expires_with_its_window_by_the_servers_clock(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """The window is as long on the server as the caller meant it, whatever the caller's date is."""
        clock.advance(-HOUR_MS)
        store.insert(claim(clock))
        assert client.ttl(f"idempotency:{KEY}") == pytest.approx(7_200, abs=PATIENCE_MS // 1000)

    def test_ended_window_is_gone_at_once(self, store: ValkeyStore, clock: ManualClock) -> None:
        """A record whose window has ended already is absent."""
        store.insert(claim(clock, expiry=clock() // 1000 - 1))
        assert store.read(KEY) is None

    def test_heartbeat_of_an_owner_whose_clock_was_set_back_is_taken(
        self, store: ValkeyStore, clock: ManualClock
    ) -> None:
        """The server's clock says which lease is longer, not the numbers that their owner gave them."""
        store.insert(claim(clock, lease_ms=clock() + 2_000))
        clock.advance(-3_600)
        renewed = claim(clock)
        assert store.advance(renewed) is renewed
        assert left_ms(store, clock) > LEASE_MS - PATIENCE_MS

    def test_takeover_of_a_lease_that_moved_with_its_owners_clock_is_refused(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """A renewed lease is another one, even where its owner's clock was set back and gave it the same number."""
        first = claim(clock, lease_ms=clock() - 10_000)
        store.insert(first)
        seen = store.read(KEY)
        assert seen is not None
        clock.advance(-60)
        store.advance(first)
        clock.advance(60)
        found = store.swap(seen, claim(clock, "owner-2", attempt=2))
        assert found is not None
        assert found.owner == "owner-1"


class TestLostAnswers:
    """What a retry can change is sent again, for as long as there is time."""

    @pytest.mark.parametrize("fault", ["request lost", "answer lost"])
    def test_each_step_survives_one_fault(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock, fault: str
    ) -> None:
        """A step whose request or answer was lost shows its owner its own record."""
        first = claim(clock)
        client.faults.append(fault)
        assert store.insert(first).owner == "owner-1"
        client.faults.append(fault)
        taken = store.swap(first, claim(clock, "owner-2", attempt=2))
        assert taken is not None
        assert (taken.owner, taken.attempt) == ("owner-2", 2)
        client.faults.append(fault)
        done = store.advance(claim(clock, "owner-2", attempt=2, status=COMPLETED, lease_ms=None))
        assert done is not None
        assert (done.owner, done.status) == ("owner-2", COMPLETED)
        client.faults.append(fault)
        found = store.read(KEY)
        assert found is not None
        assert (found.owner, found.status) == ("owner-2", COMPLETED)

    def test_gives_up_after_a_bounded_number_of_tries(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """A server that stays silent is given up, after pauses that grow and are bounded."""
        began_ms = clock()
        client.faults.extend(["request lost"] * MOST_TRIES)
        with pytest.raises(StoreUnavailableError) as gave_up:
            store.insert(claim(clock))
        assert isinstance(gave_up.value.__cause__, valkey.exceptions.ConnectionError)
        assert client.sent == MOST_TRIES
        assert clock() - began_ms == 25 + 50 + 100 + 200 + 400

    def test_no_try_begins_that_cannot_end_in_time(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """A further try that could last past ``until_ms``, to connect and to answer, is not begun."""
        client.faults.extend(["request lost"] * MOST_TRIES)
        with pytest.raises(StoreUnavailableError):
            store.read(KEY, until_ms=clock() + 100 + 2_000)
        assert client.sent == 3

    def test_refusal_is_not_tried_again(self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock) -> None:
        """What the server refuses, such as a key that belongs to another application, it refuses again."""
        client.set(f"idempotency:{KEY}", "not ours")
        with pytest.raises(StoreUnavailableError, match="WRONGTYPE"):
            store.read(KEY)
        with pytest.raises(StoreUnavailableError, match="WRONGTYPE"):
            store.insert(claim(clock))
        assert client.sent == 2
        assert client.get(f"idempotency:{KEY}") == b"not ours"

    def test_server_that_forgot_the_scripts_is_taught_again(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """A restart or a failover empties the server's cache of scripts, and no step fails for it."""
        first = claim(clock)
        steps: tuple[Callable[[], object], ...] = (
            lambda: store.insert(first),
            lambda: store.read(KEY),
            lambda: store.swap(first, first),
            lambda: store.advance(first),
        )
        for step in steps:
            client.script_flush()
            assert step() is not None


class TestRecords:
    """How a record lies in its hash."""

    def test_fields_are_readable_by_an_operator(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """A record is a hash of its own fields, under a prefix of its own."""
        store.insert(claim(clock, dead_lettered=True))
        stored: Any = client.hgetall(f"idempotency:{KEY}")
        fields = {name.decode(): value.decode() for name, value in stored.items()}
        assert fields.pop("shift").lstrip("-").isdecimal()
        assert fields == {
            "status": "IN_PROGRESS",
            "owner": "owner-1",
            "attempt": "1",
            "lease_ms": str(clock() + LEASE_MS),
            "expiry": str(clock() // 1000 + 7_200),
            "created_ms": str(clock()),
            "updated_ms": str(clock()),
            "dead_lettered": "1",
        }

    def test_field_that_makes_no_sense_is_as_absent(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """A lease that is no number is none, so that the decision fails closed."""
        store.insert(claim(clock))
        client.hset(f"idempotency:{KEY}", mapping={"lease_ms": "soon", "unknown": "field"})
        found = store.read(KEY)
        assert found is not None
        assert found.lease_ms is None

    def test_record_of_another_hand_is_in_the_way(
        self, store: ValkeyStore, client: FlakyValkey, clock: ManualClock
    ) -> None:
        """Even a hash without any known field is not overwritten by an insert."""
        client.hset(f"idempotency:{KEY}", "unknown", "field")
        assert store.insert(claim(clock)).status == ""
        assert client.hgetall(f"idempotency:{KEY}") == {b"unknown": b"field"}

    def test_prefixes_keep_applications_apart(self, client: FlakyValkey, clock: ManualClock) -> None:
        """Two stores on one server share nothing but the server."""
        one, other = ValkeyStore(client, prefix="one:", clock=clock), ValkeyStore(client, prefix="other:", clock=clock)
        one.insert(claim(clock))
        assert other.read(KEY) is None

    def test_effects_are_refused(self, store: ValkeyStore, clock: ManualClock) -> None:
        """There is nothing that effects could be committed with, and the record is not written without them."""
        assert not store.transactional
        with pytest.raises(ConfigurationError):
            store.insert(claim(clock), [Put("Rides", {"id": "order_01"})])
        assert store.read(KEY) is None


class TestConfiguration:
    """A client that could outlast a function is refused when the store is built."""

    def test_client_without_a_timeout_is_refused(self) -> None:
        """A hung server would hold the handler until Lambda stops it."""
        with pytest.raises(ConfigurationError, match="socket_timeout"):
            ValkeyStore(valkey.Valkey())

    def test_client_that_retries_by_itself_is_refused(self) -> None:
        """Its tries would outlast ``until_ms``; redis-py makes eleven by default."""
        with pytest.raises(ConfigurationError, match="retry"):
            ValkeyStore(redis.Redis(socket_timeout=1))
        ValkeyStore(redis.Redis(socket_timeout=1, retry=Retry(NoBackoff(), 0)))

    def test_another_library_is_refused(self) -> None:
        """The errors of a client that is not known could not be told apart."""

        class Client:
            evalsha = eval = info = lambda *arguments: None

            def get_connection_kwargs(self) -> dict[str, float]:
                return {"socket_timeout": 1}

        with pytest.raises(ConfigurationError, match="Client"):
            ValkeyStore(Client())


class Telling(fakeredis.FakeValkey):
    """A client whose server tells what the test says."""

    answer: Any = None

    def info(self, *sections: Any, **options: Any) -> Any:
        """Answer, or raise."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class TestEviction:
    """A server that drops keys under pressure forgets claims."""

    @pytest.mark.parametrize(
        "answer",
        [
            {"maxmemory_policy": "allkeys-lru"},
            {"maxmemory_policy": "volatile-ttl", "used_memory": 1},
            {"node-1": {"maxmemory_policy": "noeviction"}, "node-2": {"maxmemory_policy": "volatile-lru"}},
        ],
    )
    def test_server_that_evicts_is_told(self, answer: dict[str, Any]) -> None:
        """The policy is named, whether one server answers or every node of a cluster."""
        with Telling(socket_timeout=1) as client:
            client.answer = answer
            with pytest.raises(ConfigurationError, match=r"(volatile|allkeys)-.* noeviction"):
                ValkeyStore(client).check_eviction()

    @pytest.mark.parametrize(
        "answer",
        [
            {"maxmemory_policy": "noeviction"},
            {"node-1": {"maxmemory_policy": "noeviction"}},
            {"used_memory": 1},
            {},
            valkey.exceptions.NoPermissionError("this user has no permissions to run the 'info' command"),
        ],
    )
    def test_server_that_keeps_its_keys_or_does_not_say_passes(self, answer: Any) -> None:
        """Managed services may tell nothing."""
        with Telling(socket_timeout=1) as client:
            client.answer = answer
            ValkeyStore(client).check_eviction()

    def test_silence_is_told(self) -> None:
        """A check that did not take place has not passed."""
        with Telling(socket_timeout=1) as client:
            client.answer = valkey.exceptions.TimeoutError("no answer")
            with pytest.raises(StoreUnavailableError):
                ValkeyStore(client).check_eviction()
