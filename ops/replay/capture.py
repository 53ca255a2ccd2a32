"""Reads the archive: a replay to a rule and a queue that exist only for it."""

import json
from collections.abc import Callable, Generator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from botocore.exceptions import ClientError

from ops.audit.queues import waiting
from ops.replay import PLAN_PREFIX, describe, name_for, start
from ops.stack import OperatorError, StackRef

_GONE: Final = (
    *("ResourceNotFoundException", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
    *("IllegalStatusException", "ValidationException"),  # of EventBridge and MiniStack: the replay has ended
)
"""The codes for what is gone already."""
_LEFT_AFTER: Final = timedelta(days=1)
"""A capture that is older was killed."""
_AT_ONCE: Final = 1_000
"""The most events of a list."""


def captured(stack: StackRef, since: datetime, until: datetime, *, looks: int) -> Generator[list[dict[str, Any]]]:
    """Yield the archived events of a window once, in lists, and deliver them to nobody else.

    Two things keep the replay from consumers: it goes to the one rule that it names, and its own name is one that the
    template's rules refuse. The rule takes nothing but this replay. Rule, queue and replay end with the iteration.
    The queue counts as empty after ``looks`` reads that find nothing, each of a second.
    """
    now = datetime.now(UTC)
    remove_leftovers(stack, now)
    events, sqs, bus = stack.client("events"), stack.client("sqs"), stack.outputs["CarRideBusName"]
    name = _name(stack, now)
    with ExitStack() as removals:
        # Registered first: what is interrupted while it is made is removed too.
        removals.callback(_remove, stack, name)
        removals.callback(_quietly, events.cancel_replay, ReplayName=name)
        only = json.dumps({"replay-name": [name]})
        rule = events.put_rule(Name=name, EventBusName=bus, EventPattern=only, Description="./carride replay plan")
        url, arn = _make_queue(stack, _queue(name), rule["RuleArn"])
        answer = events.put_targets(Rule=name, EventBusName=bus, Targets=[{"Id": "queue", "Arn": arn}])
        if answer["FailedEntryCount"]:
            raise OperatorError(f"EventBridge refused the target of {name}: {answer['FailedEntries']}")
        start(stack, name, since, until, [rule["RuleArn"]])
        seen, new, empty = set[str](), list[dict[str, Any]](), 0
        while empty < looks:
            handed_over = (state := describe(stack, name)).handed_over
            messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
            found = {event["id"]: event for event in (json.loads(each["Body"]) for each in messages)}
            new += [event for event_id, event in found.items() if event_id not in seen]  # queues may deliver twice
            seen |= found.keys()
            if len(new) >= _AT_ONCE:
                yield new
                new = []
            if messages:
                handles = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
                sqs.delete_message_batch(QueueUrl=url, Entries=handles)
            is_empty = handed_over and not messages and not waiting(sqs, url, visible=True)
            empty = empty + 1 if is_empty else 0
        state.check()
        yield new


def remove_leftovers(stack: StackRef, now: datetime) -> None:
    """Remove the rules and queues of captures that were killed. A younger one may be another operator's."""
    request = {"EventBusName": stack.outputs["CarRideBusName"], "NamePrefix": f"{PLAN_PREFIX}{stack.region}."}
    pages = stack.client("events").get_paginator("list_rules").paginate(**request)
    oldest = _name(stack, now - _LEFT_AFTER)
    for name in [rule["Name"] for page in pages for rule in page["Rules"] if rule["Name"] < oldest]:
        _remove(stack, name)


def _name(stack: StackRef, made: datetime) -> str:
    """Return the name of a capture's rule and replay; the names sort by time."""
    return f"{PLAN_PREFIX}{name_for(stack.region, made)}"


def _queue(name: str) -> str:
    """Return the name of the queue that belongs to a rule; SQS allows no dots."""
    return name.replace(".", "-")


def _make_queue(stack: StackRef, name: str, rule: str) -> tuple[str, str]:
    """Make a queue that takes a rule's messages, encrypted as the stack's queues are; return its URL and its ARN."""
    sqs = stack.client("sqs")
    like: Any = {"QueueUrl": stack.outputs["RideHistoryDlqUrl"], "AttributeNames": ["KmsMasterKeyId", "QueueArn"]}
    attributes = sqs.get_queue_attributes(**like)["Attributes"]
    arn = f"{attributes.pop('QueueArn').rpartition(':')[0]}:{name}"
    # The policy comes with the queue: a later one may take a minute to be in force, and what is refused is lost.
    attributes["Policy"] = may_send("events", rule, arn)
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]), arn


def may_send(service: str, source: str, queue: str) -> str:
    """Return the policy of a queue to which a rule or a topic sends, each by its ARN."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": f"{service}.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": source}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _remove(stack: StackRef, name: str) -> None:
    """Remove a rule and its queue. The rule is the last, because leftovers are found by their rules."""
    events, sqs, bus = stack.client("events"), stack.client("sqs"), stack.outputs["CarRideBusName"]
    if found := _quietly(sqs.get_queue_url, QueueName=_queue(name)):
        _quietly(sqs.delete_queue, QueueUrl=found["QueueUrl"])
    _quietly(events.remove_targets, Rule=name, EventBusName=bus, Ids=["queue"])
    _quietly(events.delete_rule, Name=name, EventBusName=bus)


def _quietly(call: Callable[..., Any], **request: Any) -> Any:
    """Call AWS, and return None if there is nothing to remove."""
    try:
        return call(**request)
    except ClientError as error:
        if error.response["Error"]["Code"] not in _GONE:
            raise
        return None
