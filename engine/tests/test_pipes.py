import json
from typing import Any

import pytest

from engine.client import LocalCloud, Stack
from engine.tests.conftest import Deploy
from engine.tests.support import (
    QUEUE,
    Resource,
    attribute,
    bus,
    from_rule,
    messages,
    needed,
    queue_policy,
    rule,
    until,
)
from engine.tests.test_resources import HOME, table

pytestmark = pytest.mark.integration

PUT = ("events:PutEvents", "Bus")
SEND = ("sqs:SendMessage", "Dlq")


def piped(*actions: tuple[str, str]) -> dict[str, Resource]:
    """A table, a pipe from its stream to a bus with these permissions, and two queues.

    One queue holds the bus's events, the other one the pipe's dead letters.
    """
    allowed = [
        {"Effect": "Allow", "Action": action, "Resource": attribute(to)} for action, to in actions
    ]
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "pipes.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    role = {
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
        "Policies": [
            {
                "PolicyName": "pipe",
                "PolicyDocument": {"Version": "2012-10-17", "Statement": allowed},
            }
        ],
    }
    pattern = {"eventName": ["INSERT"], "dynamodb": {"NewImage": {"region": {"S": ["here"]}}}}
    stream = {
        "StartingPosition": "LATEST",
        "MaximumRetryAttempts": 1,
        "DeadLetterConfig": {"Arn": attribute("Dlq")},
    }
    image = "$.dynamodb.NewImage"
    event = {"Source": "outbox", "DetailType": f"{image}.type.S", "Time": f"{image}.time.S"}
    pipe = {
        "RoleArn": attribute("Role"),
        "Source": attribute("Table", "StreamArn"),
        "SourceParameters": {
            "DynamoDBStreamParameters": stream,
            "FilterCriteria": {"Filters": [{"Pattern": json.dumps(pattern)}]},
        },
        "Target": attribute("Bus"),
        "TargetParameters": {
            "EventBridgeEventBusParameters": event,
            "InputTemplate": f'{{"ride": <{image}.ride.S>, "stop": <{image}.stops.L[1].S>}}',
        },
    }
    return {
        "Bus": bus(),
        "Queue": QUEUE,
        "Dlq": QUEUE,
        "Rule": rule({"Arn": attribute("Queue")}),
        "QueuePolicy": queue_policy("Queue", from_rule()),
        "Table": table(
            "GlobalTable", Replicas=[HOME], StreamSpecification={"StreamViewType": "NEW_IMAGE"}
        ),
        "Role": {"Type": "AWS::IAM::Role", "Properties": role},
        "Pipe": {"Type": "AWS::Pipes::Pipe", "Properties": pipe},
    }


def write(cloud: LocalCloud, stack: Stack, key: str, **changes: str) -> None:
    item = {
        "region": "here",
        "type": "Ride",
        "time": "2026-01-02T03:04:05Z",
        "ride": "1",
        "key": key,
    }
    values: dict[str, Any] = {name: {"S": value} for name, value in (item | changes).items()}
    values["stops"] = {"L": [{"S": "first"}, {"S": "second"}]}
    cloud.client("dynamodb").put_item(TableName=stack.resources["Table"], Item=values)


@needed("pipes")
def test_what_is_written_to_the_table_is_put_on_the_bus(engine: LocalCloud, deploy: Deploy) -> None:
    """An inserted item that a filter matches becomes an event as the template says.

    Nothing else does.
    """
    stack = deploy(**piped(PUT))
    write(engine, stack, "one")
    write(engine, stack, "one", ride="changed")
    write(engine, stack, "two", region="elsewhere")
    engine.wait_until_quiet()
    [message] = until(lambda: messages(engine, stack), timeout=2.5)
    event = message["body"]
    assert event["detail"] == {"ride": "1", "stop": "second"}
    assert (event["source"], event["detail-type"], event["time"]) == (
        "outbox",
        "Ride",
        "2026-01-02T03:04:05Z",
    )


@pytest.mark.parametrize(
    ("allowed", "arrived", "given_up"),
    [([PUT, SEND], 2, 1), ([SEND], 0, 3)],
    ids=["refused", "forbidden"],
)
def test_a_record_that_the_bus_does_not_take_ends_in_the_pipes_queue(
    engine: LocalCloud, deploy: Deploy, allowed: list[tuple[str, str]], arrived: int, given_up: int
) -> None:
    """When the retries are used up, the dead-letter queue says which record it was.

    Without its role none arrives.
    """
    stack = deploy(**piped(*allowed))
    for key, kind in (("good", "Ride"), ("bad", ""), ("better", "Ride")):
        write(engine, stack, key, type=kind)
    engine.wait_until_quiet()
    assert len(messages(engine, stack)) == arrived
    notes = [message["body"] for message in messages(engine, stack, "Dlq")]
    assert [note["context"]["condition"] for note in notes] == ["RetryAttemptsExhausted"] * given_up
    assert all(
        note["DDBStreamBatchInfo"]["streamArn"].startswith("arn:aws:dynamodb:") for note in notes
    )
