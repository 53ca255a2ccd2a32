from datetime import UTC, datetime, timedelta
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
