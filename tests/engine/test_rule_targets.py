import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.local_aws import LocalAws, Stack
from tests.engine import support
from tests.engine.conftest import Deploy
from tests.engine.support import (
    PERMISSION,
    QUEUE,
    Resource,
    attribute,
    bus,
    from_rule,
    messages,
    needed,
    put,
    queue_policy,
    rule,
)

PRINTS = 'print(json.dumps(event["detail"]))'
GROUP_ARN = {"Fn::Sub": "arn:aws:logs:${AWS::Region}:${AWS::AccountId}:log-group:${Group}"}
LOG_GROUP: Resource = {
    "Type": "AWS::Logs::LogGroup",
    "Properties": {"LogGroupName": {"Fn::Sub": "/aws/events/${AWS::StackName}"}},
}
LOGS_POLICY: Resource = {
    "Type": "AWS::Logs::ResourcePolicy",
    "Properties": {
        "PolicyName": support.NAME_OF,
        "PolicyDocument": {
            "Fn::Sub": '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": "${Group.Arn}", '
            '"Principal": {"Service": "events.amazonaws.com"}, "Action": "logs:PutLogEvents"}]}'
        },
    },
}


def handed_to(target: Any, *, body: Any = PRINTS, **more: Any) -> Any:
    """A bus with a rule that has a target and a dead-letter queue, and a function and a queue to be the target."""
    arn = attribute(target) if isinstance(target, str) else target
    return {
        "Bus": bus(),
        "Dlq": QUEUE,
        "DlqPolicy": queue_policy("Dlq", from_rule()),
        "Function": support.function(body),
        "Queue": QUEUE,
        "Rule": rule({"Arn": arn, "DeadLetterConfig": {"Arn": attribute("Dlq")}}),
        **more,
    }


def test_a_missing_function_ends_in_the_rules_queue(engine: LocalAws, deploy: Deploy) -> None:
    """An event whose target function is gone is in the rule's dead-letter queue, with AWS's attributes.

    EventBridge needs that queue's permission, so a queue without a policy stays empty.
    """
    resources = handed_to("Function", Permission=PERMISSION)
    stack = deploy(**resources)
    engine.client("lambda").delete_function(FunctionName=stack.resources["Function"])
    put(engine, stack, {"ride": 1})
    engine.wait_until_quiet()
    [message] = messages(engine, stack, "Dlq")
    prefix = "arn:aws:events:us-east-1:000000000000:rule"
    assert message["body"]["detail"] == {"ride": 1}
    assert message["attributes"].pop("ERROR_MESSAGE")
    assert message["attributes"] == {
        "RULE_ARN": f"{prefix}/{stack.resources['Bus']}/{stack.resources['Rule']}",
        "TARGET_ARN": f"arn:aws:lambda:us-east-1:000000000000:function:{stack.resources['Function']}",
        "ERROR_CODE": "NO_RESOURCE",
        "RETRY_ATTEMPTS": "0",
    }
    del resources["DlqPolicy"], resources["Permission"]
    put(engine, deploy(**resources), {"ride": 2})
    engine.wait_until_quiet()
    assert messages(engine, stack, "Dlq") == []


def queued(cloud: LocalAws, stack: Stack) -> list[Any]:
    return [message["body"]["detail"] for message in messages(cloud, stack)]


def logged(cloud: LocalAws, stack: Stack) -> list[Any]:
    """Return the details of the log group's events, each of which is one line with all that other targets get."""
    events = [json.loads(line) for line in support.lines(cloud, stack.resources["Group"])]
    assert all({"id", "time", "source", "detail-type", "region", "account"} <= event.keys() for event in events)
    return [event["detail"] for event in events]


