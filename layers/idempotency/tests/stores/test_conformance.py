"""What every store must do.

`backend` opens the stores; whoever writes one adds it to `STORES` and runs this.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from carride_idempotency import EffectConflictError, Update
from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.reading import records_at
from carride_idempotency.record import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUARANTINED,
    Record,
    UnknownStatus,
)
from carride_idempotency.stores import may_compare_and_swap, may_put_if_absent, may_update_if_owner
from tests.stores.backends import FIRST_CHARGE, Backend

pytestmark = pytest.mark.integration  # conftest.py adds mark.peer where a store needs a server

KEY: Final = "history#order_01"
RIDE: Final = "order_01"
WINDOW_S: Final = 30 * 86_400
LEASE_MS: Final = 30_000


def claim(key: str = KEY, owner: str = "owner-1", attempt: int = 1) -> Record:
    now_ms = epoch_ms()
    lease_ms = now_ms + LEASE_MS
    expiry = now_ms // 1000 + WINDOW_S
    return Record(
        key,
        IN_PROGRESS,
        owner,
        attempt,
        lease_ms,
        expiry,
        "1:abc",
        "request-1",
        "eu-west-1",
        now_ms,
        now_ms,
    )


def completed(of: Record, result: str = '"done"') -> Record:
    return of._replace(status=COMPLETED, lease_ms=None, updated_ms=epoch_ms(), result=result)


def assert_is(backend: Backend, found: Record | None, written: Record) -> None:
    """Check that a record was found as written.

    A store with its own clock may show times later, never earlier.
    """
    assert found is not None
    late_ms = 0 if backend.keeps_times else 60_000
    for name in ("lease_ms", "retry_ms"):
        shown = getattr(found, name)
        wanted = getattr(written, name)
        assert (shown is None) == (wanted is None), name
        assert shown is None or wanted <= shown <= wanted + late_ms, name
    if written.expiry is None:
        assert found.expiry is None
    else:
        assert written.expiry <= (found.expiry or 0) <= written.expiry + late_ms // 1000
    assert timeless(found) == timeless(written)


def timeless(record: Record) -> Record:
    return record._replace(lease_ms=None, retry_ms=None, expiry=None, revision=None)


FULL: Final[dict[str, Any]] = {
    "attempt": 7,
    "result": '{"$":["decimal","1.10"]} ünïcode \U0001f695 \n\x00',
    "error": "ValueError: no car",
    "retry_ms": 1_900_000_000_123,
    "dead_lettered": True,
    "event": '{"detail":{"data":{}}}',
    "externals": '{"charge":null,"ship":"\\"ünïcode\\""}',
}
BARE: Final[dict[str, Any]] = {
    **dict.fromkeys(["owner", "lease_ms", "expiry", "fingerprint", "delivery", "region"]),
    "attempt": 0,
}
NOW_MS: Final = epoch_ms()
ENDED_MS: Final = NOW_MS - 3_600_000
LATER_MS: Final = NOW_MS + 3_600_000

THERE: Final[dict[str, dict[str, Any] | None]] = {
    "nothing": None,
    "a live claim": {},
    "an ended claim": {"lease_ms": ENDED_MS},
    "a claim without a lease": {"lease_ms": None},
    "a claim without an owner": {"owner": None},
    "all fields": FULL,
    "few fields": BARE,
    **{status: {"status": status} for status in (COMPLETED, FAILED, QUARANTINED)},
    "an unknown status": {"status": UnknownStatus("PAUSED")},
}
OTHERWISE: Final[list[dict[str, Any]]] = [
    {},
    {"owner": "owner-2"},
    {"owner": None},
    {"attempt": 2},
    {"status": IN_PROGRESS},
    {"status": FAILED},
    {"lease_ms": None},
    {"lease_ms": ENDED_MS},
    {"lease_ms": LATER_MS},
]


WRITES: Final = ("put_if_absent", "compare_and_swap", "compare_and_swap as read", "update_if_owner")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("there", THERE.values(), ids=THERE)
def test_a_write_takes_place_exactly_on_its_condition(
    backend: Backend, there: dict[str, Any] | None, write: str
) -> None:
    """It returns the record that is now stored, whole.

    The new one, or the one that refused it and all effects.
    """
    store = backend.store
    for number, change in enumerate(OTHERWISE):
        ride = f"{RIDE}{number}"
        other = f"other{number}"
        effects = [backend.charge(ride), backend.charge(other)] if store.transactional else []
        first = claim(f"{KEY}{number}")
        written = None if there is None else store.put_if_absent(first._replace(**there))
        seen = (written or first)._replace(**change)
        record = claim(first.key, "owner-3", 3)._replace(fingerprint=None, delivery=None)
        answer: Record | None
        if write == "put_if_absent":
            answer = store.put_if_absent(record, effects)
            writes = may_put_if_absent(written)
        elif write == "update_if_owner":
            # Every owner has a token.
            record = seen._replace(result='"done"', owner=seen.owner or "owner-1")
            answer = store.update_if_owner(record, effects)
            writes = may_update_if_owner(written, record)
        else:
            found = store.read(first.key) if "read" in write else None
            answer = store.compare_and_swap(
                found._replace(**change) if found else seen, record, effects
            )
            writes = may_compare_and_swap(written, seen)
        assert (answer is record) is writes
        assert (backend.charges(ride), backend.charges(other)) == (writes * len(effects[:1]),) * 2
        now = record if writes else written
        for found in (answer, store.read(first.key)):
            if now is None:
                assert found is None
            else:
                assert_is(backend, found, now)


class TestRecords:
    def test_keys_are_apart(self, backend: Backend) -> None:
        """Keys that differ in case, space or one character name different records."""
        keys = ("a#b", "a#B", "a# b", "a#b ", "a#{b}", "a#b\n", "a#ß", "A#b")
        written = [
            backend.store.put_if_absent(claim(key, owner=f"owner of {key!r}")) for key in keys
        ]
        for key, record in zip(keys, written, strict=True):
            assert record.owner == f"owner of {key!r}"
            assert_is(backend, backend.store.read(key), record)

    def test_many_are_read_at_once(self, backend: Backend) -> None:
        """A reader of many keys finds what a reader of each one does."""
        keys = [f"history#order_{number}" for number in range(120)] + ["a#b", "a#B", "ä#\U0001f695"]
        written = {key: backend.store.put_if_absent(claim(key)) for key in keys[::2]}
        found = {each.key: each for each in records_at(backend.store, [*keys, *keys[:9]])}
        assert found.keys() == written.keys()
        for key, record in found.items():
            assert_is(backend, record, written[key])
        assert [*records_at(backend.store, ["a#b" * 999])] == []

    def test_copy_of_a_record_that_was_read_may_serve_as_seen(self, backend: Backend) -> None:
        """A copy of a record that was read can be compared after it has been written."""
        backend.store.put_if_absent(claim())
        seen = backend.store.read(KEY)
        assert seen is not None
        second = seen._replace(owner="owner-2", lease_ms=epoch_ms() + 2 * LEASE_MS)
        assert backend.store.compare_and_swap(seen, second) is second
        third = second._replace(status=FAILED, lease_ms=None)
        assert backend.store.compare_and_swap(second, third) is third

    def test_window_is_counted_in_seconds(self, backend: Backend) -> None:
        """The backend drops a record when its latest window ends, a quarantined one never."""
        first = claim()
        backend.store.put_if_absent(first._replace(expiry=epoch_ms() // 1000 + 60))
        assert backend.forgotten_in_s(KEY) == pytest.approx(60, abs=60)
        assert backend.store.update_if_owner(first) is first
        assert backend.forgotten_in_s(KEY) == pytest.approx(WINDOW_S, abs=60)
        poison = first._replace(status=QUARANTINED, lease_ms=None, expiry=None)
        backend.store.update_if_owner(poison)
        assert backend.forgotten_in_s(KEY) is None
        assert_is(backend, backend.store.read(KEY), poison)


ROUNDS: Final = 6
THREADS: Final = 6


def compete(contenders: list[Callable[[], bool]]) -> int:
    barrier = threading.Barrier(len(contenders))

    def run(contender: Callable[[], bool]) -> bool:
        barrier.wait(timeout=30)
        return contender()

    with ThreadPoolExecutor(len(contenders)) as pool:
        return sum(pool.map(run, contenders))


class TestContention:
    @pytest.mark.parametrize("contest", ["insert", "takeover", "takeover or heartbeat"])
    def test_one_write_wins(self, backend: Backend, contest: str) -> None:
        """Of concurrent inserts, takeovers or heartbeats of one key, exactly one succeeds."""
        store = backend.store

        def write(seen: Record | None, record: Record) -> bool:
            if seen is None:
                return store.put_if_absent(record) is record
            if contest == "takeover or heartbeat" and record.owner == "taker-0":
                renewed = claim(record.key)
                return store.update_if_owner(renewed) is renewed
            return store.compare_and_swap(seen, record) is record

        for number in range(ROUNDS):
            late = claim(f"{KEY}{number}")._replace(lease_ms=ENDED_MS)
            seen = None if contest == "insert" else store.read(store.put_if_absent(late).key)
            records = [
                claim(late.key, f"taker-{contender}", attempt=2) for contender in range(THREADS)
            ]
            assert compete([functools.partial(write, seen, record) for record in records]) == 1

    def test_one_commit_has_its_effect(self, transactional: Backend) -> None:
        """Of a commit that is sent many times at once, one takes effect."""
        backend = transactional

        def commit(done: Record, ride: str) -> Callable[[], bool]:
            return lambda: backend.store.update_if_owner(done, [backend.charge(ride)]) is done

        for number in range(ROUNDS):
            first = claim(f"{KEY}{number}")
            backend.store.put_if_absent(first)
            commits = [commit(completed(first), f"{RIDE}{number}") for _ in range(3)]
            assert compete(commits) == 1
            assert backend.charges(f"{RIDE}{number}") == 1


class TestEffects:
    def test_refused_effect_refuses_all(self, transactional: Backend) -> None:
        """An effect whose condition does not hold is named, and nothing is written."""
        store = transactional.store
        paid = transactional.charge(RIDE, FIRST_CHARGE)
        first = claim()
        store.put_if_absent(first, [paid])
        writes: tuple[Callable[[list[Update]], object], ...] = (
            lambda effects: store.put_if_absent(claim("history#other"), effects),
            lambda effects: store.compare_and_swap(
                first, claim(owner="owner-2", attempt=2), effects
            ),
            lambda effects: store.update_if_owner(completed(first), effects),
        )
        for write in writes:
            with pytest.raises(EffectConflictError) as refusal:
                write([transactional.charge("order_02"), paid])
            assert refusal.value.index == 1
        assert (transactional.charges(RIDE), transactional.charges("order_02")) == (1, 0)
        assert store.read("history#other") is None
        assert_is(transactional, store.read(KEY), first)
