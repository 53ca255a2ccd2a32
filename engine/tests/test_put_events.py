from datetime import UTC, datetime

import pytest

from engine.client import LocalCloud
from engine.tests.conftest import Deploy
from engine.tests.support import (
    QUEUE,
    attribute,
    bus,
    entry,
    from_rule,
    messages,
    needed,
    queue_policy,
    rule,
)

pytestmark = pytest.mark.integration

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOO_DEEP = '{"ride": ' * 40_000 + "1" + "}" * 40_000
MALFORMED = ("{", "[1]", '{"fare": NaN}', '{"fares": [1, -Infinity]}', TOO_DEEP)


@needed("put_events")
def test_a_bad_entry_fails_alone(engine: LocalCloud, deploy: Deploy) -> None:
    """A bad entry has the code AWS gives it, in its own place.

    The entries around it are accepted.
    """
    good = entry(deploy(Bus=bus()), {"ride": 1})
    malformed = [good | {"Detail": text} for text in MALFORMED]
    invalid = [good | {name: ""} for name in ("Detail", "Source", "DetailType")]
    answer = engine.client("events").put_events(Entries=[good, *malformed, *invalid, good])
    codes = [result.get("ErrorCode") for result in answer["Entries"]]
    assert codes == [None, *["MalformedDetail"] * 5, *["InvalidArgument"] * 3, None]
    assert answer["FailedEntryCount"] == 8


@needed("put_events")
def test_an_event_has_the_time_of_its_entry(engine: LocalCloud, deploy: Deploy) -> None:
    """A target gets the time that the producer gave the event, not the time of the call."""
    policy = queue_policy("Queue", from_rule())
    stack = deploy(Bus=bus(), Queue=QUEUE, Rule=rule({"Arn": attribute("Queue")}), Policy=policy)
    engine.client("events").put_events(Entries=[entry(stack, {"ride": 1}, Time=LONG_AGO)])
    [message] = messages(engine, stack)
    assert message["body"]["time"] == "2026-01-02T03:04:05Z"