@needed("rule_targets")
@pytest.mark.parametrize(
    ("target", "allowed", "seen", "more"),
    [
        ("Function", {"Permission": PERMISSION}, support.records, {}),
        ("Queue", {"QueuePolicy": queue_policy("Queue", from_rule(), support.TLS_ONLY)}, queued, {}),
        (GROUP_ARN, {"LogsPolicy": LOGS_POLICY}, logged, {"Group": LOG_GROUP}),
    ],
    ids=["function", "queue", "log-group"],
)
def test_a_target_takes_only_what_its_policy_allows(
    engine: LocalAws,
    deploy: Deploy,
    target: Any,
    allowed: dict[str, Resource],
    seen: Callable[[LocalAws, Stack], list[Any]],
    more: dict[str, Resource],
) -> None:
    """Without the target's permission for the rule an event is dead-lettered; with it all events arrive."""
    put(engine, deploy(**handed_to(target, **more)), {"ride": 0})
    stack = deploy(**handed_to(target, **more, **allowed))
    put(engine, stack, *({"ride": ride} for ride in range(1, 20)))
    engine.wait_until_quiet()
    assert sorted(detail["ride"] for detail in seen(engine, stack)) == list(range(1, 20))
    [message] = messages(engine, stack, "Dlq")
    assert (message["body"]["detail"], message["attributes"]["ERROR_CODE"]) == ({"ride": 0}, "NO_PERMISSIONS")


def test_a_burst_loses_no_event(engine: LocalAws, deploy: Deploy) -> None:
    """Of 500 events put at once every one reaches the function, exactly once, by two processes at most."""
    body = 'print(json.dumps({**event["detail"], "process": os.getpid()}))'
    stack = deploy(**handed_to("Function", body=body, Permission=PERMISSION))
    put(engine, stack, *({"ride": ride} for ride in range(500)))
    engine.wait_until_quiet()
    printed = support.records(engine, stack)
    assert sorted(each["ride"] for each in printed) == list(range(500))
    assert len({each["process"] for each in printed}) <= 2


# ── Replays ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Archive:
    """An archive of the stack's bus, and its replays."""

    def __init__(self, cloud: LocalAws, stack: Stack) -> None:
        self._events, self._name = cloud.client("events"), stack.name[:40]
        self._bus = self._events.describe_event_bus(Name=stack.resources["Bus"])["Arn"]
        self._arn = self._events.create_archive(ArchiveName=self._name, EventSourceArn=self._bus)["ArchiveArn"]

    def replay(self, *rules: str) -> str:
        """Start a replay of all events, to these rules or to all, and return its name."""
        name = f"{self._name}-{len(self._events.list_replays(NamePrefix=self._name)['Replays'])}"
        now, hour = datetime.now(UTC), timedelta(hours=1)
        window = {"EventStartTime": now - hour, "EventEndTime": now + hour}
        to = {"Arn": self._bus, "FilterArns": list(rules)}
        self._events.start_replay(ReplayName=name, EventSourceArn=self._arn, Destination=to, **window)
        return name

    def state(self, replay: str) -> Any:
        return self._events.describe_replay(ReplayName=replay)


@needed("rule_targets")
def test_a_replay_goes_to_the_rules_it_names(engine: LocalAws, deploy: Deploy) -> None:
    """Only the named rules get the replayed events, which carry the replay's name and are not archived again."""
    resources: dict[str, Any] = {"Bus": bus()}
    for name in ("First", "Second"):
        resources[name] = QUEUE
        resources[f"{name}Rule"] = rule({"Arn": attribute(name)})
        resources[f"{name}Policy"] = queue_policy(name, from_rule(f"{name}Rule"))
    stack, events = deploy(**resources), engine.client("events")
    archive = Archive(engine, stack)
    put(engine, stack, {"ride": 1})
    for queue in ("First", "Second"):
        assert [message["body"]["detail"] for message in messages(engine, stack, queue)] == [{"ride": 1}]
    named = events.describe_rule(Name=stack.resources["SecondRule"], EventBusName=stack.resources["Bus"])["Arn"]
    for _ in range(2):
        replay = archive.replay(named)
        engine.wait_until_quiet()
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
    archive, began = Archive(engine, stack), datetime.now(UTC)
    for number in range(25):
        put(engine, stack, {"ride": number, "note": "x" * 200_000})
    one = archive.replay()
    engine.client("events").cancel_replay(ReplayName=one)
    two = archive.replay()  # does as much as the first one would, and begins later
    engine.wait_until_quiet(30)
    assert (archive.state(one)["State"], archive.state(two)["State"]) == ("CANCELLED", "COMPLETED")
    assert archive.state(two)["EventLastReplayedTime"] > began - timedelta(seconds=1)
