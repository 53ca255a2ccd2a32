"""The transition table, row by row: what is to be done about a record, and what the record is then.

Steps are named tuples, and two kinds of step with one record are equal as tuples: `told` compares the kinds too.
"""

from typing import Any, Final, NamedTuple

import pytest

from idempotency.decision import (
    TTL_BEYOND_LEASE_S,
    Busy,
    Claimant,
    Corrupt,
    Done,
    Failed,
    Later,
    Limits,
    Lost,
    Mismatch,
    Outcome,
    Quarantined,
    Run,
    Write,
    attempt,
    conclude,
    decide,
    differ,
    is_beyond_window,
    is_live,
    is_over,
    lease_until,
    quarantined,
    released,
    renewed,
    settled,
)
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record
from idempotency.stores import may_advance, may_insert, may_swap

NOW: Final = 1_800_000_000_000
DAY_S: Final = 86_400
LIMITS: Final = Limits(
    window_s=30 * DAY_S,
    max_attempts=3,
    lease_ms=30_000,
    margin_ms=1_000,
    skew_ms=1_000,
    same_delivery_takes_over=False,
)
ME: Final = Claimant(
    key="history#k1",
    owner="mine",
    fingerprint="1:a",
    delivery="D1",
    region="eu-west-1",
    deadline_ms=None,
    renewed=True,
    limits=LIMITS,
)
UNDER_A_DEADLINE: Final = ME._replace(deadline_ms=NOW + 20_000, renewed=False)
AT_ONCE: Final = ME._replace(limits=LIMITS._replace(same_delivery_takes_over=True))
READY: Final = ME._replace(outcome=Outcome(COMPLETED, result="1"))
BROKEN: Final = ME._replace(outcome=Outcome(FAILED, error="no"))

