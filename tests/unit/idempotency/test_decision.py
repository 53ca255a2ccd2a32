"""The limits of lease, window and fingerprint to the millisecond. The explorer drives the decisions themselves."""

from typing import Final

import pytest

from idempotency.decision import (
    TTL_BEYOND_LEASE_S,
    ClaimRequest,
    Limits,
    Outcome,
    differ,
    is_beyond_window,
    is_live,
    is_over,
    lease_until,
    renewed,
)
from idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED, Record

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
ME: Final = ClaimRequest(
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

    @pytest.mark.parametrize(("left_ms", "live"), [(902_000, True), (902_001, False)])
    def test_not_believed(self, left_ms: int, live: bool) -> None:
        """A lease that ends later than any can was written by a wrong clock."""
        assert is_live(CLAIM._replace(lease_ms=NOW + left_ms), LIMITS, NOW) is live


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
