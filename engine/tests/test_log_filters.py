import json
import time

import pytest
from botocore.exceptions import ClientError

from engine.client import LocalCloud
from engine.tests.support import lines, needed

pytestmark = pytest.mark.integration

LINES = {
    "new": json.dumps({"outcome": "New", "status": 200, "ride": {"id": "a b"}}),
    "takeover": json.dumps({"outcome": "Takeover", "status": 503}),
    "lost": json.dumps({"outcome": "LostLease", "status": 500}),
    "exited": "RequestId: 1 Error: Runtime exited with signal: killed",
    "timeout": "2026-11-21 Task timed out after 3.00 seconds",
}
PATTERNS = {
    "": set(LINES),
    '{ $.outcome = "Takeover" || $.outcome = "LostLease" }': {"takeover", "lost"},
    "{ $.outcome = New }": {"new"},
    '{ $.status = "5*" }': {"takeover", "lost"},
    '{ $.ride.id = "a b" }': {"new"},
    '{ $.status = 200 || $.outcome = "LostLease" }': {"new", "lost"},
    '"Runtime exited"': {"exited"},
    '"runtime exited"': set(),
    "Runtime Error": {"exited"},
    '?ERROR ?"Task timed out" ?"Runtime exited"': {"exited", "timeout"},
}


def logged(cloud: LocalCloud, group: str, events: list[tuple[int, str]]) -> None:
    logs = cloud.client("logs")
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="stream")
    batch = [{"timestamp": at, "message": line} for at, line in events]
    logs.put_log_events(logGroupName=group, logStreamName="stream", logEvents=batch)


@needed("log_filters")
def test_lines_are_found_by_a_filter_pattern(engine: LocalCloud) -> None:
    """A pattern in braces looks at the line's JSON, another one at its text."""
    logs = engine.client("logs")
    group = "/test/patterns"
    logged(engine, group, [(int(time.time() * 1000), line) for line in LINES.values()])
    for pattern, expected in PATTERNS.items():
        found = logs.filter_log_events(logGroupName=group, filterPattern=pattern)["events"]
        assert {event["message"] for event in found} == {LINES[name] for name in expected}, pattern
    for wrong in (
        '{ outcome = "New" }',
        '{ $.status = 200 && $.outcome = "New" }',
        "{ $.outcome = }",
        "{ $.status > 500 }",
        'outcome -"New"',
    ):
        with pytest.raises(ClientError, match="InvalidParameterException"):
            logs.filter_log_events(logGroupName=group, filterPattern=wrong)


@needed("log_filters")
def test_a_log_group_is_read_to_its_end(engine: LocalCloud) -> None:
    """Pages of any size give every line once and in order, though many are of one millisecond."""
    group = "/test/pages"
    now = int(time.time() * 1000)
    logged(engine, group, [(now + number // 700, str(number)) for number in range(10_000)])
    assert lines(engine, group, limit=999) == [str(number) for number in range(10_000)]
