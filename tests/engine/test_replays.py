from datetime import UTC, datetime, timedelta
from typing import Any

from local.local_aws import LocalAws, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import (
    QUEUE,
    attribute,
    bus,
    entry,
    from_rule,
    messages,
    needed,
    put,
    queue_policy,
    rule,
    until,
)

HOUR = timedelta(hours=1)


def archived(cloud: LocalAws, deploy: Deploy) -> Stack:
    """A bus with two rules to two queues, and an archive made with the operation that stock MiniStack has too."""
    resources: dict[str, Any] = {"Bus": bus()}
    for name in ("First", "Second"):
        resources[name] = QUEUE
        resources[f"{name}Rule"] = rule({"Arn": attribute(name)})
        resources[f"{name}Policy"] = queue_policy(name, from_rule(f"{name}Rule"))
    stack = deploy(**resources)
    events = cloud.client("events")
    arn = events.describe_event_bus(Name=stack.resources["Bus"])["Arn"]
    events.create_archive(ArchiveName=stack.name[:48], EventSourceArn=arn)
    return stack


def rides(cloud: LocalAws, stack: Stack, queue: str = "First") -> list[Any]:
    """Take what a queue was handed."""
    return sorted(message["body"]["detail"]["ride"] for message in messages(cloud, stack, queue))


def replay(cloud: LocalAws, stack: Stack, name: str, *rules: str, until_time: datetime | None = None) -> None:
    """Replay the stack's archive to some of its rules and wait until that is done."""
    events = cloud.client("events")
    bus_name, replay_name = stack.resources["Bus"], f"{stack.name[:40]}-{name}"
    destination = {"Arn": events.describe_event_bus(Name=bus_name)["Arn"]}
    if rules:
        names = [stack.resources[each] for each in rules]
        destination["FilterArns"] = [events.describe_rule(Name=each, EventBusName=bus_name)["Arn"] for each in names]
    now = datetime.now(UTC)
    events.start_replay(
        ReplayName=replay_name,
        EventSourceArn=events.describe_archive(ArchiveName=stack.name[:48])["ArchiveArn"],
        EventStartTime=now - HOUR,
        EventEndTime=until_time or now + HOUR,
        Destination=destination,
    )
    assert until(lambda: events.describe_replay(ReplayName=replay_name)["State"] == "COMPLETED")


@needed("rule_targets")
def test_a_replay_goes_to_the_rules_it_names(engine: LocalAws, deploy: Deploy) -> None:
    """Only the named rules get the replayed events, which carry the replay's name."""
    stack = archived(engine, deploy)
    put(engine, stack, {"ride": 1})
    assert rides(engine, stack, "First") == rides(engine, stack, "Second") == [1]
    replay(engine, stack, "one", "SecondRule")
    assert rides(engine, stack, "First") == []
    [message] = messages(engine, stack, "Second")
    assert (message["body"]["replay-name"][-4:], message["body"]["detail"]) == ("-one", {"ride": 1})


def test_a_replay_is_not_archived_and_takes_events_by_their_own_time(engine: LocalAws, deploy: Deploy) -> None:
    """Each replay brings each event of its window once more, by the times that their producers gave them."""
    stack = archived(engine, deploy)
    now = datetime.now(UTC)
    entries = [entry(stack, {"ride": ride}, Time=time) for ride, time in {1: now - HOUR / 2, 2: now}.items()]
    engine.client("events").put_events(Entries=entries)
    assert rides(engine, stack) == [1, 2]
    for name, end, expected in (("one", None, [1, 2]), ("two", None, [1, 2]), ("early", now - HOUR / 4, [1])):
        replay(engine, stack, name, until_time=end)
        assert rides(engine, stack) == expected
