import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from idempotency.clock import to_ms

NOON = datetime(2026, 11, 21, 12, 0, 0, 1999, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("moment", [NOON, NOON.replace(tzinfo=None), NOON.astimezone(timezone(timedelta(hours=-3)))])
def test_time_is_the_same_in_every_process(zone: str, moment: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone is UTC, wherever the process runs, and milliseconds are rounded down."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert to_ms(moment) == 1_795_262_400_001
    finally:
        monkeypatch.undo()
        time.tzset()
