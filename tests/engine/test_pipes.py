import json
from typing import Any, Final

from local.local_aws import Laptop, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import (
    Resource,
    attribute,
    bus,
    from_rule,
    messages,
    needless,
    queue_policy,
    rule,
    until,
)

QUEUE: Final[Resource] = {"Type": "AWS::SQS::Queue"}


def role(*actions: tuple[str, str]) -> Resource:
    """The pipe's role, which may do each action on the resource of that logical id."""
    allowed = [{"Effect": "Allow", "Action": action, "Resource": attribute(to)} for action, to in actions]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {"Effect": "Allow", "Principal": {"Service": "pipes.amazonaws.com"}, "Action": "sts:AssumeRole"}
                ],
            },
            "Policies": [{"PolicyName": "pipe", "PolicyDocument": {"Version": "2012-10-17", "Statement": allowed}}],
        },
    }


def piped(*actions: tuple[str, str]) -> dict[str, Resource]:
    """A table, a pipe from its stream to a bus, and queues for what arrives and for what does not."""
    insertions = {
        "Pattern": json.dumps({"eventName": ["INSERT"], "dynamodb": {"NewImage": {"region": {"S": ["here"]}}}})
    }
    stream = {"StartingPosition": "LATEST", "MaximumRetryAttempts": 1, "DeadLetterConfig": {"Arn": attribute("Dlq")}}
    return {
        "Bus": bus(),
        "Queue": QUEUE,
        "Dlq": QUEUE,
        "Rule": rule({"Arn": attribute("Queue")}),
        "QueuePolicy": queue_policy("Queue", from_rule()),
        "Table": {
            "Type": "AWS::DynamoDB::GlobalTable",
            "Properties": {
                "BillingMode": "PAY_PER_REQUEST",
                "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
                "StreamSpecification": {"StreamViewType": "NEW_IMAGE"},
                "Replicas": [{"Region": {"Ref": "AWS::Region"}}],
            },
        },
        "Role": role(*actions),
        "Pipe": {
            "Type": "AWS::Pipes::Pipe",
            "Properties": {
                "RoleArn": attribute("Role"),
                "Source": attribute("Table", "StreamArn"),
                "SourceParameters": {
                    "DynamoDBStreamParameters": stream,
                    "FilterCriteria": {"Filters": [insertions]},
                },
                "Target": attribute("Bus"),
                "TargetParameters": {
                    "EventBridgeEventBusParameters": {
                        "Source": "outbox",
                        "DetailType": "$.dynamodb.NewImage.type.S",
                        "Time": "$.dynamodb.NewImage.time.S",
                    },
                    "InputTemplate": "<$.dynamodb.NewImage.event.S>",
                },
            },
        },
    }


def write(laptop: Laptop, stack: Stack, key: str, **changes: str) -> None:
    """Put an item into the table."""
    item = {
        "key": key,
        "region": "here",
        "type": "Ride",
        "time": "2026-01-02T03:04:05Z",
        "event": '{"ride": 1}',
    } | changes
    values = {name: {"S": value} for name, value in item.items()}
    laptop.client("dynamodb").put_item(TableName=stack.resources["Table"], Item=values)


def test_what_is_written_to_the_table_is_put_on_the_bus(engine: Laptop, deploy: Deploy) -> None:
    """An inserted item that a filter matches becomes an event as the template says; nothing else does."""
    stack = deploy(engine, **piped(("events:PutEvents", "Bus")))
    write(engine, stack, "one")
    write(engine, stack, "one", event='{"ride": "changed"}')
    write(engine, stack, "two", region="elsewhere")
    engine.wait_until_quiet()
    [message] = messages(engine, stack)
    event = message["body"]
    assert event["detail"] == {"ride": 1}
    assert (event["source"], event["detail-type"], event["time"]) == ("outbox", "Ride", "2026-01-02T03:04:05Z")


def test_records_beyond_a_batch_all_arrive(engine: Laptop, deploy: Deploy) -> None:
    """Each of 250 items becomes one event."""
    stack = deploy(engine, **piped(("events:PutEvents", "Bus")))
    for number in range(250):
        write(engine, stack, str(number), event=json.dumps({"ride": number}))
    engine.wait_until_quiet()
    rides: list[Any] = [message["body"]["detail"]["ride"] for message in messages(engine, stack)]
    assert sorted(rides) == list(range(250))


def test_a_record_that_the_bus_refuses_ends_in_the_pipes_queue(engine: Laptop, deploy: Deploy) -> None:
    """When the retries are used up, the dead-letter queue says which record it was; the others arrive."""
    stack = deploy(engine, **piped(("events:PutEvents", "Bus"), ("sqs:SendMessage", "Dlq")))
    write(engine, stack, "good")
    write(engine, stack, "bad", event="{")
    write(engine, stack, "better")
    engine.wait_until_quiet()
    assert len(messages(engine, stack)) == 2
    [note] = messages(engine, stack, "Dlq")
    assert note["body"]["context"]["condition"] == "RetryAttemptsExhausted"
    assert note["body"]["DDBStreamBatchInfo"]["streamArn"].startswith("arn:aws:dynamodb:")


def test_the_pipe_needs_its_roles_permission(engine: Laptop, deploy: Deploy) -> None:
    """A pipe whose role may not put events on the bus puts none."""
    stack = deploy(engine, **piped(("sqs:SendMessage", "Dlq")))
    write(engine, stack, "one")
    engine.wait_until_quiet()
    assert messages(engine, stack) == []
    assert len(messages(engine, stack, "Dlq")) == 1


def test_stock_holds_the_records_back(stock: Laptop, deploy: Deploy) -> None:
    """Canary: the plug-in is needed while MiniStack's pipes do not deliver to event buses."""
    stack = deploy(stock, **piped(("events:PutEvents", "Bus")))
    write(stock, stack, "one")
    if until(lambda: messages(stock, stack), timeout=2.5):
        needless("pipes from a stream to an event bus", "pipes")
