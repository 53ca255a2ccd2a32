import time
from typing import Any

import pytest

from local.local_aws import LocalAws
from tests.engine.support import lines, needed

GROUP = "/test/pages"
COUNT = 10_500


@pytest.fixture
def logged() -> Any:
    """Fills a log group with more lines than a page has, many of them within one millisecond."""

    def fill(cloud: LocalAws) -> None:
        logs = cloud.client("logs")
        logs.create_log_group(logGroupName=GROUP)
        logs.create_log_stream(logGroupName=GROUP, logStreamName="stream")
        now = int(time.time() * 1000)
        events = [{"timestamp": now + number // 700, "message": str(number)} for number in range(COUNT)]
        for start in range(0, COUNT, 3500):
            logs.put_log_events(logGroupName=GROUP, logStreamName="stream", logEvents=events[start : start + 3500])

    return fill


@needed("log_paging")
def test_a_log_group_is_read_to_its_end(engine: LocalAws, logged: Any) -> None:
    """Pages of any size give every line once and in order."""
    logged(engine)
    expected = [str(number) for number in range(COUNT)]
    assert lines(engine, GROUP) == expected
    pages = engine.client("logs").get_paginator("filter_log_events").paginate(logGroupName=GROUP, limit=999)
    assert [event["message"] for page in pages for event in page["events"]] == expected
