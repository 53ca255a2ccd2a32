"""What the memory store does beyond what every store does."""

from collections.abc import Sequence

import pytest

from idempotency import ConfigurationError, EffectConflictError, MemoryStore, Put
from idempotency.effects import Effect
from idempotency.errors import StoreUnavailableError
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from idempotency.testing import ManualClock

EFFECT = Put("Rides", {"id": "order_01"})


def record(key: str, status: str = COMPLETED, *, expiry: int | None = None) -> Record:
    """A record in one of its states."""
    return Record(key, status, "owner-1", 1, None, expiry, None, None, None, 0, 0)


class TestCapacity:
    """The store is bounded, and forgets what can be forgotten."""

    @pytest.mark.parametrize("status", [COMPLETED, FAILED])
    def test_finished_record_that_was_written_longest_ago_makes_room(self, status: str) -> None:
        """A full store forgets its oldest finished record, by the last write to it."""
        store = MemoryStore(capacity=2)
        for key in ("a", "b"):
            store.insert(record(key, status))
        a = record("a", status)
        store.swap(a, a)
        store.insert(record("c"))
        assert store.read("b") is None
        assert store.read("a") is not None

    def test_claims_and_quarantined_keys_are_never_forgotten(self) -> None:
        """A store that holds nothing else refuses new keys, as one that is out of reach."""
        store = MemoryStore(capacity=2)
        store.insert(record("a", IN_PROGRESS))
        store.insert(record("b", QUARANTINED))
        with pytest.raises(StoreUnavailableError):
            store.insert(record("c"))
        assert store.read("c") is None

    def test_full_store_still_takes_what_it_knows(self) -> None:
        """A claim can be completed though there is no room for another."""
        store = MemoryStore(capacity=1)
        claim = record("a", IN_PROGRESS)
        store.insert(claim)
        done = claim._replace(status=COMPLETED)
        assert store.advance(done) is done

    def test_capacity_must_hold_something(self) -> None:
        """A store without room is a mistake."""
        with pytest.raises(ConfigurationError):
            MemoryStore(capacity=0)


class TestWindow:
    """A record is gone when its window has ended."""

    def test_record_is_forgotten_when_its_window_ends(self, clock: ManualClock) -> None:
        """The key is absent for every step, from then on."""
        store = MemoryStore(clock=clock)
        first = record("a", expiry=clock() // 1000 + 60)
        store.insert(first)
        clock.advance(60)
        assert store.read("a") is first
        clock.advance(1)
        assert store.read("a") is None
        assert store.swap(first, first) is None
        again = record("a")
        assert store.insert(again) is again


class TestEffects:
    """Effects are whatever the application applies."""

    def test_store_without_apply_has_no_transactions(self) -> None:
        """Effects are refused, and nothing is written."""
        store = MemoryStore()
        assert not store.transactional
        with pytest.raises(ConfigurationError):
            store.insert(record("a"), [EFFECT])
        assert store.read("a") is None

    def test_refused_effects_leave_the_record_as_it_was(self) -> None:
        """What ``apply`` refuses is not written, and what it takes comes with the record."""
        taken: list[Effect] = []

        def apply(effects: Sequence[Effect]) -> None:
            if taken:
                raise EffectConflictError(0)
            taken.extend(effects)

        store = MemoryStore(apply=apply)
        first = record("a", IN_PROGRESS)
        store.insert(first, [EFFECT])
        with pytest.raises(EffectConflictError):
            store.advance(first._replace(status=COMPLETED), [EFFECT])
        assert store.read("a") is first
        assert taken == [EFFECT]
