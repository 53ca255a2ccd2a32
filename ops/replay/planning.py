"""Predicts what a replay would do, and watches what it does."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

import jmespath
from botocore.exceptions import ClientError

from carride_idempotency import dead_letters, observation
from carride_idempotency.keys import record_key
from carride_idempotency.stores.dynamodb import record_of
from ops.audit.evidence import CONSUMERS, AuditedConsumer
from ops.audit.queues import fact_of, waiting
from ops.audit.reading import deliveries, type_of
from ops.prediction import Predictor
from ops.records import items_at
from ops.replay import PLAN_PREFIX, ReplayState, describe, name_for, start, warnings
from ops.stack import OperatorError, StackRef

PAUSE: Final = 5.0
"""Seconds between two looks."""
_GONE: Final = (
    *("ResourceNotFoundException", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
    # Of EventBridge and MiniStack: the replay has ended.
    *("IllegalStatusException", "ValidationException"),
)
"""The codes for what is gone already."""
_LEFT_AFTER: Final = timedelta(days=1)
"""A capture that is older was killed."""
_AT_ONCE: Final = 1_000
"""The most events of a list."""
_LATE: Final = timedelta(minutes=5)
"""How much later than others CloudWatch may show a line."""
_matter: Final = jmespath.compile(
    '[source, "detail-type", region, detail.type, detail.attributes.type]'
)
"""Finds what the patterns of consumers' rules look at, besides the replay's name."""


class Fate(StrEnum):
    """What a consumer does with a delivery."""

    NEW = "new"
    """It runs: there is no record, or one that a run may replace. Whether the run succeeds is not
    predicted."""
    RECOGNISED = "recognised"
    """It took effect before, or earlier in the same replay."""
    IN_PROGRESS = "in progress"
    """Another attempt holds the key, or a failed attempt may not be repeated yet. Lambda or SQS
    tries again."""
    QUARANTINED = "quarantined"
    """The key is quarantined, and its event is in the dead-letter queue already."""
    TOO_OLD = "too old"
    """The event has expired, or is older than the consumer's records."""
    DEAD_LETTERED = "dead-lettered"
    """It goes to the consumer's dead-letter queue."""
    NOT_FOR_IT = "not for this consumer"
    """The consumer's rule does not take it."""


_FATES: Final = {
    **dict.fromkeys(observation.COMMITTED, Fate.NEW),
    observation.DUPLICATE: Fate.RECOGNISED,
    observation.BUSY: Fate.IN_PROGRESS,
    observation.FAILED: Fate.IN_PROGRESS,
    observation.QUARANTINED: Fate.QUARANTINED,
    observation.EXPIRED: Fate.TOO_OLD,
    observation.DEAD_LETTERED: Fate.DEAD_LETTERED,
}


def fate_of(outcome: str, reason: object) -> Fate:
    """Return the fate that an observed outcome means."""
    return Fate.TOO_OLD if reason == dead_letters.BEYOND_WINDOW else _FATES[outcome]


class Prediction:
    """Counts what a consumer would do with the events of a replay, in their order; copies are recognised."""

    def __init__(self, stack: StackRef, consumer: AuditedConsumer, replay: str) -> None:
        self.fates: defaultdict[str, Counter[Fate]] = defaultdict(Counter)
        """The number of events of each fate, by the event's type."""
        self._stack, self._name, self._replay = stack, consumer.name, replay
        events = stack.client("events")
        name = stack.named("AWS::Events::Rule")[f"{consumer.resources}Rule"]
        rule = events.describe_rule(Name=name, EventBusName=stack.outputs["CarRideBusName"])
        self._is_enabled = rule["State"] == "ENABLED"
        self._match = partial(events.test_event_pattern, EventPattern=rule["EventPattern"])
        self._matched: dict[str, bool] = {}
        self._predictor = Predictor(stack, consumer)

    def add(self, events: Collection[Mapping[str, Any]]) -> None:
        """Count what the consumer would do with more events."""
        delivered = [{**event, "replay-name": self._replay} for event in events]
        taken = [event for event in delivered if self._takes(event)]
        keys = {
            record_key(self._name, fact) for event in taken if (fact := fact_of(event)) is not None
        }
        for item in items_at(self._stack, keys):
            self._predictor.store.put_if_absent(record_of(item))
        for event in delivered:
            fate = Fate.NOT_FOR_IT
            if self._takes(event):
                seen = self._predictor.observe(event)
                fate = fate_of(seen.outcome, seen.reason)
            self.fates[type_of(event) or "unreadable"][fate] += 1

    def _takes(self, event: Mapping[str, Any]) -> bool:
        """Return whether the rule takes an event. EventBridge is asked once about events that look alike to rules."""
        alike = json.dumps(_matter.search(event))
        if alike not in self._matched:
            self._matched[alike] = (
                self._is_enabled and self._match(Event=json.dumps(event))["Result"]
            )
        return self._matched[alike]


