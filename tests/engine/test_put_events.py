from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.local_aws import Laptop
from tests.engine.conftest import Deploy
from tests.engine.support import attribute, bus, entry, from_rule, messages, needless, queue_policy, rule

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Detail": "{"}, "MalformedDetail"),
        ({"Detail": "[1]"}, "MalformedDetail"),
        ({"Detail": '"text"'}, "MalformedDetail"),
        ({"Detail": ""}, "InvalidArgument"),
        ({"Source": ""}, "InvalidArgument"),
        ({"DetailType": ""}, "InvalidArgument"),
        ({"DetailType": "x" * 129}, "InvalidArgument"),
    ],
    ids=["broken", "list", "string", "no-detail", "no-source", "no-type", "long-type"],
)
def test_a_bad_entry_fails_alone(engine: Laptop, deploy: Deploy, change: dict[str, str], code: str) -> None:
    """A bad entry has the code AWS gives it, in its own place; the entries around it are accepted."""
    stack = deploy(engine, Bus=bus())
    good = entry(stack, {"ride": 1})
    answer = engine.client("events").put_events(Entries=[good, good | change, good])
    assert answer["FailedEntryCount"] == 1
    assert [result.get("ErrorCode") for result in answer["Entries"]] == [None, code, None]
    assert answer["Entries"][0]["EventId"] != answer["Entries"][2]["EventId"]


def test_a_call_has_at_most_ten_entries(engine: Laptop, deploy: Deploy) -> None:
    """A call with more than ten entries is refused as a whole."""
    stack = deploy(engine, Bus=bus())
    with pytest.raises(ClientError, match="ValidationException"):
        engine.client("events").put_events(Entries=[entry(stack, {})] * 11)


@pytest.mark.parametrize(("more", "accepted"), [(0, False), (-1, True)], ids=["1-MB", "a-byte-less"])
def test_a_call_stays_below_one_megabyte(engine: Laptop, deploy: Deploy, more: int, accepted: bool) -> None:
    """Entries count with time, source, type, detail and resources in UTF-8 bytes; from 1 MB on they are refused."""
    stack = deploy(engine, Bus=bus())
    resource = "arn:aws:test:::é"
    rest = 14 + len("test") + len("Test") + len(resource.encode()) + len('{"x":""}')
    padding = "x" * (MEGABYTE - rest + more)
    entries = [entry(stack, f'{{"x":"{padding}"}}', Time=LONG_AGO, Resources=[resource])]
    if accepted:
        assert engine.client("events").put_events(Entries=entries)["FailedEntryCount"] == 0
    else:
        with pytest.raises(ClientError, match="over the limit"):
            engine.client("events").put_events(Entries=entries)


def timed(laptop: Laptop, deploy: Deploy) -> Any:
    """An event that was put with a time of its own, as a target got it."""
    stack = deploy(
        laptop,
        Bus=bus(),
        Queue={"Type": "AWS::SQS::Queue"},
        Rule=rule({"Arn": attribute("Queue")}),
        Policy=queue_policy("Queue", from_rule()),
    )
    laptop.client("events").put_events(Entries=[entry(stack, {"ride": 1}, Time=LONG_AGO)])
    [message] = messages(laptop, stack)
    return message["body"]


def test_an_event_has_the_time_of_its_entry(engine: Laptop, deploy: Deploy) -> None:
    """A target gets the time that the producer gave the event, not the time of the call."""
    assert timed(engine, deploy)["time"] == "2026-01-02T03:04:05Z"


def test_stock_takes_every_entry(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack accepts malformed detail or ignores the entry's time."""
    time_kept = timed(stock, deploy)["time"] == "2026-01-02T03:04:05Z"
    bad = stock.client("events").put_events(Entries=[{"Source": "test", "DetailType": "Test", "Detail": "{"}])
    if time_kept and bad["FailedEntryCount"]:
        needless("the checks of PutEvents and an event's own time", "put_events")
