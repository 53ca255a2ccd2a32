from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from local.local_aws import LocalAws
from tests.engine.conftest import Deploy
from tests.engine.support import QUEUE, attribute, bus, from_rule, messages, needed, put, queue_policy, rule, until


@needed("rule_targets")
def test_a_replay_goes_to_the_rules_it_names(engine: LocalAws, deploy: Deploy) -> None:
    """Only the named rules get the replayed events, which carry the replay's name and are not archived again."""
    resources: dict[str, Any] = {"Bus": bus()}
    for name in ("First", "Second"):
        resources[name] = QUEUE
        resources[f"{name}Rule"] = rule({"Arn": attribute(name)})
        resources[f"{name}Policy"] = queue_policy(name, from_rule(f"{name}Rule"))
    stack, events, now = deploy(**resources), engine.client("events"), datetime.now(UTC)
    bus_name, archive = stack.resources["Bus"], stack.name[:40]
    arn = events.describe_event_bus(Name=bus_name)["Arn"]
    source = events.create_archive(ArchiveName=archive, EventSourceArn=arn)["ArchiveArn"]
    put(engine, stack, {"ride": 1})
    for queue in ("First", "Second"):
        assert [message["body"]["detail"] for message in messages(engine, stack, queue)] == [{"ride": 1}]
    named = events.describe_rule(Name=stack.resources["SecondRule"], EventBusName=bus_name)["Arn"]
    for replay in (f"{archive}-one", f"{archive}-two"):
        events.start_replay(
            ReplayName=replay,
            EventSourceArn=source,
            EventStartTime=now - timedelta(hours=1),
            EventEndTime=now + timedelta(hours=1),
            Destination={"Arn": arn, "FilterArns": [named]},
        )
        assert until(lambda: all(each["State"] == "COMPLETED" for each in events.list_replays()["Replays"]))
        assert messages(engine, stack, "First") == []
        [message] = messages(engine, stack, "Second")
        assert (message["body"]["replay-name"], message["body"]["detail"]) == (replay, {"ride": 1})


@needed("replays")
def test_a_cancelled_replay_does_not_go_on(engine: LocalAws, deploy: Deploy) -> None:
    """It stays CANCELLED, and tells the time of the last event that was replayed."""
    several = rule({"Arn": attribute("Queue")})
    target = several["Properties"]["Targets"][0]
    several["Properties"]["Targets"] = [{**target, "Id": str(number)} for number in range(5)]
    stack = deploy(Bus=bus(), Queue=QUEUE, Rule=several, Policy=queue_policy("Queue", from_rule()))
    events, now = engine.client("events"), datetime.now(UTC)
    arn = events.describe_event_bus(Name=stack.resources["Bus"])["Arn"]
    source = events.create_archive(ArchiveName=stack.name[:40], EventSourceArn=arn)["ArchiveArn"]
    for number in range(25):
        put(engine, stack, {"ride": number, "note": "x" * 200_000})
    window = {"EventStartTime": now - timedelta(hours=1), "EventEndTime": now + timedelta(hours=1)}
    replay = {"EventSourceArn": source, "Destination": {"Arn": arn}, **window}
    events.start_replay(ReplayName=f"{stack.name[:40]}-one", **replay)
    events.cancel_replay(ReplayName=f"{stack.name[:40]}-one")
    # A second replay does as much as the first one would, and begins later.
    events.start_replay(ReplayName=f"{stack.name[:40]}-two", **replay)
    one, two = (partial(events.describe_replay, ReplayName=f"{stack.name[:40]}-{each}") for each in ("one", "two"))
    assert until(lambda: two()["State"] == "COMPLETED", 30)
    assert two()["EventLastReplayedTime"] > now - timedelta(seconds=1)
    assert one()["State"] == "CANCELLED"