class ReplayPlan(NamedTuple):
    """What a replay of a window would do, if nothing changes until then: events by consumer, type and fate."""

    since: datetime
    until: datetime
    events: int
    fates: Mapping[str, Mapping[str, Mapping[Fate, int]]]
    warnings: list[str]


def predict(stack: StackRef, since: datetime, until: datetime, *, looks: int = 10) -> ReplayPlan:
    """Predict what a replay would do. All events are read after ``looks`` seconds without a message."""
    made = datetime.now(UTC)
    found = warnings(stack, since, until, made)
    replay = name_for(stack.region, made)
    predictions, count = {each.name: Prediction(stack, each, replay) for each in CONSUMERS}, 0
    with closing(captured(stack, since, until, looks=looks)) as batches:
        for batch in batches:
            count += len(batch)
            for prediction in predictions.values():
                prediction.add(batch)
    return ReplayPlan(
        since, until, count, {name: each.fates for name, each in predictions.items()}, found
    )


def captured(
    stack: StackRef, since: datetime, until: datetime, *, looks: int
) -> Generator[list[dict[str, Any]]]:
    """Yield the archived events of a window once, in lists, and deliver them to nobody else.

    Two things keep the replay from consumers: it goes to the one rule that it names, and its own
    name is one that the template's rules refuse. The rule takes nothing but this replay. Rule,
    queue and replay end with the iteration. The queue counts as empty after ``looks`` reads that
    find nothing, each of a second.
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
        rule = events.put_rule(
            Name=name, EventBusName=bus, EventPattern=only, Description="./carride replay plan"
        )
        url, arn = _make_queue(stack, _queue(name), rule["RuleArn"])
        answer = events.put_targets(
            Rule=name, EventBusName=bus, Targets=[{"Id": "queue", "Arn": arn}]
        )
        if answer["FailedEntryCount"]:
            raise OperatorError(
                f"EventBridge refused the target of {name}: {answer['FailedEntries']}"
            )
        start(stack, name, since, until, [rule["RuleArn"]])
        seen, new, empty = set[str](), list[dict[str, Any]](), 0
        while empty < looks:
            handed_over = (state := describe(stack, name)).handed_over
            messages = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
            ).get("Messages", [])
            found = {
                event["id"]: event for event in (json.loads(each["Body"]) for each in messages)
            }
            # Queues may deliver twice.
            new += [event for event_id, event in found.items() if event_id not in seen]
            seen |= found.keys()
            if len(new) >= _AT_ONCE:
                yield new
                new = []
            if messages:
                handles = [
                    {"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]}
                    for at, each in enumerate(messages)
                ]
                sqs.delete_message_batch(QueueUrl=url, Entries=handles)
            is_empty = handed_over and not messages and not waiting(sqs, url, visible=True)
            empty = empty + 1 if is_empty else 0
        state.check()
        yield new


def remove_leftovers(stack: StackRef, now: datetime) -> None:
    """Remove the rules and queues of captures that were killed. A younger one may be another operator's."""
    request = {
        "EventBusName": stack.outputs["CarRideBusName"],
        "NamePrefix": f"{PLAN_PREFIX}{stack.region}.",
    }
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
    like: Any = {
        "QueueUrl": stack.outputs["RideHistoryDlqUrl"],
        "AttributeNames": ["KmsMasterKeyId", "QueueArn"],
    }
    attributes = sqs.get_queue_attributes(**like)["Attributes"]
    arn = f"{attributes.pop('QueueArn').rpartition(':')[0]}:{name}"
    # The policy comes with the queue: a later one may take a minute to be in force, and what is
    # refused is lost.
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


class Progress(NamedTuple):
    """How far a replay is."""

    replay: ReplayState
    fates: Mapping[str, Mapping[Fate, int]]
    """What consumers have logged since the replay began: deliveries by consumer and by the fate of
    their last attempt. Deliveries of new events are among them."""


def watch(
    stack: StackRef, name: str, *, looks: int = 3, pause: float = PAUSE
) -> Iterator[Progress]:
    """Yield a replay's progress, each ``pause`` seconds, until nothing was in flight or logged for ``looks`` looks."""
    since = dict.fromkeys((each.name for each in CONSUMERS), describe(stack, name).started)
    fates: dict[str, dict[str | None, Fate]] = {consumer: {} for consumer in since}
    before, unchanged = None, 0
    while unchanged < looks:
        for each in CONSUMERS:
            for found in deliveries(stack, each, since[each.name]):
                # What is read again changes nothing.
                since[each.name] = max(since[each.name], found.time - _LATE)
                fates[each.name][found.delivery] = fate_of(found.outcome, found.reason)
        counts = {consumer: Counter(fates[consumer].values()) for consumer in fates}
        progress = Progress(describe(stack, name), counts)
        unchanged = unchanged + 1 if progress.replay.ended and counts == before else 0
        before = counts
        yield progress
        if unchanged < looks:
            time.sleep(pause)
