"""The Valkey store's clocks, scripts and clients, beyond what every store does."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import fakeredis
import pytest
import redis
import valkey
from redis.backoff import NoBackoff
from redis.retry import Retry

from carride_idempotency import ConfigurationError
from carride_idempotency.errors import StoreRefusedError, StoreUnavailableError
from carride_idempotency.protocol.decision import is_corrupt
from carride_idempotency.record import IN_PROGRESS, Record
from carride_idempotency.stores.valkey import ValkeyStore
from carride_idempotency.testing import ManualClock

KEY = "history#order_01"
LEASE_MS = 30_000
HOUR_MS = 3_600_000
PATIENCE_MS = 20_000
"""Longer than any of these tests, and shorter than the times that they compare."""


@pytest.fixture
def client() -> Iterator[fakeredis.FakeValkey]:
    with fakeredis.FakeValkey(socket_timeout=1) as client:
        yield client


@pytest.fixture
def store(client: Any, clock: ManualClock) -> ValkeyStore:
    """A store whose pauses move the test's clock."""
    return ValkeyStore(client, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0)


def claim(clock: ManualClock, owner: str = "owner-1", **changes: Any) -> Record:
    now_ms = clock()
    times = now_ms + LEASE_MS, now_ms // 1000 + 7_200
    return Record(KEY, IN_PROGRESS, owner, 1, *times, None, None, None, now_ms, now_ms)._replace(
        **changes
    )


def test_an_answer_about_another_key_is_not_believed(client: Any, clock: ManualClock) -> None:
    """The outcome of the step is unknown, whether the answer says "written" or holds a record."""
    record = claim(clock)
    store = ValkeyStore(client, prefix="shop:", clock=clock)
    for other in ([clock(), b"shop:history#order_02"], [clock(), "history#order_01", []]):
        client.evalsha = Mock(return_value=other)
        for step in (store.put_if_absent, store.update_if_owner, lambda _: store.read(KEY)):
            with pytest.raises(StoreUnavailableError, match="not about"):
                step(record)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS, 365 * 24 * HOUR_MS])
def test_difference_between_clocks_changes_no_time_that_is_compared(
    store: ValkeyStore, client: Any, clock: ManualClock, ahead_ms: int
) -> None:
    """A reader with any clock sees how much of lease, back-off and window is left."""
    record = claim(clock, retry_ms=clock() + LEASE_MS)
    store.put_if_absent(record)
    found = ValkeyStore(client, clock=lambda: clock() + ahead_ms).read(KEY)
    assert found is not None
    assert LEASE_MS - PATIENCE_MS < (found.lease_ms or 0) - clock() - ahead_ms <= LEASE_MS
    assert found.retry_ms == pytest.approx(clock() + LEASE_MS + ahead_ms, abs=PATIENCE_MS)
    assert found.expiry == pytest.approx(
        (clock() + ahead_ms) // 1000 + 7_200, abs=PATIENCE_MS // 1000
    )
    assert (found.created_ms, found.updated_ms) == (record.created_ms, record.updated_ms)


def test_clock_that_is_set_back_misleads_nobody(store: ValkeyStore, clock: ManualClock) -> None:
    """The server's clock decides which lease is longer, and whether a lease has changed."""
    first = claim(clock, lease_ms=clock() - 10_000)
    store.put_if_absent(first)
    seen = store.read(KEY)
    clock.advance(-60)
    assert store.update_if_owner(first) is first, "its lease ends later by the server's clock"
    clock.advance(60)
    assert seen is not None
    found = store.compare_and_swap(seen, claim(clock, "owner-2", attempt=2))
    assert (found and found.owner) == "owner-1", "it has the same number, and is another lease"


def test_heartbeat_that_comes_late_erases_no_intent(store: ValkeyStore, clock: ManualClock) -> None:
    """It was sent before the intent, although its lease ends later by the server's clock."""
    store.put_if_absent(claim(clock))
    intent = claim(clock, lease_ms=clock() + LEASE_MS + 1, externals='{"charge":null}')
    assert store.update_if_owner(intent) is intent
    clock.advance(-60)
    assert store.update_if_owner(claim(clock)) != claim(clock)
    found = store.read(KEY)
    assert (found and found.externals) == intent.externals


