import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.client import LocalCloud, Stack
from engine.tests import support
from engine.tests.conftest import Deploy
from engine.tests.support import (
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

pytestmark = pytest.mark.integration

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
            "Fn::Sub": '{"Version": "2012-10-17", '
            '"Statement": [{"Effect": "Allow", "Resource": "${Group.Arn}", '
            '"Principal": {"Service": "events.amazonaws.com"}, "Action": "logs:PutLogEvents"}]}'
        },
    },
}
CARS = [{"seats": 4}, {"seats": 2, "drivers": ["ann"]}]
PATHS = {
    "first": "$.resources[0]",
    "kind": "$.detail-type",
    "driver": "$.detail.cars[1].drivers[0]",
    "seats": "$.detail.cars[*].seats",
    "none": "$.detail.cars[2].seats",
}
VARIABLES = "{" + ", ".join(f'"{name}": <{name}>' for name in PATHS) + "}"


def handed_to(target: Any, *, body: Any = PRINTS, **more: Any) -> Any:
    """A bus with a rule, whose target is a function or a queue, and a dead-letter queue."""
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


def test_a_missing_function_ends_in_the_rules_queue(engine: LocalCloud, deploy: Deploy) -> None:
    """An event whose target is gone is in the rule's dead-letter queue, with AWS's attributes.

    EventBridge needs that queue's permission, so a queue without a policy stays empty.
    """
    resources = handed_to("Function", Permission=support.PERMISSION)
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
        "TARGET_ARN": "arn:aws:lambda:us-east-1:000000000000:function:"
        + stack.resources["Function"],
        "ERROR_CODE": "NO_RESOURCE",
        "RETRY_ATTEMPTS": "0",
    }
    del resources["DlqPolicy"], resources["Permission"]
    put(engine, deploy(**resources), {"ride": 2})
    engine.wait_until_quiet()
    assert messages(engine, stack, "Dlq") == []


@needed("rule_targets")
@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (
            {"InputTransformer": {"InputPathsMap": PATHS, "InputTemplate": VARIABLES}},
            {"first": "ride-1", "kind": "Test", "driver": "ann", "seats": [4, 2], "none": ""},
        ),
        ({"InputPath": "$.detail.cars[1].drivers"}, ["ann"]),
    ],
    ids=["transformer", "path"],
)
def test_a_target_gets_what_its_paths_name(
    engine: LocalCloud, deploy: Deploy, asked: Resource, seen: Any
) -> None:
    """A path has names, indices and wildcards, as EventBridge's guide lists them."""
    target = {"Arn": attribute("Queue"), **asked}
    policy = queue_policy("Queue", from_rule())
    stack = deploy(Bus=bus(), Queue=QUEUE, Rule=rule(target), Policy=policy)
    sent = support.entry(stack, {"cars": CARS}, Resources=["ride-1", "ride-2"])
    assert engine.client("events").put_events(Entries=[sent])["FailedEntryCount"] == 0
    assert [message["body"] for message in messages(engine, stack)] == [seen]


def queued(cloud: LocalCloud, stack: Stack) -> list[Any]:
    return [message["body"]["detail"] for message in messages(cloud, stack)]


def logged(cloud: LocalCloud, stack: Stack) -> list[Any]:
    """Return the log group's events: one line each, with all that other targets get."""
    events = [json.loads(line) for line in support.lines(cloud, stack.resources["Group"])]
    assert all(
        {"id", "time", "source", "detail-type", "region", "account"} <= event.keys()
        for event in events
    )
    return [event["detail"] for event in events]


@needed("rule_targets")
@pytest.mark.parametrize(
    ("target", "allowed", "seen", "more"),
    [
        ("Function", {"Permission": support.PERMISSION}, support.records, {}),
        (
            "Queue",
            {"QueuePolicy": queue_policy("Queue", from_rule(), support.TLS_ONLY)},
            queued,
            {},
        ),
        (GROUP_ARN, {"LogsPolicy": LOGS_POLICY}, logged, {"Group": LOG_GROUP}),
    ],
    ids=["function", "queue", "log-group"],
)
def test_a_target_takes_only_what_its_policy_allows(
    engine: LocalCloud,
    deploy: Deploy,
    target: Any,
    allowed: dict[str, Resource],
    seen: Callable[[LocalCloud, Stack], list[Any]],
    more: dict[str, Resource],
) -> None:
    """Without the target's permission for the rule an event is dead-lettered.

    With it all events arrive.
    """
    put(engine, deploy(**handed_to(target, **more)), {"ride": 0})
    stack = deploy(**handed_to(target, **more, **allowed))
    put(engine, stack, *({"ride": ride} for ride in range(1, 20)))
    engine.wait_until_quiet()
    assert sorted(detail["ride"] for detail in seen(engine, stack)) == list(range(1, 20))
    [message] = messages(engine, stack, "Dlq")
    assert (message["body"]["detail"], message["attributes"]["ERROR_CODE"]) == (
        {"ride": 0},
        "NO_PERMISSIONS",
    )
