"""Small templates for the tests of the engine, and readers of a stack's logs and queues."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from engine.client import LocalCloud, Stack

type Resource = dict[str, Any]

NAME_OF: Final = {"Fn::Sub": "${AWS::StackName}"}
QUEUE: Final[Resource] = {"Type": "AWS::SQS::Queue"}
ENGINE: Final = ("--retry-delays=0.05,0.1",)
"""Options of the engine of these tests: retries follow at once."""


def needed(module: str) -> pytest.MarkDecorator:
    """Run a test on stock MiniStack as well, as a canary.

    It must fail there while the module is needed.
    """
    reason = f"MiniStack lacks it; once this passes, see whether engine/{module}.py can go"
    canary = pytest.param(
        ("--stock",), marks=pytest.mark.xfail(strict=True, reason=reason), id="stock"
    )
    return pytest.mark.parametrize(
        "engine", [pytest.param(ENGINE, id="engine"), canary], indirect=True
    )


listed = pytest.mark.xfail(
    strict=True,
    raises=(AssertionError, ClientError),
    reason="engine/README.md lists it: once this passes, take it off the list",
)
"""A difference from AWS that nothing mends."""


def until[T](look: Callable[[], T], timeout: float = 60.0) -> T:
    """Call a function until its result is true, or the time is over; return the last result."""
    deadline = time.monotonic() + timeout
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return seen


def template(resources: Mapping[str, Resource]) -> dict[str, Any]:
    return {"Transform": "AWS::Serverless-2016-10-31", "Resources": dict(resources)}


def function(body: str, **properties: Any) -> Resource:
    """A Python function whose handler, `handler(event, context)`, has the given body."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    code = f"import json, os, sys, time\ndef handler(event, context):\n{lines}\n"
    settings = {
        "Runtime": "python3.13",
        "Handler": "index.handler",
        "Timeout": 10,
        "InlineCode": code,
    }
    return {"Type": "AWS::Serverless::Function", "Properties": settings | properties}


def bus() -> Resource:
    return {"Type": "AWS::Events::EventBus", "Properties": {"Name": NAME_OF}}


def rule(target: Mapping[str, Any]) -> Resource:
    """A rule that hands every event of the bus ``Bus`` to a target."""
    return {
        "Type": "AWS::Events::Rule",
        "Properties": {
            "EventBusName": {"Ref": "Bus"},
            "EventPattern": {"source": [{"prefix": ""}]},
            "Targets": [{"Id": "target", **target}],
        },
    }


def queue_policy(queue_id: str, *statements: Resource) -> Resource:
    whole = [
        {"Resource": {"Fn::GetAtt": [queue_id, "Arn"]}, **statement} for statement in statements
    ]
    document = {"Version": "2012-10-17", "Statement": whole}
    return {
        "Type": "AWS::SQS::QueuePolicy",
        "Properties": {"Queues": [{"Ref": queue_id}], "PolicyDocument": document},
    }


def from_rule(rule_id: str = "Rule") -> Resource:
    """A statement that lets the rule send to a queue."""
    return {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Condition": {"ArnEquals": {"aws:SourceArn": {"Fn::GetAtt": [rule_id, "Arn"]}}},
    }


PERMISSION: Final[Resource] = {
    "Type": "AWS::Lambda::Permission",
    "Properties": {
        "FunctionName": {"Ref": "Function"},
        "Action": "lambda:InvokeFunction",
        "Principal": "events.amazonaws.com",
        "SourceArn": {"Fn::GetAtt": ["Rule", "Arn"]},
    },
}
"""A permission of the rule ``Rule`` to invoke the function ``Function``."""

TLS_ONLY: Final[Resource] = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "sqs:*",
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


def attribute(logical_id: str, name: str = "Arn") -> Resource:
    return {"Fn::GetAtt": [logical_id, name]}


def entry(stack: Stack, detail: Any, **more: Any) -> dict[str, Any]:
    text = detail if isinstance(detail, str) else json.dumps(detail)
    return {
        "Source": "test",
        "DetailType": "Test",
        "Detail": text,
        "EventBusName": stack.resources["Bus"],
        **more,
    }


def put(cloud: LocalCloud, stack: Stack, *details: Any) -> None:
    """Put events on the stack's bus, which must accept all of them."""
    for start in range(0, len(details), 10):
        entries = [entry(stack, detail) for detail in details[start : start + 10]]
        assert cloud.client("events").put_events(Entries=entries)["FailedEntryCount"] == 0


def lines(cloud: LocalCloud, group: str, **request: Any) -> list[str]:
    """Return every line of a log group, the oldest first; a missing group has none."""
    logs = cloud.client("logs")
    if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        return []
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group, **request)
    return [event["message"] for page in pages for event in page["events"]]


def records(cloud: LocalCloud, stack: Stack, function_id: str = "Function") -> list[Any]:
    """Return the JSON objects that a function of the stack printed."""
    printed = lines(cloud, f"/aws/lambda/{stack.resources[function_id]}")
    return [json.loads(line) for line in printed if line.startswith("{")]


def messages(cloud: LocalCloud, stack: Stack, queue_id: str = "Queue") -> list[dict[str, Any]]:
    """Receive the messages of a queue of the stack: ``body`` as JSON and ``attributes`` by name."""
    found: list[dict[str, Any]] = []
    request = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    while (
        batch := cloud.client("sqs")
        .receive_message(QueueUrl=stack.resources[queue_id], **request)
        .get("Messages")
    ):
        for message in batch:
            attributes = {
                name: value["StringValue"]
                for name, value in message.get("MessageAttributes", {}).items()
            }
            found.append({"body": json.loads(message["Body"]), "attributes": attributes})
    return found
