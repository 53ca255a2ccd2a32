"""EventBridge Scheduler calls its targets with the schedule's role."""

import json

import pytest

from engine.client import LocalCloud
from engine.tests import support
from engine.tests.conftest import Deploy
from engine.tests.support import QUEUE, Resource, attribute, messages, needed

pytestmark = pytest.mark.integration

NOW: str = "at(2020-01-01T00:00:00)"
"""A moment that has passed: the schedule runs once, as soon as it is looked at."""


def role(*targets: tuple[str, str]) -> Resource:
    """A role of Scheduler's with permissions: actions and logical ids."""
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "scheduler.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    statements = [
        {"Effect": "Allow", "Action": action, "Resource": attribute(logical_id)}
        for action, logical_id in targets
    ]
    policies = [
        {
            "PolicyName": "schedule",
            "PolicyDocument": {"Version": "2012-10-17", "Statement": statements},
        }
    ]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
            "Policies": policies if statements else [],
        },
    }


def schedule(target: str, role_id: str) -> Resource:
    """A schedule that hands its own logical target to a function or queue, at once."""
    return {
        "Type": "AWS::Scheduler::Schedule",
        "Properties": {
            "ScheduleExpression": NOW,
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {
                "Arn": attribute(target),
                "RoleArn": attribute(role_id),
                "Input": json.dumps({"for": target, "by": role_id}),
                "DeadLetterConfig": {"Arn": attribute("Dlq")},
            },
        },
    }


@needed("schedules")
def test_a_schedule_calls_what_its_role_may_call(engine: LocalCloud, deploy: Deploy) -> None:
    """What the role may not call ends in the schedule's dead-letter queue."""
    stack = deploy(
        Function=support.function("print(json.dumps(event))"),
        Queue=QUEUE,
        Dlq=QUEUE,
        May=role(
            ("lambda:InvokeFunction", "Function"),
            ("sqs:SendMessage", "Queue"),
        ),
        MayNot=role(("sqs:SendMessage", "Dlq")),
        ToFunction=schedule("Function", "May"),
        ToQueue=schedule("Queue", "May"),
        Refused=schedule("Function", "MayNot"),
    )
    queued = support.until(lambda: messages(engine, stack))
    assert [message["body"] for message in queued] == [{"for": "Queue", "by": "May"}]
    invoked = support.until(lambda: support.records(engine, stack))
    assert invoked == [{"for": "Function", "by": "May"}]
    refused = support.until(lambda: messages(engine, stack, "Dlq"), timeout=30)
    assert [message["body"] for message in refused] == [{"for": "Function", "by": "MayNot"}]
    assert refused[0]["attributes"]["TARGET_ARN"].endswith(stack.resources["Function"])