def test_steps_survive_a_restart_of_the_server(
    store: ValkeyStore, client: Any, clock: ManualClock
) -> None:
    """A server that has forgotten the scripts gets them again."""
    first = claim(clock)
    for step in (store.put_if_absent, store.update_if_owner):
        client.script_flush()
        assert step(first) is first


def test_fields_are_readable_by_an_operator(
    store: ValkeyStore, client: Any, clock: ManualClock
) -> None:
    """A record is a hash of its own fields, under a prefix of its own."""
    store.put_if_absent(claim(clock, dead_lettered=True))
    stored: Any = client.hgetall(f"idempotency:{KEY}")
    assert stored.pop(b"shift").lstrip(b"-").isdigit()
    fields = {"status": "IN_PROGRESS", "owner": "owner-1", "attempt": 1, "dead_lettered": 1}
    fields |= {"lease_ms": clock() + LEASE_MS, "expiry": clock() // 1000 + 7_200}
    fields |= dict.fromkeys(("created_ms", "updated_ms"), clock())
    assert stored == {name.encode(): str(value).encode() for name, value in fields.items()}


def test_what_another_hand_wrote_is_in_the_way(
    store: ValkeyStore, client: Any, clock: ManualClock
) -> None:
    """A hash without known fields is not overwritten; a lease that is not a number is damaged."""
    client.hset(f"idempotency:{KEY}", mapping={"lease_ms": "soon", "unknown": "field"})
    found = store.put_if_absent(claim(clock))
    assert (is_corrupt(found), found.lease_ms) == (True, None)
    assert client.hgetall(f"idempotency:{KEY}") == {b"lease_ms": b"soon", b"unknown": b"field"}


class Unknown:
    evalsha = eval = info = lambda *arguments: None

    def get_connection_kwargs(self) -> dict[str, float]:
        return {"socket_timeout": 1}


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (valkey.Valkey(socket_timeout=None), "socket_timeout"),
        (
            valkey.Valkey(
                socket_timeout=1, retry=valkey.retry.Retry(valkey.backoff.NoBackoff(), 1)
            ),
            "retry",
        ),
        (redis.Redis(socket_timeout=1), "retry"),
        (Unknown(), "Unknown"),
    ],
)
def test_client_that_could_mislead_the_store_is_refused(client: Any, reason: str) -> None:
    """A client without a timeout, with retries, or of an unknown package is refused."""
    with pytest.raises(ConfigurationError, match=reason):
        ValkeyStore(client)
    ValkeyStore(redis.Redis(socket_timeout=1, retry=Retry(NoBackoff(), 0)))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"maxmemory_policy": "volatile-ttl", "used_memory": 1}, ConfigurationError),
        (
            {"a": {"maxmemory_policy": "noeviction"}, "b": {"maxmemory_policy": "volatile-lru"}},
            ConfigurationError,
        ),
        (valkey.exceptions.ConnectionError("gone"), StoreUnavailableError),
        (valkey.exceptions.AuthenticationError("NOAUTH"), StoreRefusedError),
        ({"a": {"maxmemory_policy": "noeviction"}}, None),
        ({"used_memory": 1}, None),
        (
            valkey.exceptions.NoPermissionError(
                "this user has no permissions to run the 'info' command"
            ),
            None,
        ),
    ],
)
def test_eviction_is_checked_before_the_first_step(
    client: Any, clock: ManualClock, answer: Any, error: type[Exception] | None
) -> None:
    """No step begins on a server that could drop a key or does not answer.

    One that may not say its policy passes.
    """
    info = Mock(**{"side_effect" if isinstance(answer, Exception) else "return_value": answer})
    client.info = info
    store = ValkeyStore(client, checks_eviction=True, clock=clock, sleep=clock.sleep)
    if error:
        for _ in range(2):
            with pytest.raises(error):
                store.put_if_absent(claim(clock))
        assert client.dbsize() == 0
        client.info = info = Mock(return_value={"maxmemory_policy": "noeviction"})
    store.put_if_absent(claim(clock))
    store.read(KEY)
    assert ValkeyStore(client, clock=clock).read(KEY) is not None
    assert info.call_count == 1
