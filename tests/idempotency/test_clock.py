import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from idempotency.clock import to_ms

NOON = datetime(2026, 11, 21, 12, microsecond=1999, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_time_is_the_same_in_every_process(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone is UTC, wherever the process runs, and milliseconds are rounded down."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    times = [to_ms(NOON), to_ms(NOON.replace(tzinfo=None)), to_ms(NOON.astimezone(timezone(timedelta(hours=-3))))]
    monkeypatch.undo()
    time.tzset()
    assert times == 3 * [1_795_262_400_001]
