from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from local.local_aws import LocalAws
from tests.engine.conftest import Deploy
from tests.engine.support import (
    QUEUE,
    attribute,
    bus,
    entry,
    from_rule,
    messages,
    needed,
    put_through_endpoint,
    queue_policy,
    rule,
)

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RESOURCE = "arn:aws:test:::é"
OTHER_BYTES = 14 + len("test") + len("Test") + len(RESOURCE.encode()) + len('{"x":""}')
FITS = "x" * (1024 * 1024 - 1 - OTHER_BYTES)


def test_a_bad_entry_fails_alone(engine: LocalAws, deploy: Deploy) -> None:
    """A bad entry has the code AWS gives it, in its own place; the entries around it are accepted."""
    good = entry(deploy(Bus=bus()), {"ride": 1})
    malformed = [good | {"Detail": text} for text in ("{", "[1]", '"text"')]
    invalid = [good | {name: ""} for name in ("Detail", "Source", "DetailType")] + [good | {"DetailType": "x" * 129}]
    answer = engine.client("events").put_events(Entries=[good, *malformed, *invalid, good])
    codes = [result.get("ErrorCode") for result in answer["Entries"]]
    assert codes == [None, *["MalformedDetail"] * 3, *["InvalidArgument"] * 4, None]
    assert answer["FailedEntryCount"] == 7


@pytest.mark.parametrize(
    ("padding", "entries", "refused"),
    [(FITS, 1, None), (FITS + "x", 1, "over the limit"), ("", 10, None), ("", 11, "at most 10")],
    ids=["a-byte-less", "1-MB", "ten", "eleven"],
)
def test_a_call_has_ten_entries_below_one_megabyte(
    engine: LocalAws, deploy: Deploy, padding: str, entries: int, refused: str | None
) -> None:
    """A larger call is refused as a whole; time, source, type, detail and resources count in UTF-8 bytes."""
    one = entry(deploy(Bus=bus()), f'{{"x":"{padding}"}}', Time=LONG_AGO, Resources=[RESOURCE])
    if refused:
        with pytest.raises(ClientError, match=refused):
            engine.client("events").put_events(Entries=[one] * entries)
    else:
        assert engine.client("events").put_events(Entries=[one] * entries)["FailedEntryCount"] == 0


def test_an_endpoint_that_is_not_there_is_refused(engine: LocalAws) -> None:
    """A wrong id is an error, and no event is put anywhere."""
    with pytest.raises(AssertionError, match="ResourceNotFoundException"):
        put_through_endpoint(engine, "nowhere.local", {"Source": "a", "DetailType": "t", "Detail": "{}"})


@needed("put_events")
def test_an_event_has_the_time_of_its_entry(engine: LocalAws, deploy: Deploy) -> None:
    """A target gets the time that the producer gave the event, not the time of the call."""
    policy = queue_policy("Queue", from_rule())
    stack = deploy(Bus=bus(), Queue=QUEUE, Rule=rule({"Arn": attribute("Queue")}), Policy=policy)
    engine.client("events").put_events(Entries=[entry(stack, {"ride": 1}, Time=LONG_AGO)])
    [message] = messages(engine, stack)
    assert message["body"]["time"] == "2026-01-02T03:04:05Z"
