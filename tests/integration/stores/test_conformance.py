"""What every store must do. `backend` opens the stores; whoever writes one adds it to the fixtures and runs this."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from idempotency import EffectConflictError, Update
from idempotency.clock import Clock, epoch_ms
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from tests.stores.backends import FIRST_CHARGE, Backend

KEY: Final = "history#order_01"
RIDE: Final = "order_01"
WINDOW_S: Final = 30 * 86_400
LEASE_MS: Final = 30_000


@pytest.fixture
def clock() -> Clock:
    """The time by which stores are opened: the real one, since a server has its own."""
    return epoch_ms


def claim(key: str = KEY, owner: str = "owner-1", attempt: int = 1) -> Record:
    """A live claim."""
    now_ms = epoch_ms()
    return Record(
        key=key,
        status=IN_PROGRESS,
        owner=owner,
        attempt=attempt,
        lease_ms=now_ms + LEASE_MS,
        expiry=now_ms // 1000 + WINDOW_S,
        fingerprint="1:abc",
        delivery="request-1",
        region="eu-west-1",
        created_ms=now_ms,
        updated_ms=now_ms,
    )


def completed(of: Record, result: str = '"done"') -> Record:
    """The completion of a claim."""
    return of._replace(status=COMPLETED, lease_ms=None, updated_ms=epoch_ms(), result=result)


def assert_is(backend: Backend, found: Record | None, written: Record) -> None:
    """Check that a record was found as it was written; a store with its own clock may show times later, not sooner."""
    assert found is not None
    late_ms = 0 if backend.keeps_times else 60_000
    for name in ("lease_ms", "retry_ms"):
        shown, wanted = getattr(found, name), getattr(written, name)
        assert (shown is None) == (wanted is None), name
        assert shown is None or wanted <= shown <= wanted + late_ms, name
    if written.expiry is None:
        assert found.expiry is None
    else:
        assert written.expiry <= (found.expiry or 0) <= written.expiry + late_ms // 1000
    assert timeless(found) == timeless(written)


def timeless(record: Record) -> Record:
    """The record without the times that a store with its own clock moves."""
    return record._replace(lease_ms=None, retry_ms=None, expiry=None, revision=None)


FULL: Final[dict[str, Any]] = {
    "attempt": 7,
    "result": '{"$":["decimal","1.10"]} ünïcode \U0001f695 \n\x00',
    "error": "ValueError: no car",
    "retry_ms": 1_900_000_000_123,
    "dead_lettered": True,
    "event": '{"detail":{"data":{}}}',
}
BARE: Final[dict[str, Any]] = {
    "owner": None,
    "lease_ms": None,
    "expiry": None,
    "fingerprint": None,
    "delivery": None,
    "region": None,
    "attempt": 0,
}


class TestInsert:
    """A record is inserted where its key is absent, and nowhere else."""

    def test_absent_key_is_written_and_the_very_record_returned(self, backend: Backend) -> None:
        """An insert that took place answers with the record that it was given."""
        record = claim()
        assert backend.store.insert(record) is record
        assert_is(backend, backend.store.read(KEY), record)

    def test_record_in_the_way_is_returned_and_left_alone(self, backend: Backend) -> None:
        """A refused insert answers with what is there, whatever its status, and changes nothing."""
        for number, status in enumerate((IN_PROGRESS, COMPLETED, FAILED, QUARANTINED, "PAUSED")):
            first = claim(f"{KEY}{number}")._replace(status=status)
            backend.store.insert(first)
            found = backend.store.insert(claim(first.key, owner="owner-2"))
            assert_is(backend, found, first)
            assert_is(backend, backend.store.read(first.key), first)

    @pytest.mark.parametrize("fields", [FULL, BARE], ids=["full", "bare"])
    def test_every_field_comes_back(self, backend: Backend, fields: dict[str, Any]) -> None:
        """What was written is read again, and what was absent stays absent, in a read as in a refusal."""
        record = claim()._replace(**fields)
        backend.store.insert(record)
        assert_is(backend, backend.store.read(KEY), record)
        assert_is(backend, backend.store.insert(claim()), record)

    def test_keys_are_apart(self, backend: Backend) -> None:
        """Keys that differ in case, space or one character name different records."""
        keys = ("a#b", "a#B", "a# b", "a#b ", "a#{b}", "a#b\n", "a#ß", "A#b")
        for number, key in enumerate(keys):
            assert backend.store.insert(claim(key, owner=f"owner-{number}")).owner == f"owner-{number}"
        for number, key in enumerate(keys):
            found = backend.store.read(key)
            assert found is not None
            assert (found.key, found.owner) == (key, f"owner-{number}")


SEEN_OTHERWISE: Final[list[dict[str, Any]]] = [
    {"owner": "owner-2"},
    {"owner": None},
    {"attempt": 2},
    {"status": FAILED},
    {"lease_ms": 1_700_000_000_000},
    {"lease_ms": None},
]


class TestSwap:
    """A record replaces the one that was seen, and no other."""

    def test_record_is_swapped_as_written_or_as_found(self, backend: Backend) -> None:
        """What this process wrote, a record in the way or one that was read may serve as what it has seen."""
        store = backend.store
        first, second, third = claim(), claim(owner="owner-2", attempt=2), claim(owner="owner-3", attempt=3)
        store.insert(first)
        assert store.swap(first, second) is second
        assert store.swap(store.insert(first), third) is third
        seen = store.read(KEY)
        assert seen is not None
        assert store.swap(seen, first) is first
        assert_is(backend, store.read(KEY), first)

    @pytest.mark.parametrize("change", SEEN_OTHERWISE, ids=str)
    def test_each_compared_field_refuses(self, backend: Backend, change: dict[str, Any]) -> None:
        """Owner, attempt, status and lease must all be as seen; an absent one is seen as absent."""
        first = claim()
        backend.store.insert(first)
        found = backend.store.swap(first._replace(**change), claim(owner="owner-2", attempt=2))
        assert_is(backend, found, first)
        assert_is(backend, backend.store.read(KEY), first)

    @pytest.mark.parametrize("field", ["owner", "lease_ms"])
    def test_absent_field_is_compared(self, backend: Backend, field: str) -> None:
        """A field that was absent when it was seen refuses once it is there, and matches while it is not."""
        absent: dict[str, Any] = {field: None}
        bare = claim()._replace(**absent)
        backend.store.insert(bare)
        other = claim(owner="owner-2", attempt=2)
        assert_is(backend, backend.store.swap(claim(), other), bare)
        assert backend.store.swap(bare, other) is other

    def test_heartbeat_in_between_refuses_a_takeover(self, backend: Backend) -> None:
        """A lease that was renewed after it was seen is another lease, even for the same owner and attempt."""
        first = claim()._replace(lease_ms=epoch_ms() - 5_000)
        backend.store.insert(first)
        seen = backend.store.read(KEY)
        assert seen is not None
        renewed = first._replace(lease_ms=epoch_ms() + LEASE_MS)
        assert backend.store.advance(renewed) is renewed
        for stale in (seen, first):
            assert_is(backend, backend.store.swap(stale, claim(owner="owner-2", attempt=2)), renewed)

    def test_copy_of_a_record_that_was_read_may_serve_as_seen(self, backend: Backend) -> None:
        """A record made out of one that was read, and then written, is known by its own fields."""
        backend.store.insert(claim())
        seen = backend.store.read(KEY)
        assert seen is not None
        second = seen._replace(owner="owner-2", lease_ms=epoch_ms() + 2 * LEASE_MS)
        assert backend.store.swap(seen, second) is second
        third = second._replace(status=FAILED, lease_ms=None)
        assert backend.store.swap(second, third) is third

    def test_absent_key_is_told_and_left_absent(self, backend: Backend) -> None:
        """A swap that finds nothing answers None and writes nothing."""
        assert backend.store.swap(claim(), claim(owner="owner-2")) is None
        assert backend.store.read(KEY) is None

    def test_nothing_of_the_old_record_stays(self, backend: Backend) -> None:
        """A swap replaces the whole record: what the new one lacks is absent."""
        first = claim()._replace(**FULL)
        backend.store.insert(first)
        second = claim(owner="owner-2", attempt=8)._replace(fingerprint=None, delivery=None)
        assert backend.store.swap(first, second) is second
        assert_is(backend, backend.store.read(KEY), second)


class TestAdvance:
    """A claim is renewed, completed or failed by its owner, while it holds, and by no one else."""

    def test_owner_completes_its_claim(self, backend: Backend) -> None:
        """The owner of a claim in progress may write."""
        first = claim()
        backend.store.insert(first)
        done = completed(first)
        assert backend.store.advance(done) is done
        assert_is(backend, backend.store.read(KEY), done)

    def test_lease_that_ended_does_not_matter(self, backend: Backend) -> None:
        """An owner whose lease ran out still holds the key until another takes it."""
        late = claim()._replace(lease_ms=epoch_ms() - 60_000)
        backend.store.insert(late)
        done = completed(late)
        assert backend.store.advance(done) is done

    def test_stale_owner_changes_nothing(self, backend: Backend) -> None:
        """An owner whose key was taken over gets the new holder's record as its answer."""
        first = claim()
        backend.store.insert(first)
        taken = claim(owner="owner-2", attempt=2)
        backend.store.swap(first, taken)
        assert_is(backend, backend.store.advance(completed(first)), taken)
        assert_is(backend, backend.store.read(KEY), taken)

    @pytest.mark.parametrize("status", [COMPLETED, FAILED, QUARANTINED, "PAUSED"])
    def test_finished_owner_changes_nothing(self, backend: Backend, status: str) -> None:
        """The owner's token is not enough once its claim has ended."""
        first = claim()._replace(status=status)
        backend.store.insert(first)
        assert_is(backend, backend.store.advance(completed(first, '"again"')), first)
        assert_is(backend, backend.store.read(KEY), first)

    def test_late_heartbeat_shortens_nothing(self, backend: Backend) -> None:
        """A heartbeat that arrives after the next one is refused, though its owner holds the key."""
        first = claim()
        backend.store.insert(first)
        renewed = first._replace(lease_ms=epoch_ms() + 3 * LEASE_MS)
        assert backend.store.advance(renewed) is renewed
        assert_is(backend, backend.store.advance(first._replace(lease_ms=epoch_ms() + 2 * LEASE_MS)), renewed)
        assert_is(backend, backend.store.read(KEY), renewed)

    def test_claim_without_a_lease_is_not_renewed(self, backend: Backend) -> None:
        """A heartbeat makes no sense of a claim that has no lease, and leaves it alone."""
        odd = claim()._replace(lease_ms=None)
        backend.store.insert(odd)
        assert_is(backend, backend.store.advance(claim()), odd)

    def test_absent_key_is_told_and_left_absent(self, backend: Backend) -> None:
        """A claim that was forgotten is not brought back by its owner."""
        assert backend.store.advance(completed(claim())) is None
        assert backend.store.read(KEY) is None


