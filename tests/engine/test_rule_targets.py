import json

from local.local_aws import Laptop, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import (
    NAME_OF,
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
)

PRINTS = function('print(json.dumps(event["detail"]))')
QUEUE: Resource = {"Type": "AWS::SQS::Queue"}
LOG_GROUP: Resource = {
    "Type": "AWS::Logs::LogGroup",
    "Properties": {"LogGroupName": {"Fn::Sub": "/aws/events/${AWS::StackName}"}},
}
GROUP_ARN = {"Fn::Sub": "arn:aws:logs:${AWS::Region}:${AWS::AccountId}:log-group:${Group}"}


def with_dead_letters(target: Resource, **retries: int) -> Resource:
    """A rule whose target has the dead-letter queue ``Dlq``."""
    policy = {"RetryPolicy": retries} if retries else {}
    return rule({**target, "DeadLetterConfig": {"Arn": attribute("Dlq")}, **policy})


def test_a_missing_function_ends_in_the_rules_queue(engine: Laptop, deploy: Deploy) -> None:
    """An event whose target function is gone is in the rule's dead-letter queue, with AWS's attributes."""
    stack = deploy(
        engine,
        Bus=bus(),
        Dlq=QUEUE,
        DlqPolicy=queue_policy("Dlq", from_rule(), TLS_ONLY),
        Function=PRINTS,
        Rule=with_dead_letters({"Arn": attribute("Function")}),
        Permission=permission("Function"),
    )
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


def test_a_function_that_does_not_allow_the_rule_is_not_called(engine: Laptop, deploy: Deploy) -> None:
    """Without the function's permission for the rule, the event goes straight to the rule's dead-letter queue."""
    stack = deploy(
        engine,
        Bus=bus(),
        Dlq=QUEUE,
        DlqPolicy=queue_policy("Dlq", from_rule()),
        Function=PRINTS,
        Rule=with_dead_letters({"Arn": attribute("Function")}),
    )
    put(engine, stack, {"ride": 1})
    engine.wait_until_quiet()
    [message] = messages(engine, stack, "Dlq")
    assert message["attributes"]["ERROR_CODE"] == "NO_PERMISSIONS"
    assert records(engine, stack) == []


def test_a_dead_letter_queue_without_a_policy_takes_nothing(engine: Laptop, deploy: Deploy) -> None:
    """EventBridge needs the queue's permission to dead-letter, so a queue without a policy stays empty."""
    stack = deploy(
        engine, Bus=bus(), Dlq=QUEUE, Function=PRINTS, Rule=with_dead_letters({"Arn": attribute("Function")})
    )
    put(engine, stack, {"ride": 1})
    engine.wait_until_quiet()
    assert messages(engine, stack, "Dlq") == []


def test_a_queue_takes_only_what_its_policy_allows(engine: Laptop, deploy: Deploy) -> None:
    """A queue is a target when its policy names the rule, and else the event is dead-lettered."""
    resources: dict[str, Resource] = {
        "Bus": bus(),
        "Dlq": QUEUE,
        "DlqPolicy": queue_policy("Dlq", from_rule()),
        "Queue": QUEUE,
        "Rule": with_dead_letters({"Arn": attribute("Queue")}),
    }
    stack = deploy(engine, **resources)
    put(engine, stack, {"ride": 1})
    deploy(engine, **resources, QueuePolicy=queue_policy("Queue", from_rule(), TLS_ONLY))
    put(engine, stack, {"ride": 2})
    assert [message["body"]["detail"] for message in messages(engine, stack, "Dlq")] == [{"ride": 1}]
    assert [message["body"]["detail"] for message in messages(engine, stack, "Queue")] == [{"ride": 2}]


def logs_policy() -> Resource:
    """Lets EventBridge write the log group ``Group``."""
    document = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "events.amazonaws.com"},
                "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
                "Resource": {"Fn::Sub": "${Group.Arn}"},
            }
        ],
    }
    return {
        "Type": "AWS::Logs::ResourcePolicy",
        "Properties": {
            "PolicyName": NAME_OF,
            "PolicyDocument": {
                "Fn::Sub": json.dumps(document).replace('{"Fn::Sub": "${Group.Arn}"}', '"${Group.Arn}"')
            },
        },
    }


def test_a_log_group_keeps_every_event(engine: Laptop, deploy: Deploy) -> None:
    """A log group as a target holds one line for each event: the event as JSON, as other targets get it."""
    stack = deploy(engine, Bus=bus(), Group=LOG_GROUP, Policy=logs_policy(), Rule=rule({"Arn": GROUP_ARN}))
    put(engine, stack, *({"ride": ride} for ride in range(100)))
    events = [json.loads(line) for line in lines(engine, stack.resources["Group"])]
    assert [event["detail"]["ride"] for event in events] == list(range(100))
    assert {"id", "time", "source", "detail-type", "region", "account"} <= events[0].keys()


def test_a_log_group_needs_a_resource_policy(engine: Laptop, deploy: Deploy) -> None:
    """Without a policy that lets EventBridge write to it, the log group gets nothing and the event is dead-lettered."""
    stack = deploy(
        engine,
        Bus=bus(),
        Dlq=QUEUE,
        DlqPolicy=queue_policy("Dlq", from_rule()),
        Group=LOG_GROUP,
        Rule=with_dead_letters({"Arn": GROUP_ARN}),
    )
    put(engine, stack, {"ride": 1})
    assert lines(engine, stack.resources["Group"]) == []
    assert messages(engine, stack, "Dlq")[0]["attributes"]["ERROR_CODE"] == "NO_PERMISSIONS"


def throttled(laptop: Laptop, name: str, **retries: int) -> Stack:
    """A rule whose function has room for one event, and three events put."""
    resources: dict[str, Resource] = {
        "Bus": bus(),
        "Dlq": QUEUE,
        "DlqPolicy": queue_policy("Dlq", from_rule()),
        "Function": function('time.sleep(0.3)\nprint(json.dumps(event["detail"]))'),
        "Rule": with_dead_letters({"Arn": attribute("Function")}, **retries),
        "Permission": permission("Function"),
    }
    stack = laptop.deploy_fast(name, {"Transform": "AWS::Serverless-2016-10-31", "Resources": resources})
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
        assert first["ERROR_CODE"] == "THROTTLING"
        assert first["RETRY_ATTEMPTS"] == "1"


def test_stock_ignores_a_targets_dead_letter_queue(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack neither dead-letters an event nor writes one to a log group."""
    stack = deploy(
        stock,
        Bus=bus(),
        Dlq=QUEUE,
        DlqPolicy=queue_policy("Dlq", from_rule()),
        Group=LOG_GROUP,
        Policy=logs_policy(),
        Function=PRINTS,
        Rule=with_dead_letters({"Arn": attribute("Function")}),
        LogRule=rule({"Arn": GROUP_ARN}),
    )
    stock.client("lambda").delete_function(FunctionName=stack.resources["Function"])
    put(stock, stack, {"ride": 1})
    if messages(stock, stack, "Dlq") and lines(stock, stack.resources["Group"]):
        needless("dead letters of rules and log groups as targets", "rule_targets")
