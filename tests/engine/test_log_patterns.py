import json
import time

import pytest
from botocore.exceptions import ClientError

from local.local_aws import LocalAws
from tests.engine.support import needed

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
    '{ $.outcome = "Lost*" }': {"lost"},
    "{ $.outcome = New }": {"new"},
    '{ $.outcome != "New" && $.status > 500 || $.status = 200 }': {"takeover", "new"},
    '{ $.status = "5*" }': {"takeover", "lost"},
    "{ $.status = 5* }": {"takeover", "lost"},
    "{ $.status < 500 }": {"new"},
    '{ $.ride.id = "a b" }': {"new"},
    '"Runtime exited"': {"exited"},
    '"runtime exited"': set(),
    "Runtime Error": {"exited"},
    '?ERROR ?"Task timed out" ?"Runtime exited"': {"exited", "timeout"},
    'outcome -"New"': {"takeover", "lost"},
}


@needed("log_patterns")
def test_lines_are_found_by_a_filter_pattern(engine: LocalAws) -> None:
    """A pattern in braces looks at the line's JSON, another one at its text."""
    logs, group = engine.client("logs"), "/test/patterns"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="stream")
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in LINES.values()]
    logs.put_log_events(logGroupName=group, logStreamName="stream", logEvents=events)
    for pattern, expected in PATTERNS.items():
        found = logs.filter_log_events(logGroupName=group, filterPattern=pattern)["events"]
        assert {event["message"] for event in found} == {LINES[name] for name in expected}, pattern
    for wrong in ('{ outcome = "New" }', '{ ($.outcome = "New" }', "{ $.outcome = }"):
        with pytest.raises(ClientError, match="InvalidParameterException"):
            logs.filter_log_events(logGroupName=group, filterPattern=wrong)