CLAIM: Final = Record(
    key="history#k1",
    status=IN_PROGRESS,
    owner="another's",
    attempt=1,
    lease_ms=NOW + 10_000,
    expiry=NOW // 1000 + 30 * DAY_S,
    fingerprint="1:a",
    delivery="D2",
    region="eu-west-1",
    created_ms=NOW - 5_000,
    updated_ms=NOW - 5_000,
)
MINE: Final = CLAIM._replace(owner="mine", delivery="D1", lease_ms=NOW + 30_000)
DEAD: Final = CLAIM._replace(lease_ms=NOW - LIMITS.skew_ms - 1)
DONE: Final = CLAIM._replace(status=COMPLETED, lease_ms=None, result='"theirs"')
OVER: Final = DONE._replace(attempt=2, expiry=(NOW - LIMITS.skew_ms) // 1000 - 1)
FAILURE: Final = CLAIM._replace(status=FAILED, lease_ms=None, error="no")
POISON: Final = CLAIM._replace(status=QUARANTINED, lease_ms=None, expiry=None, attempt=3, error="no")


def told(step: object) -> tuple[type, object]:
    """Return a step with its kind."""
    return type(step), step


class Row(NamedTuple):
    """One row of the table: a delivery meets a record."""

    id: str
    found: Record
    step: Any
    me: Claimant = ME


def takes_over(found: Record, me: Claimant = ME) -> Write:
    """Return the swap that makes the next attempt."""
    return Write(found, attempt(me, NOW, found))


def starts_anew(found: Record, me: Claimant = ME) -> Write:
    """Return the swap that begins a new window."""
    return Write(found, attempt(me, NOW, found._replace(attempt=0, created_ms=NOW)))


def gives_up(found: Record, error: str) -> Write:
    """Return the swap that quarantines the key."""
    return Write(found, quarantined(found, ME, NOW, error))


ROWS: Final = (
    # our own token: an answer was lost
    Row("own IN_PROGRESS, enough lease left: run", MINE, Run(MINE)),
    Row(
        "own IN_PROGRESS, half of the lease left: run",
        MINE._replace(lease_ms=NOW + 15_000),
        Run(MINE._replace(lease_ms=NOW + 15_000)),
    ),
    Row(
        "own IN_PROGRESS, less than half of the lease left: renew it first",
        MINE._replace(lease_ms=NOW + 14_999),
        Write(MINE._replace(lease_ms=NOW + 14_999), renewed(MINE._replace(lease_ms=NOW + 14_999), ME, NOW)),
    ),
    Row(
        "own IN_PROGRESS under a deadline: run, the lease ends with the invocation anyway",
        MINE._replace(lease_ms=NOW + 21_000),
        Run(MINE._replace(lease_ms=NOW + 21_000)),
        UNDER_A_DEADLINE,
    ),
    Row(
        "own IN_PROGRESS without a lease: corrupt", MINE._replace(lease_ms=None), Corrupt(MINE._replace(lease_ms=None))
    ),
    Row("own COMPLETED: done", DONE._replace(owner="mine"), Done(DONE._replace(owner="mine")), READY),
    Row("own COMPLETED, over: done all the same", OVER._replace(owner="mine"), Done(OVER._replace(owner="mine"))),
    Row("own FAILED: raise", FAILURE._replace(owner="mine"), Failed(FAILURE._replace(owner="mine")), BROKEN),
    Row("own QUARANTINED: dead-letter", POISON._replace(owner="mine"), Quarantined(POISON._replace(owner="mine"))),
    Row("own with an unknown status: corrupt", MINE._replace(status="?"), Corrupt(MINE._replace(status="?"))),
    Row(
        "own token before the payload",
        MINE._replace(fingerprint="1:b"),
        Run(MINE._replace(fingerprint="1:b")),
    ),
    # another payload
    *(
        Row(
            f"{found.status}, other payload: mismatch",
            found._replace(fingerprint="1:b"),
            Mismatch(found._replace(fingerprint="1:b")),
        )
        for found in (CLAIM, DEAD, DONE, FAILURE, POISON)
    ),
    Row(
        "COMPLETED and over, other payload: the window comes first",
        OVER._replace(fingerprint="1:b"),
        starts_anew(OVER._replace(fingerprint="1:b")),
    ),
    Row(
        "IN_PROGRESS, other payload, past its TTL: mismatch, a claim cannot be over",
        DEAD._replace(fingerprint="1:b", expiry=OVER.expiry),
        Mismatch(DEAD._replace(fingerprint="1:b", expiry=OVER.expiry)),
    ),
    # COMPLETED
    Row("COMPLETED, not over: stored result", DONE, Done(DONE)),
    Row("COMPLETED, atomic: stored result", DONE, Done(DONE), READY),
    Row("COMPLETED, atomic error: stored result", DONE, Done(DONE), BROKEN),
    Row("COMPLETED, over: a new window, attempt 1", OVER, starts_anew(OVER)),
    Row("COMPLETED, over, atomic: commit into a new window", OVER, starts_anew(OVER, READY), READY),
    # IN_PROGRESS
    Row("IN_PROGRESS, live: busy", CLAIM, Busy(CLAIM, 11_001)),
    Row("IN_PROGRESS, live, atomic: busy", CLAIM, Busy(CLAIM, 11_001), READY),
    Row(
        "IN_PROGRESS, live, window ended: busy, a window never overrides a lease",
        CLAIM._replace(expiry=OVER.expiry),
        Busy(CLAIM._replace(expiry=OVER.expiry), 11_001),
    ),
    Row(
        "IN_PROGRESS, lease ended less than the skew ago: busy",
        CLAIM._replace(lease_ms=NOW - 1_000),
        Busy(CLAIM._replace(lease_ms=NOW - 1_000), 1),
    ),
    Row("IN_PROGRESS, not live: take over", DEAD, takes_over(DEAD)),
    Row(
        "IN_PROGRESS, not live, no attempt left: quarantine",
        DEAD._replace(attempt=3),
        gives_up(DEAD._replace(attempt=3), "no attempt lived to give an answer"),
    ),
    Row(
        "IN_PROGRESS with an error, not live, no attempt left: quarantine, with that error",
        DEAD._replace(attempt=3, error="known"),
        gives_up(DEAD._replace(attempt=3, error="known"), "known"),
    ),
    Row("IN_PROGRESS, not live, atomic: commit", DEAD, takes_over(DEAD, READY), READY),
    Row(
        "IN_PROGRESS, not live, no attempt left, atomic, effects ready: commit, nothing is wasted",
        DEAD._replace(attempt=3),
        takes_over(DEAD._replace(attempt=3), READY),
        READY,
    ),
    Row(
        "IN_PROGRESS, not live, no attempt left, atomic error: quarantine",
        DEAD._replace(attempt=3),
        gives_up(DEAD._replace(attempt=3), "no attempt lived to give an answer"),
        BROKEN,
    ),
    Row("IN_PROGRESS without a lease: corrupt", CLAIM._replace(lease_ms=None), Corrupt(CLAIM._replace(lease_ms=None))),
    # the same delivery, by policy
    Row(
        "IN_PROGRESS, live, own delivery again, by policy: take over at once",
        CLAIM._replace(delivery="D1"),
        takes_over(CLAIM._replace(delivery="D1"), AT_ONCE),
        AT_ONCE,
    ),
    Row(
        "IN_PROGRESS, live, own delivery again, without the policy: busy",
        CLAIM._replace(delivery="D1"),
        Busy(CLAIM._replace(delivery="D1"), 11_001),
    ),
    Row("IN_PROGRESS, live, another delivery, with the policy: busy", CLAIM, Busy(CLAIM, 11_001), AT_ONCE),
    Row(
        "IN_PROGRESS, live, the same id in another region: busy",
        CLAIM._replace(delivery="D1", region="us-east-1"),
        Busy(CLAIM._replace(delivery="D1", region="us-east-1"), 11_001),
        AT_ONCE,
    ),
    Row(
        "IN_PROGRESS, live, no delivery known: busy",
        CLAIM._replace(delivery=None),
        Busy(CLAIM._replace(delivery=None), 11_001),
        AT_ONCE._replace(delivery=None),
    ),
    # FAILED
    Row("FAILED, attempts left: claim again", FAILURE, takes_over(FAILURE)),
    Row("FAILED, attempts left, atomic: commit", FAILURE, takes_over(FAILURE, READY), READY),
    Row("FAILED, attempts left, atomic error: fail again", FAILURE, takes_over(FAILURE, BROKEN), BROKEN),
    Row(
        "FAILED, before its retry time: later",
        FAILURE._replace(retry_ms=NOW + 1),
        Later(FAILURE._replace(retry_ms=NOW + 1), 1),
    ),
    Row(
        "FAILED, at its retry time: claim again",
        FAILURE._replace(retry_ms=NOW),
        takes_over(FAILURE._replace(retry_ms=NOW)),
    ),
    Row("FAILED, none left: quarantine", FAILURE._replace(attempt=3), gives_up(FAILURE._replace(attempt=3), "no")),
    Row(
        "FAILED, none left, before its retry time: quarantine",
        FAILURE._replace(attempt=3, retry_ms=NOW + 1),
        gives_up(FAILURE._replace(attempt=3, retry_ms=NOW + 1), "no"),
    ),
    Row(
        "FAILED, past its TTL: forgotten, attempt 1",
        FAILURE._replace(expiry=OVER.expiry, attempt=3),
        starts_anew(FAILURE._replace(expiry=OVER.expiry, attempt=3)),
    ),
    # QUARANTINED, and what makes no sense
    Row("QUARANTINED: dead-letter, never run", POISON, Quarantined(POISON)),
    Row("QUARANTINED, atomic: dead-letter, never commit", POISON, Quarantined(POISON), READY),
    Row(
        "QUARANTINED with attempts left (a permanent error): dead-letter",
        POISON._replace(attempt=1),
        Quarantined(POISON._replace(attempt=1)),
    ),
    Row(
        "an unknown status: corrupt", CLAIM._replace(status="INPROGRESS"), Corrupt(CLAIM._replace(status="INPROGRESS"))
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_a_delivery_meets_a_record(row: Row) -> None:
    """Each row of the table leads to its step, and to no other."""
    assert told(decide(row.found, row.me, NOW)) == told(row.step)


class TestAttempt:
    """What a claimant's next attempt writes."""

    def test_absent_claim(self) -> None:
        """An absent key is claimed as attempt 1, with a lease, and a TTL that ends with the window."""
        assert attempt(ME, NOW) == Record(
            key="history#k1",
            status=IN_PROGRESS,
            owner="mine",
            attempt=1,
            lease_ms=NOW + 30_000,
            expiry=NOW // 1000 + 30 * DAY_S,
            fingerprint="1:a",
            delivery="D1",
            region="eu-west-1",
            created_ms=NOW,
            updated_ms=NOW,
        )

    def test_ttl_beyond_the_lease(self) -> None:
        """However short the window, the TTL of a claim ends an hour after its lease."""
        claim = attempt(ME._replace(limits=LIMITS._replace(window_s=1)), NOW)
        assert claim.expiry == (NOW + 30_000) // 1000 + TTL_BEYOND_LEASE_S == NOW // 1000 + 3_630

    def test_absent_atomic(self) -> None:
        """An atomic run writes its completion at once, without ever having a lease."""
        record = attempt(READY, NOW)
        assert (record.status, record.owner, record.attempt, record.lease_ms) == (COMPLETED, "mine", 1, None)
        assert (record.result, record.expiry) == ("1", NOW // 1000 + 30 * DAY_S)

    def test_absent_atomic_error(self) -> None:
        """An atomic run that raised writes FAILED, attempt 1."""
        record = attempt(BROKEN, NOW)
        assert (record.status, record.attempt, record.error, record.lease_ms) == (FAILED, 1, "no", None)

    def test_next_attempt(self) -> None:
        """A takeover counts, and keeps when the key was first seen; nothing else of the old attempt is left."""
        record = attempt(ME, NOW, FAILURE._replace(attempt=2, retry_ms=NOW, event="{}"))
        assert (record.attempt, record.created_ms, record.updated_ms) == (3, CLAIM.created_ms, NOW)
        assert (record.owner, record.delivery, record.fingerprint) == ("mine", "D1", "1:a")
        assert (record.error, record.retry_ms, record.event, record.result) == (None, None, None, None)

    def test_last_atomic_error(self) -> None:
        """An atomic run that raises in the last attempt writes QUARANTINED."""
        record = attempt(BROKEN, NOW, FAILURE._replace(attempt=2))
        assert (record.status, record.attempt, record.expiry, record.dead_lettered) == (QUARANTINED, 3, None, False)


class TestLease:
    """Until when a claim holds."""

    def test_without_a_deadline(self) -> None:
        """Outside Lambda the policy's lease holds."""
        assert lease_until(ME, NOW) == NOW + 30_000

    def test_follows_the_deadline(self) -> None:
        """Under a short timeout the lease lasts as long as the invocation, plus the margin, whenever it is written."""
        assert lease_until(UNDER_A_DEADLINE, NOW) == lease_until(UNDER_A_DEADLINE, NOW + 5_000) == NOW + 21_000

    def test_is_renewed_up_to_the_deadline(self) -> None:
        """Under a long timeout the lease is renewed, and never lasts beyond the invocation and the margin."""
        me = ME._replace(deadline_ms=NOW + 600_000)
        assert lease_until(me, NOW) == NOW + 30_000
        assert lease_until(me, NOW + 590_000) == NOW + 601_000

    def test_heartbeat(self) -> None:
        """A heartbeat moves lease and TTL on, and nothing else."""
        short = ME._replace(limits=LIMITS._replace(window_s=1))
        beat = renewed(MINE, short, NOW + 20_000)
        assert beat == MINE._replace(
            lease_ms=NOW + 50_000, expiry=(NOW + 50_000) // 1000 + TTL_BEYOND_LEASE_S, updated_ms=NOW + 20_000
        )

    @pytest.mark.parametrize(("left_ms", "live"), [(1, True), (0, True), (-1_000, True), (-1_001, False)])
    def test_live(self, left_ms: int, live: bool) -> None:
        """A claim is live until its lease and the skew have passed."""
        assert is_live(CLAIM._replace(lease_ms=NOW + left_ms), LIMITS, NOW) is live

    def test_without_a_lease(self) -> None:
        """A record without a lease is not live."""
        assert not is_live(DONE, LIMITS, NOW)


class TestWindow:
    """How long a record is remembered."""

    @pytest.mark.parametrize(("now_ms", "over"), [(10_000, False), (11_000, False), (11_001, True)])
    def test_over(self, now_ms: int, over: bool) -> None:
        """A window is over when its expiry, in seconds, and the skew have passed."""
        assert is_over(DONE._replace(expiry=10), LIMITS, now_ms) is over

    def test_without_an_expiry(self) -> None:
        """A record without an expiry is never over."""
        assert not is_over(POISON, LIMITS, NOW * 2)

    @pytest.mark.parametrize(("end_ms", "beyond"), [(97_000, False), (97_001, True)])
    def test_beyond(self, end_ms: int, beyond: bool) -> None:
        """What was sent a window ago, less both clocks' skew and a second, is too old for the whole of a run."""
        assert is_beyond_window(0, end_ms, LIMITS._replace(window_s=100)) is beyond


class TestFingerprint:
    """When two payloads differ."""

    @pytest.mark.parametrize(
        ("stored", "ours", "other"),
        [
            ("1:a", "1:a", False),
            ("1:a", "1:b", True),
            ("1:a", "2:b", False),
            (None, "1:a", False),
            ("1:a", None, False),
            (None, None, False),
        ],
    )
    def test_differ(self, stored: str | None, ours: str | None, other: bool) -> None:
        """Payloads differ if their fingerprints do, and are of one version; one that is not there differs from none."""
        assert differ(stored, ours) is other


class TestEnd:
    """How a run ends."""

    def test_commit(self) -> None:
        """A commit has the result, no lease any more, and a window that begins now."""
        record = settled(MINE, Outcome(COMPLETED, result="7"), ME, NOW)
        assert record == MINE._replace(
            status=COMPLETED, lease_ms=None, expiry=NOW // 1000 + 30 * DAY_S, updated_ms=NOW, result="7"
        )

    def test_commit_without_its_value(self) -> None:
        """A result that could not be stored is completed without it, and says why."""
        record = settled(MINE, Outcome(COMPLETED, error="too large"), ME, NOW)
        assert (record.status, record.result, record.error) == (COMPLETED, None, "too large")

    def test_fail(self) -> None:
        """A failure is recorded with its error, and the key may be tried again at once by default."""
        record = settled(MINE, Outcome(FAILED, error="no"), ME, NOW)
        assert record == MINE._replace(
            status=FAILED, lease_ms=None, expiry=NOW // 1000 + 30 * DAY_S, updated_ms=NOW, error="no"
        )

    def test_fail_with_back_off(self) -> None:
        """A back-off sets the time before which the key is not tried again, from the attempt that failed."""
        me = ME._replace(limits=LIMITS._replace(backoff=lambda number: 1.5 * number))
        assert settled(MINE._replace(attempt=2), Outcome(FAILED), me, NOW).retry_ms == NOW + 3_000

    def test_fail_keeps_the_event(self) -> None:
        """The raw event is kept with a failure where the claimant brings it."""
        assert settled(MINE, Outcome(FAILED), ME._replace(event="{}"), NOW).event == "{}"

    @pytest.mark.parametrize(
        ("number", "permanent"), [(3, False), (1, True)], ids=["the last attempt", "a permanent error"]
    )
    def test_poison(self, number: int, permanent: bool) -> None:
        """The last attempt and a permanent error end in QUARANTINED, without expiry and not yet dead-lettered."""
        claim = MINE._replace(attempt=number)
        record = settled(claim, Outcome(FAILED, error="no", permanent=permanent), ME._replace(event="{}"), NOW)
        assert (record.status, record.attempt, record.error, record.event) == (QUARANTINED, number, "no", "{}")
        assert (record.lease_ms, record.expiry, record.dead_lettered) == (None, None, False)
        assert told(conclude(record, ME)) == told(Quarantined(record))

    def test_poison_of_another(self) -> None:
        """Whoever gives another's key up gives it a token that is neither's, nor any claim's of his own."""
        record = quarantined(DEAD._replace(attempt=3, retry_ms=5, dead_lettered=True), ME, NOW, "no")
        assert record.owner not in (ME.owner, DEAD.owner)
        assert (record.attempt, record.retry_ms, record.dead_lettered) == (3, None, False)

    def test_release(self) -> None:
        """What an operator gives back has failed no attempt yet, expires again, and keeps why it was poison."""
        record = released(POISON._replace(dead_lettered=True), "an operator's", NOW, 60)
        assert record == POISON._replace(
            status=FAILED, owner="an operator's", attempt=0, expiry=NOW // 1000 + 60, updated_ms=NOW
        )


@pytest.mark.parametrize(
    ("found", "ending"),
    [
        pytest.param(None, Lost(None), id="gone: lost"),
        pytest.param(DONE, Done(DONE), id="completed by another: its result"),
        pytest.param(DONE._replace(owner="mine"), Done(DONE._replace(owner="mine")), id="completed by us: our result"),
        pytest.param(CLAIM, Lost(CLAIM), id="claimed by another: lost"),
        pytest.param(FAILURE, Lost(FAILURE), id="failed by another: lost"),
        pytest.param(POISON, Lost(POISON), id="quarantined by another: lost"),
        pytest.param(FAILURE._replace(owner="mine"), Failed(FAILURE._replace(owner="mine")), id="failed by us: raise"),
        pytest.param(
            POISON._replace(owner="mine"),
            Quarantined(POISON._replace(owner="mine")),
            id="quarantined by us: dead-letter",
        ),
        pytest.param(MINE._replace(status="?"), Lost(MINE._replace(status="?")), id="an unknown status: lost"),
    ],
)
def test_a_refused_owner_looks_at_the_record(found: Record | None, ending: Any) -> None:
    """After a run the record says what became of it; nothing is run, failed or undone again."""
    assert told(conclude(found, ME)) == told(ending)


class TestConditions:
    """The three conditions of a store."""

    def test_insert(self) -> None:
        """An insert writes where nothing is, and nowhere else."""
        assert may_insert(None)
        assert not may_insert(OVER)

    @pytest.mark.parametrize(
        ("found", "writes"),
        [
            pytest.param(CLAIM, True, id="as seen"),
            pytest.param(CLAIM._replace(expiry=1, updated_ms=1, dead_lettered=True), True, id="otherwise as seen"),
            pytest.param(None, False, id="gone"),
            pytest.param(CLAIM._replace(owner="mine"), False, id="another owner"),
            pytest.param(CLAIM._replace(attempt=2), False, id="another attempt"),
            pytest.param(CLAIM._replace(status=FAILED), False, id="another status"),
            pytest.param(CLAIM._replace(lease_ms=NOW), False, id="another lease"),
            pytest.param(CLAIM._replace(lease_ms=None), False, id="no lease"),
        ],
    )
    def test_swap(self, found: Record | None, writes: bool) -> None:
        """A swap compares owner, attempt, status and lease, each by itself."""
        assert may_swap(found, CLAIM) is writes

    def test_swap_of_what_lacks_them(self) -> None:
        """What the seen record lacks, the found one must lack too."""
        bare = POISON._replace(owner=None)
        assert may_swap(bare, bare)
        assert not may_swap(POISON, bare)

    @pytest.mark.parametrize(
        ("found", "writes"),
        [
            pytest.param(MINE, True, id="mine, in progress"),
            pytest.param(None, False, id="gone"),
            pytest.param(CLAIM, False, id="another's"),
            pytest.param(MINE._replace(status=COMPLETED), False, id="mine, completed"),
            pytest.param(MINE._replace(status=FAILED), False, id="mine, failed"),
            pytest.param(MINE._replace(status=QUARANTINED), False, id="mine, quarantined"),
        ],
    )
    def test_advance(self, found: Record | None, writes: bool) -> None:
        """Commit, failure and heartbeat write over the owner's own claim alone."""
        assert may_advance(found, settled(MINE, Outcome(COMPLETED), ME, NOW)) is writes
        assert may_advance(found, settled(MINE, Outcome(FAILED), ME, NOW)) is writes
        assert may_advance(found, renewed(MINE, ME, NOW)) is writes

    @pytest.mark.parametrize(
        ("lease_ms", "writes"), [(NOW + 29_999, True), (NOW + 30_000, True), (NOW + 30_001, False)]
    )
    def test_advance_never_shortens_a_lease(self, lease_ms: int, writes: bool) -> None:
        """A heartbeat that comes late, after the next, is refused; a commit is not."""
        found = MINE._replace(lease_ms=lease_ms)
        assert may_advance(found, renewed(MINE, ME, NOW)) is writes
        assert may_advance(found, settled(MINE, Outcome(COMPLETED), ME, NOW))
