"""What the memory store does beyond what every store does."""

import pytest

from carride_idempotency import ConfigurationError, MemoryStore, Put
from carride_idempotency.errors import StoreRefusedError
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    Record,
    Status,
)
from carride_idempotency.testing import ManualClock


def record(key: str, status: Status = COMPLETED, *, expiry: int | None = None) -> Record:
    return Record(key, status, "owner-1", 1, None, expiry, None, None, None, 0, 0)


@pytest.mark.parametrize("status", [COMPLETED, FAILED])
def test_finished_record_that_was_written_longest_ago_makes_room(status: Status) -> None:
    """A full store forgets its oldest finished record, by the last write to it."""
    store = MemoryStore(capacity=2)
    a = record("a", status)
    store.put_if_absent(a)
    store.put_if_absent(record("b", status))
    store.compare_and_swap(a, a)
    store.put_if_absent(record("c"))
    assert (store.read("b"), store.read("a")) == (None, a)


def test_claims_and_quarantined_keys_are_never_forgotten() -> None:
    """A store full of claims and quarantined keys refuses new keys, but completes its claims."""
    store = MemoryStore(capacity=2)
    claim = record("a", IN_PROGRESS)
    store.put_if_absent(claim)
    store.put_if_absent(record("b", QUARANTINED))
    with pytest.raises(StoreRefusedError):
        store.put_if_absent(record("c"))
    done = claim._replace(status=COMPLETED)
    assert (store.read("c"), store.update_if_owner(done)) == (None, done)
    with pytest.raises(ConfigurationError):
        MemoryStore(capacity=0)


def test_record_is_forgotten_when_its_window_ends(clock: ManualClock) -> None:
    """The key is absent for every step, from then on."""
    store = MemoryStore(clock=clock)
    first = record("a", expiry=clock() // 1000 + 60)
    again = record("a")
    store.put_if_absent(first)
    clock.advance(60)
    assert store.read("a") is first
    clock.advance(1)
    assert (store.read("a"), store.compare_and_swap(first, first)) == (None, None)
    assert store.put_if_absent(again) is again


def test_store_without_apply_has_no_transactions() -> None:
    """Effects are refused, and nothing is written."""
    store = MemoryStore()
    with pytest.raises(ConfigurationError):
        store.put_if_absent(record("a"), [Put("Rides", {"id": "order_01"})])
    assert (store.transactional, store.read("a")) == (False, None)
