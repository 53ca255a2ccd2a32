"""Reads the archive: a replay to a rule and a queue that exist only for it."""

import json
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from botocore.exceptions import ClientError

from ops.audit.queues import waiting
from ops.replay import PLAN_PREFIX, describe, start
from ops.stack import OperatorError, StackRef

_LEFT_AFTER: Final = timedelta(hours=1)
"""A capture that is older and has no replay running was killed. Another operator's is younger."""
_GONE: Final = frozenset(
    {
        *("ResourceNotFoundException", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
        *("IllegalStatusException", "ValidationException"),  # of EventBridge and MiniStack: the replay has ended
    }
)
"""The codes for what is gone already."""
_MANY: Final = 10


def captured(
    stack: StackRef, since: datetime, until: datetime, *, at_once: int, looks: int
) -> Generator[list[dict[str, Any]]]:
    """Yield the archived events of a window once, in lists, and deliver them to nobody else.

    Two things keep the replay from consumers: it goes to the one rule that it names, and its own name is one that the
    template's rules refuse. The rule takes nothing but this replay. Rule, queue and replay end with the iteration.

    Args:
        stack: the stack.
        since: time of the oldest event.
        until: time of the newest event.
        at_once: the length of a list.
        looks: after how many reads that find nothing, each of a second, the queue counts as empty.

    Raises:
        OperatorError: the replay failed.
    """
    now = datetime.now(UTC)
    remove_leftovers(stack, now)
    stamp = f"{now:%Y%m%dT%H%M%S%f}Z"
    name, replay = f"{_prefix(stack)}{stamp}", _replay(stack, stamp)
    events, sqs, bus = stack.client("events"), stack.client("sqs"), stack.outputs["CarRideBusName"]
    # arn:<partition>:events:<region>:<account>:event-bus/<name>
    _, partition, _, region, account, _ = events.describe_event_bus(Name=bus)["Arn"].split(":")
    rule = f"arn:{partition}:events:{region}:{account}:rule/{bus}/{name}"
    with ExitStack() as removals:
        # Each removal is registered first: what is interrupted while it is made is removed too.
        removals.callback(_remove_queue, stack, name)
        arn = f"arn:{partition}:sqs:{region}:{account}:{name}"
        url = _make_queue(stack, name, arn, rule)
        removals.callback(_remove_rule, stack, name)
        events.put_rule(
            Name=name,
            EventBusName=bus,
            EventPattern=json.dumps({"replay-name": [replay]}),
            Description="Captures one replay for carride replay plan, which removes the rule.",
        )
        answer = events.put_targets(Rule=name, EventBusName=bus, Targets=[{"Id": "queue", "Arn": arn}])
        if answer["FailedEntryCount"]:
            raise OperatorError(f"EventBridge refused the target of {name}: {answer['FailedEntries']}")
        removals.callback(_quietly, events.cancel_replay, ReplayName=replay)
        start(stack, replay, since, until, [rule])
        seen, new, empty = set[str](), list[dict[str, Any]](), 0
        while empty < looks:
            handed_over = (state := describe(stack, replay)).handed_over
            answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=_MANY, WaitTimeSeconds=1)
            messages = answer.get("Messages", [])
            found = {event["id"]: event for event in (json.loads(each["Body"]) for each in messages)}
            new += [event for event_id, event in found.items() if event_id not in seen]  # queues may deliver twice
            seen |= found.keys()
            if len(new) >= at_once:
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
    """Remove the rules and queues of captures that were killed."""
    events, bus, prefix = stack.client("events"), stack.outputs["CarRideBusName"], _prefix(stack)
    rules = events.get_paginator("list_rules").paginate(EventBusName=bus, NamePrefix=prefix)
    queues = stack.client("sqs").get_paginator("list_queues").paginate(QueueNamePrefix=prefix)
    names = {rule["Name"] for page in rules for rule in page["Rules"]}
    names |= {url.rpartition("/")[2] for page in queues for url in page.get("QueueUrls", ())}
    for name in sorted(names):
        stamp = name.removeprefix(prefix)
        if re.fullmatch(r"\d{8}T\d{12}Z", stamp) is None:
            continue
        made = datetime.strptime(stamp, "%Y%m%dT%H%M%S%f%z")
        if made + _LEFT_AFTER < now and not _is_running(stack, _replay(stack, stamp)):
            _remove_rule(stack, name)
            _remove_queue(stack, name)


def _prefix(stack: StackRef) -> str:
    return f"{stack.name[:32]}-plan-"


def _replay(stack: StackRef, stamp: str) -> str:
    return f"{PLAN_PREFIX}{stack.region}.{stamp}"


def _is_running(stack: StackRef, replay: str) -> bool:
    try:
        return not describe(stack, replay).handed_over
    except OperatorError:
        return False


def _make_queue(stack: StackRef, name: str, arn: str, rule: str) -> str:
    """Make a queue that takes the rule's messages, encrypted as the stack's queues are; return its URL."""
    sqs = stack.client("sqs")
    asked = sqs.get_queue_attributes(QueueUrl=stack.outputs["RideHistoryDlqUrl"], AttributeNames=["KmsMasterKeyId"])
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
    }
    # The policy comes with the queue: a later one may take a minute to be in force, and what is refused is lost.
    attributes = {"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})}
    made = sqs.create_queue(QueueName=name, Attributes=attributes | asked.get("Attributes", {}))
    return str(made["QueueUrl"])


def _remove_rule(stack: StackRef, name: str) -> None:
    events, bus = stack.client("events"), stack.outputs["CarRideBusName"]
    _quietly(events.remove_targets, Rule=name, EventBusName=bus, Ids=["queue"])
    _quietly(events.delete_rule, Name=name, EventBusName=bus)


def _remove_queue(stack: StackRef, name: str) -> None:
    sqs = stack.client("sqs")
    with_url = _quietly(sqs.get_queue_url, QueueName=name)
    if with_url is not None:
        _quietly(sqs.delete_queue, QueueUrl=with_url["QueueUrl"])


def _quietly(call: Callable[..., Any], **request: Any) -> Any:
    """Call AWS, and return None if there is nothing to remove."""
    try:
        return call(**request)
    except ClientError as error:
        if error.response["Error"]["Code"] not in _GONE:
            raise
        return None
