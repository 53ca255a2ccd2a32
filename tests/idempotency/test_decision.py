"""The limits of lease, window and fingerprint to the millisecond. The explorer drives the decisions themselves."""

from typing import Final

import pytest

from idempotency.decision import (
    ClaimRequest,
    Limits,
    differ,
    is_beyond_window,
    is_live,
    is_over,
    lease_until,
)
from idempotency.record import COMPLETED, IN_PROGRESS, Record

NOW: Final = 1_800_000_000_000
LIMITS: Final = Limits(
    window_s=1, max_attempts=3, lease_ms=30_000, margin_ms=1_000, skew_ms=1_000, same_delivery_takes_over=False
)
REQUEST: Final = ClaimRequest("history#k1", "mine", "1:a", "D1", "eu-west-1", None, renewed=True, limits=LIMITS)
CLAIM: Final = Record(
    "history#k1", IN_PROGRESS, "mine", 1, NOW + 30_000, NOW // 1000, "1:a", "D1", "eu-west-1", NOW - 5_000, NOW - 5_000
)


class TestLease:
    """Until when a claim holds."""

    @pytest.mark.parametrize(
        ("deadline_ms", "renews", "after_ms", "until_ms"),
        [
            (None, True, 0, 30_000),
            (20_000, False, 0, 21_000),
            (20_000, False, 5_000, 21_000),
            (600_000, True, 0, 30_000),
            (600_000, True, 590_000, 601_000),
        ],
        ids=["outside Lambda", "short timeout", "the same, later", "long timeout", "the same, near its end"],
    )
    def test_lease_ends(self, deadline_ms: int | None, renews: bool, after_ms: int, until_ms: int) -> None:
        """A lease is the policy's, or lasts as long as the invocation and its margin; never longer than that."""
        end_ms = None if deadline_ms is None else NOW + deadline_ms
        request = REQUEST._replace(deadline_ms=end_ms, renewed=renews)
        assert lease_until(request, NOW + after_ms) == NOW + until_ms

    @pytest.mark.parametrize(
        ("left_ms", "live"),
        [(None, False), (-1_001, False), (-1_000, True), (0, True), (902_000, True), (902_001, False)],
    )
    def test_live(self, left_ms: int | None, live: bool) -> None:
        """A claim is live until its lease and the skew have passed, unless it ends later than any lease can."""
        assert is_live(CLAIM._replace(lease_ms=None if left_ms is None else NOW + left_ms), LIMITS, NOW) is live


class TestWindow:
    """How long a record is remembered."""

    @pytest.mark.parametrize(
        ("expiry", "now_ms", "over"), [(10, 10_000, False), (10, 11_000, False), (10, 11_001, True), (None, NOW, False)]
    )
    def test_over(self, expiry: int | None, now_ms: int, over: bool) -> None:
        """A window is over when its expiry, in seconds, and the skew have passed; without one, never."""
        assert is_over(CLAIM._replace(status=COMPLETED, expiry=expiry), LIMITS, now_ms) is over

    @pytest.mark.parametrize(("end_ms", "beyond"), [(97_000, False), (97_001, True)])
    def test_beyond(self, end_ms: int, beyond: bool) -> None:
        """What was sent a window ago, less both clocks' skew and a second, is too old for the whole of a run."""
        assert is_beyond_window(0, end_ms, LIMITS._replace(window_s=100)) is beyond


@pytest.mark.parametrize("stored", ["1:a", "2:b", None])
@pytest.mark.parametrize("ours", ["1:a", "1:b", None])
def test_payloads_differ_if_their_fingerprints_do(stored: str | None, ours: str | None) -> None:
    """Fingerprints of two versions cannot be compared, and one that is not there differs from none."""
    assert differ(stored, ours) is ((stored, ours) == ("1:a", "1:b"))
