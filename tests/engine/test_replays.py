from datetime import UTC, datetime, timedelta

from local.local_aws import Laptop, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import (
    attribute,
    bus,
    entry,
    from_rule,
    messages,
    needless,
    put,
    queue_policy,
    rule,
    until,
)

QUEUE = {"Type": "AWS::SQS::Queue"}
HOUR = timedelta(hours=1)


def archived(laptop: Laptop, deploy: Deploy) -> Stack:
    """A bus with two rules to two queues, and an archive made with the operation that stock MiniStack has too."""
    stack = deploy(
        laptop,
        Bus=bus(),
        First=QUEUE,
        Second=QUEUE,
        FirstRule=rule({"Arn": attribute("First")}),
        SecondRule=rule({"Arn": attribute("Second")}),
        FirstPolicy=queue_policy("First", from_rule("FirstRule")),
        SecondPolicy=queue_policy("Second", from_rule("SecondRule")),
    )
    events = laptop.client("events")
    arn = events.describe_event_bus(Name=stack.resources["Bus"])["Arn"]
    events.create_archive(ArchiveName=archive_of(stack), EventSourceArn=arn)
    return stack


def archive_of(stack: Stack) -> str:
    """Name of the stack's archive, which may have 48 characters."""
    return f"{stack.name[:40]}-archive"


def replay(laptop: Laptop, stack: Stack, name: str, *rules: str, until_time: datetime | None = None) -> None:
    """Replay the stack's archive to some of its rules and wait until that is done."""
    events = laptop.client("events")
    bus_name = stack.resources["Bus"]
    destination = {"Arn": events.describe_event_bus(Name=bus_name)["Arn"]}
    if rules:
        names = [stack.resources[each] for each in rules]
        destination["FilterArns"] = [events.describe_rule(Name=each, EventBusName=bus_name)["Arn"] for each in names]
    now = datetime.now(UTC)
    events.start_replay(
        ReplayName=f"{stack.name[:40]}-{name}",
        EventSourceArn=events.describe_archive(ArchiveName=archive_of(stack))["ArchiveArn"],
        EventStartTime=now - HOUR,
        EventEndTime=until_time or now + HOUR,
        Destination=destination,
    )
    assert until(lambda: events.describe_replay(ReplayName=f"{stack.name[:40]}-{name}")["State"] == "COMPLETED")


def test_a_replay_goes_to_the_rules_it_names(engine: Laptop, deploy: Deploy) -> None:
    """Only the named rules get the replayed events, which carry the replay's name."""
    stack = archived(engine, deploy)
    put(engine, stack, {"ride": 1})
    assert len(messages(engine, stack, "First")) == len(messages(engine, stack, "Second")) == 1
    replay(engine, stack, "one", "SecondRule")
    assert messages(engine, stack, "First") == []
    [message] = messages(engine, stack, "Second")
    assert message["body"]["replay-name"].endswith("-one")
    assert message["body"]["detail"] == {"ride": 1}


def test_a_replay_is_not_archived_and_can_be_repeated(engine: Laptop, deploy: Deploy) -> None:
    """The archive keeps original events only, so a second replay under another name brings each event once more."""
    stack = archived(engine, deploy)
    put(engine, stack, {"ride": 1}, {"ride": 2})
    for name in ("one", "two"):
        messages(engine, stack, "First")
        replay(engine, stack, name)
        assert sorted(message["body"]["detail"]["ride"] for message in messages(engine, stack, "First")) == [1, 2]


def test_a_replay_takes_events_by_their_own_time(engine: Laptop, deploy: Deploy) -> None:
    """The window of a replay is compared with the events' own times."""
    stack = archived(engine, deploy)
    now = datetime.now(UTC)
    times = {1: now - HOUR / 2, 2: now}
    entries = [entry(stack, {"ride": ride}, Time=time) for ride, time in times.items()]
    engine.client("events").put_events(Entries=entries)
    messages(engine, stack, "First")
    replay(engine, stack, "early", until_time=now - HOUR / 4)
    assert [message["body"]["detail"]["ride"] for message in messages(engine, stack, "First")] == [1]


def test_stock_replays_to_every_rule(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack's replays ignore the rules they name."""
    stack = archived(stock, deploy)
    put(stock, stack, {"ride": 1})
    messages(stock, stack, "First")
    replay(stock, stack, "one", "SecondRule")
    if not messages(stock, stack, "First"):
        needless("replays to named rules", "replays")
