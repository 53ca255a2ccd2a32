import json
from collections.abc import Callable
from typing import Any

import pytest

from local.local_aws import Laptop, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import (
    NAME_OF,
    QUEUE,
    TLS_ONLY,
    Resource,
    attribute,
    bus,
    from_rule,
    function,
    lines,
    messages,
    needless,
    permission,
    put,
    queue_policy,
    records,
    rule,
    template,
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
        "PolicyName": NAME_OF,
        "PolicyDocument": {
            "Fn::Sub": '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": "${Group.Arn}", '
            '"Principal": {"Service": "events.amazonaws.com"}, "Action": "logs:PutLogEvents"}]}'
        },
    },
}


def handed_to(target: Any, *, body: Any = PRINTS, retries: Any = None, **more: Any) -> Any:
    """A bus whose rule hands events to a target with a dead-letter queue, a function and a queue to hand them to."""
    arn = attribute(target) if isinstance(target, str) else target
    policy = {"RetryPolicy": retries} if retries else {}
    return {
        "Bus": bus(),
        "Dlq": QUEUE,
        "DlqPolicy": queue_policy("Dlq", from_rule()),
        "Function": function(body),
        "Queue": QUEUE,
        "Rule": rule({"Arn": arn, "DeadLetterConfig": {"Arn": attribute("Dlq")}, **policy}),
        **more,
    }


def test_a_missing_function_ends_in_the_rules_queue(engine: Laptop, deploy: Deploy) -> None:
    """An event whose target function is gone is in the rule's dead-letter queue, with AWS's attributes."""
    stack = deploy(engine, **handed_to("Function", Permission=permission("Function")))
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


def printed(laptop: Laptop, stack: Stack) -> list[Any]:
    """What the function was handed."""
    return records(laptop, stack)


def queued(laptop: Laptop, stack: Stack) -> list[Any]:
    """What the queue was handed."""
    return [message["body"]["detail"] for message in messages(laptop, stack)]


def logged(laptop: Laptop, stack: Stack) -> list[Any]:
    """What the log group was handed: one line for each event, with all that other targets get."""
    events = [json.loads(line) for line in lines(laptop, stack.resources["Group"])]
    assert all({"id", "time", "source", "detail-type", "region", "account"} <= event.keys() for event in events)
    return [event["detail"] for event in events]


@pytest.mark.parametrize(
    ("target", "allowed", "seen", "more"),
    [
        ("Function", {"Permission": permission("Function")}, printed, {}),
        ("Queue", {"QueuePolicy": queue_policy("Queue", from_rule(), TLS_ONLY)}, queued, {}),
        (GROUP_ARN, {"LogsPolicy": LOGS_POLICY}, logged, {"Group": LOG_GROUP}),
    ],
    ids=["function", "queue", "log-group"],
)
def test_a_target_takes_only_what_its_policy_allows(
    engine: Laptop,
    deploy: Deploy,
    target: Any,
    allowed: dict[str, Resource],
    seen: Callable[[Laptop, Stack], list[Any]],
    more: dict[str, Resource],
) -> None:
    """Without the target's permission for the rule an event is dead-lettered, with it all events arrive in order."""
    put(engine, deploy(engine, **handed_to(target, **more)), {"ride": 0})
    stack = deploy(engine, **handed_to(target, **more, **allowed))
    put(engine, stack, *({"ride": ride} for ride in range(1, 20)))
    engine.wait_until_quiet()
    assert sorted(detail["ride"] for detail in seen(engine, stack)) == list(range(1, 20))
    [message] = messages(engine, stack, "Dlq")
    assert (message["body"]["detail"], message["attributes"]["ERROR_CODE"]) == ({"ride": 0}, "NO_PERMISSIONS")


def test_a_dead_letter_queue_without_a_policy_takes_nothing(engine: Laptop, deploy: Deploy) -> None:
    """EventBridge needs the queue's permission to dead-letter, so a queue without a policy stays empty."""
    resources = handed_to("Function")
    del resources["DlqPolicy"]
    stack = deploy(engine, **resources)
    put(engine, stack, {"ride": 1})
    engine.wait_until_quiet()
    assert messages(engine, stack, "Dlq") == []


def throttled(laptop: Laptop, name: str, **retries: int) -> Stack:
    """A rule whose function has room for one event, and three events put."""
    slow = f"time.sleep(0.3)\n{PRINTS}"
    resources = handed_to("Function", body=slow, retries=retries, Permission=permission("Function"))
    stack = laptop.deploy_fast(name, template(resources))
    put(laptop, stack, *({"ride": ride} for ride in range(3)))
    laptop.wait_until_quiet()
    return stack


def test_a_throttled_target_is_retried_as_the_policy_says() -> None:
    """A throttled event is retried until it is taken; one whose retries are used up is dead-lettered, and says so."""
    with Laptop(queue_limit=1, workers=1) as laptop:
        patient = throttled(laptop, "patient", MaximumRetryAttempts=185, MaximumEventAgeInSeconds=86400)
        assert sorted(each["ride"] for each in records(laptop, patient)) == [0, 1, 2]
        assert messages(laptop, patient, "Dlq") == []
        hasty = throttled(laptop, "hasty", MaximumRetryAttempts=1, MaximumEventAgeInSeconds=60)
        assert [each["ride"] for each in records(laptop, hasty)] == [0]
        [first, second] = [message["attributes"] for message in messages(laptop, hasty, "Dlq")]
        assert first["EXHAUSTED_RETRY_CONDITION"] == second["EXHAUSTED_RETRY_CONDITION"] == "MaximumRetryAttempts"
        assert (first["ERROR_CODE"], first["RETRY_ATTEMPTS"]) == ("THROTTLING", "1")


def test_stock_ignores_a_targets_dead_letter_queue(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack neither dead-letters an event nor writes one to a log group."""
    logs = {"Group": LOG_GROUP, "Policy": LOGS_POLICY, "LogRule": rule({"Arn": GROUP_ARN})}
    stack = deploy(stock, **handed_to("Function", **logs))
    stock.client("lambda").delete_function(FunctionName=stack.resources["Function"])
    put(stock, stack, {"ride": 1})
    if messages(stock, stack, "Dlq") and lines(stock, stack.resources["Group"]):
        needless("dead letters of rules and log groups as targets", "rule_targets")