def test_lost_answer_is_recognised(backend: Backend) -> None:
    """A write whose answer was lost is sent again, and the second answer shows the owner its own token."""
    store = backend.store
    first, second = claim(), claim(owner="owner-2", attempt=2)
    done = completed(second)
    store.insert(first)
    assert_is(backend, store.insert(first), first)
    store.swap(first, second)
    assert_is(backend, store.swap(first, second), second)
    store.advance(done)
    assert_is(backend, store.advance(done), done)


class TestMemory:
    """How long a key is remembered."""

    def test_window_is_counted_in_seconds(self, backend: Backend) -> None:
        """The backend drops a record when its window ends, and takes the window for what it is: epoch seconds."""
        backend.store.insert(completed(claim()))
        left_s = backend.forgotten_in_s(KEY)
        assert left_s == pytest.approx(WINDOW_S, abs=60)

    def test_end_of_a_lease_forgets_nothing(self, backend: Backend) -> None:
        """A claim whose lease has ended is still there, for whoever takes it over."""
        late = claim()._replace(lease_ms=epoch_ms() - 60_000)
        backend.store.insert(late)
        found = backend.store.read(KEY)
        assert found is not None
        assert (found.owner, found.status) == ("owner-1", IN_PROGRESS)

    def test_renewal_moves_the_window(self, backend: Backend) -> None:
        """A later write sets its own window, though the lease stays as it is."""
        first = claim()
        backend.store.insert(first._replace(expiry=epoch_ms() // 1000 + 60))
        assert backend.store.advance(first) is first
        assert backend.forgotten_in_s(KEY) == pytest.approx(WINDOW_S, abs=60)

    def test_quarantined_record_is_never_dropped(self, backend: Backend) -> None:
        """A record without a window stays, though the claim before it had one."""
        first = claim()
        backend.store.insert(first)
        poison = first._replace(status=QUARANTINED, lease_ms=None, expiry=None)
        backend.store.advance(poison)
        assert backend.forgotten_in_s(KEY) is None
        assert_is(backend, backend.store.read(KEY), poison)


ROUNDS: Final = 6
THREADS: Final = 6


def compete(contenders: list[Callable[[], bool]]) -> int:
    """Let them all loose at once, and count the winners."""
    barrier = threading.Barrier(len(contenders))

    def run(contender: Callable[[], bool]) -> bool:
        barrier.wait(timeout=30)
        return contender()

    with ThreadPoolExecutor(len(contenders)) as pool:
        return sum(pool.map(run, contenders))


class TestContention:
    """Of those who write at the same moment, one wins."""

    def test_one_insert_wins(self, backend: Backend) -> None:
        """A key that many insert at once belongs to one of them, and all others are shown the same holder."""

        def insert(record: Record) -> Callable[[], bool]:
            return lambda: backend.store.insert(record) is record

        for number in range(ROUNDS):
            key = f"{KEY}{number}"
            assert compete([insert(claim(key, owner=f"owner-{contender}")) for contender in range(THREADS)]) == 1

    def test_one_takeover_wins(self, backend: Backend) -> None:
        """Of many who have seen the same ended lease, one takes the key over."""

        def take(seen: Record, record: Record) -> Callable[[], bool]:
            return lambda: backend.store.swap(seen, record) is record

        for number in range(ROUNDS):
            key = f"{KEY}{number}"
            backend.store.insert(claim(key)._replace(lease_ms=epoch_ms() - 60_000))
            seen = backend.store.read(key)
            assert seen is not None
            takers = [claim(key, f"taker-{contender}", attempt=2) for contender in range(THREADS)]
            assert compete([take(seen, taker) for taker in takers]) == 1

    def test_heartbeat_or_takeover_wins(self, backend: Backend) -> None:
        """Where a heartbeat and a takeover meet, one of them is refused."""

        def renew(record: Record) -> Callable[[], bool]:
            return lambda: backend.store.advance(record) is record

        def take(seen: Record, record: Record) -> Callable[[], bool]:
            return lambda: backend.store.swap(seen, record) is record

        for number in range(ROUNDS):
            late = claim(f"{KEY}{number}")._replace(lease_ms=epoch_ms() - 60_000)
            backend.store.insert(late)
            seen = backend.store.read(late.key)
            assert seen is not None
            renewed = late._replace(lease_ms=epoch_ms() + LEASE_MS)
            assert compete([renew(renewed), take(seen, claim(late.key, "owner-2", attempt=2))]) == 1

    def test_one_commit_has_its_effect(self, transactional: Backend) -> None:
        """Of a commit that is sent many times at once, one takes effect."""
        backend = transactional

        def commit(done: Record, ride: str) -> Callable[[], bool]:
            return lambda: backend.store.advance(done, [backend.charge(ride)]) is done

        for number in range(ROUNDS):
            first = claim(f"{KEY}{number}")
            backend.store.insert(first)
            commits = [commit(completed(first), f"{RIDE}{number}") for _ in range(3)]
            assert compete(commits) == 1
            assert backend.charges(f"{RIDE}{number}") == 1


class TestEffects:
    """Effects take place with the record, or not at all."""

    def test_effects_come_with_each_write(self, transactional: Backend) -> None:
        """Insert, swap and advance carry effects."""
        store, effect = transactional.store, transactional.charge(RIDE)
        first = claim()
        assert store.insert(first, [effect]) is first
        second = claim(owner="owner-2", attempt=2)
        assert store.swap(first, second, [effect]) is second
        done = completed(second)
        assert store.advance(done, [effect, transactional.charge("order_02")]) is done
        assert (transactional.charges(RIDE), transactional.charges("order_02")) == (3, 1)
        assert_is(transactional, store.read(KEY), done)

    def test_refused_record_refuses_the_effects(self, transactional: Backend) -> None:
        """A write that the record in the way refuses answers with that record, and has no effect."""
        store, effect = transactional.store, transactional.charge(RIDE)
        first = claim()
        store.insert(first)
        other = claim(owner="owner-2", attempt=2)
        assert_is(transactional, store.insert(other, [effect]), first)
        assert_is(transactional, store.swap(first._replace(lease_ms=1), other, [effect]), first)
        assert_is(transactional, store.advance(completed(other), [effect]), first)
        assert store.swap(claim("history#absent"), claim("history#absent"), [effect]) is None
        assert store.advance(completed(claim("history#absent")), [effect]) is None
        assert transactional.charges(RIDE) == 0

    def test_refused_effect_refuses_all(self, transactional: Backend) -> None:
        """An effect whose own condition does not hold is named, and neither record nor effects are written."""
        store = transactional.store
        paid = transactional.charge(RIDE, FIRST_CHARGE)
        first = claim()
        store.insert(first, [paid])
        writes: tuple[Callable[[list[Update]], object], ...] = (
            lambda effects: store.insert(claim("history#other"), effects),
            lambda effects: store.swap(first, claim(owner="owner-2", attempt=2), effects),
            lambda effects: store.advance(completed(first), effects),
        )
        for write in writes:
            with pytest.raises(EffectConflictError) as refusal:
                write([transactional.charge("order_02"), paid])
            assert refusal.value.index == 1
        assert (transactional.charges(RIDE), transactional.charges("order_02")) == (1, 0)
        assert store.read("history#other") is None
        assert_is(transactional, store.read(KEY), first)
