"""What only a real server shows: its memory, its role, its silence."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import valkey

from idempotency import ConfigurationError
from idempotency.clock import epoch_ms
from idempotency.errors import StoreUnavailableError
from idempotency.record import QUARANTINED
from idempotency.stores.valkey import ValkeyStore
from tests.integration.stores.test_conformance import claim, completed

TOO_LITTLE = 1_000_000


@pytest.fixture
def server(valkey_client: Any) -> Iterator[Any]:
    """A real server with the settings that it began with."""
    valkey_client.flushall()
    yield valkey_client
    valkey_client.config_set("maxmemory", 0)
    valkey_client.config_set("maxmemory-policy", "noeviction")
    valkey_client.replicaof("NO", "ONE")


@pytest.fixture
def store(server: Any) -> ValkeyStore:
    """A store on it, which tries once."""
    return ValkeyStore(server, sleep=lambda seconds: None)


def test_servers_policy_is_read(server: Any, store: ValkeyStore) -> None:
    """A new server keeps its keys, and one that was set to evict them is told."""
    store.check_eviction()
    server.config_set("maxmemory-policy", "volatile-lru")
    with pytest.raises(ConfigurationError, match="volatile-lru"):
        store.check_eviction()


def test_full_server_refuses_new_keys_and_forgets_none(server: Any, store: ValkeyStore) -> None:
    """Without eviction a server that runs out of memory refuses what is new, and lets what it knows come to its end."""
    first = claim()
    store.insert(first)
    server.config_set("maxmemory", TOO_LITTLE)
    with pytest.raises(StoreUnavailableError, match="maxmemory"):
        store.insert(claim("history#order_02"))
    assert store.read("history#order_02") is None
    done = completed(first)
    assert store.advance(done) is done


def test_server_that_became_a_replica_takes_no_claims(server: Any, store: ValkeyStore) -> None:
    """A store that still talks to the old primary writes nothing there, and goes on when there is a primary again."""
    server.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailableError):
        store.insert(claim(), until_ms=epoch_ms())
    server.replicaof("NO", "ONE")
    assert store.read(claim().key) is None
    record = claim()
    assert store.insert(record) is record


def test_key_expires_by_itself(server: Any, store: ValkeyStore) -> None:
    """The server drops a record when its window ends, and keeps a quarantined one."""
    now_s = epoch_ms() // 1000
    done = completed(claim())._replace(expiry=now_s + 1)
    poison = claim("history#poison")._replace(status=QUARANTINED, lease_ms=None, expiry=None)
    store.insert(done)
    store.insert(poison)
    give_up = time.monotonic() + 30
    while store.read(done.key) is not None:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert store.read(poison.key) is not None


def test_silent_server_is_given_up_in_time() -> None:
    """A server that takes connections and never answers costs no more than the client's timeouts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with valkey.Valkey(port=listener.getsockname()[1], socket_connect_timeout=0.2, socket_timeout=0.2) as client:
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                ValkeyStore(client).insert(claim(), until_ms=epoch_ms() + 300)
            assert time.monotonic() - began < 5


def test_server_that_is_gone_is_told(server: Any) -> None:
    """A refused connection is told as the store's absence, not as the client's error."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with valkey.Valkey(port=port, socket_timeout=0.2) as client, pytest.raises(StoreUnavailableError):
        ValkeyStore(client, sleep=lambda seconds: None).read("history#order_01")
