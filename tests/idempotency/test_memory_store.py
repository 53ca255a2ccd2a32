"""What the memory store does beyond what every store does."""

import pytest

from idempotency import ConfigurationError, MemoryStore, Put
from idempotency.errors import StoreRefusedError
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from idempotency.testing import ManualClock


def record(key: str, status: str = COMPLETED, *, expiry: int | None = None) -> Record:
    return Record(key, status, "owner-1", 1, None, expiry, None, None, None, 0, 0)


@pytest.mark.parametrize("status", [COMPLETED, FAILED])
def test_finished_record_that_was_written_longest_ago_makes_room(status: str) -> None:
    """A full store forgets its oldest finished record, by the last write to it."""
    store = MemoryStore(capacity=2)
    for key in ("a", "b"):
        store.put_if_absent(record(key, status))
    a = record("a", status)
    store.compare_and_swap(a, a)
    store.put_if_absent(record("c"))
    assert store.read("b") is None
    assert store.read("a") is not None


def test_claims_and_quarantined_keys_are_never_forgotten() -> None:
    """A store full of claims and quarantined keys refuses new keys, and its claims can be completed."""
    store = MemoryStore(capacity=2)
    claim = record("a", IN_PROGRESS)
    store.put_if_absent(claim)
    store.put_if_absent(record("b", QUARANTINED))
    with pytest.raises(StoreRefusedError):
        store.put_if_absent(record("c"))
    assert store.read("c") is None
    done = claim._replace(status=COMPLETED)
    assert store.update_if_owner(done) is done
    with pytest.raises(ConfigurationError):
        MemoryStore(capacity=0)


def test_record_is_forgotten_when_its_window_ends(clock: ManualClock) -> None:
    """The key is absent for every step, from then on."""
    store = MemoryStore(clock=clock)
    first = record("a", expiry=clock() // 1000 + 60)
    store.put_if_absent(first)
    clock.advance(60)
    assert store.read("a") is first
    clock.advance(1)
    assert store.read("a") is None
    assert store.compare_and_swap(first, first) is None
    again = record("a")
    assert store.put_if_absent(again) is again


def test_store_without_apply_has_no_transactions() -> None:
    """Effects are refused, and nothing is written."""
    store = MemoryStore()
    assert not store.transactional
    with pytest.raises(ConfigurationError):
        store.put_if_absent(record("a"), [Put("Rides", {"id": "order_01"})])
    assert store.read("a") is None
