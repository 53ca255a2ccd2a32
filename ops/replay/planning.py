"""Predicts what a replay would do, and watches what it does."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import jmespath
from botocore.exceptions import ClientError

from carride_idempotency import dead_letters, observation
from carride_idempotency.keys import letter_key, record_key
from ops.audit.evidence import CONSUMERS, AuditedConsumer
from ops.audit.queues import fact_of, waiting
from ops.audit.reading import deliveries, type_of
from ops.finding import work_left
from ops.prediction import Predictor
from ops.records import StackRecords
from ops.replay import (
    PLAN_PREFIX,
    ReplayState,
    describe,
    name_for,
    start,
    status,
    warnings,
)
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
_LATELY: Final = timedelta(seconds=30)
"""If consumers have logged nothing for so long, they may be done."""
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
    LETTER_IS_THERE = "dead-lettered before"
    """It breaks the contract, and its letter is in the dead-letter queue already."""
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

_WITHOUT_A_KEY: Final = (dead_letters.CONTRACT, dead_letters.MISSING_KEY)
"""Why an event has no record, but may have the mark of a letter."""


def fate_of(outcome: str, reason: object) -> Fate:
    """Return the fate that an observed outcome means."""
    if reason == dead_letters.BEYOND_WINDOW:
        return Fate.TOO_OLD
    if outcome == observation.DUPLICATE and reason in _WITHOUT_A_KEY:
        return Fate.LETTER_IS_THERE
    return _FATES[outcome]


class Prediction:
    """Counts what a consumer would do with the events of a replay, in their order."""

    def __init__(self, stack: StackRef, consumer: AuditedConsumer, replay: str) -> None:
        self.fates: defaultdict[str, Counter[Fate]] = defaultdict(Counter)
        """The number of events of each fate, by the event's type."""
        self._stack = stack
        self._name = consumer.name
        self._replay = replay
        self._rule = _rule_of(stack, consumer)
        self._matched: dict[str, bool] = {}
        self._predictor = Predictor(stack, consumer)

    def add(self, events: Collection[Mapping[str, Any]]) -> None:
        """Count what the consumer would do with more events."""
        delivered = [{**event, "replay-name": self._replay} for event in events]
        keys = {self._key(event) for event in delivered if self._takes(event)}
        for record in StackRecords(self._stack).at(keys):
            self._predictor.store.put_if_absent(record)
        for event in delivered:
            fate = self._fate(event)
            event_type = type_of(event) or "unreadable"
            self.fates[event_type][fate] += 1

    def _key(self, event: Mapping[str, Any]) -> str:
        """Return the key of an event's record; of its letter's mark if it breaks the contract."""
        fact = fact_of(event)
        if fact is None:
            return letter_key(self._name, self._stack.region, event["id"])
        return record_key(self._name, fact)

    def _fate(self, event: Mapping[str, Any]) -> Fate:
        if not self._takes(event):
            return Fate.NOT_FOR_IT
        seen = self._predictor.observe(event)
        return fate_of(seen.outcome, seen.reason)

    def _takes(self, event: Mapping[str, Any]) -> bool:
        """Return whether the rule takes an event, as EventBridge says.

        EventBridge is asked once about events that look alike to rules.
        """
        if self._rule["State"] != "ENABLED":
            return False
        alike = json.dumps(_matter.search(event))
        if alike not in self._matched:
            match = self._stack.client("events").test_event_pattern
            pattern = self._rule["EventPattern"]
            answer = match(EventPattern=pattern, Event=json.dumps(event))
            self._matched[alike] = answer["Result"]
        return self._matched[alike]


def _rule_of(stack: StackRef, consumer: AuditedConsumer) -> Mapping[str, Any]:
    """Return the rule of a consumer, as EventBridge describes it."""
    rules = stack.named("AWS::Events::Rule")
    name = rules[f"{consumer.resources}Rule"]
    bus = stack.outputs["CarRideBusName"]
    rule: Mapping[str, Any] = stack.client("events").describe_rule(Name=name, EventBusName=bus)
    return rule


class ReplayPlan(NamedTuple):
    """What a replay of a window would do, if nothing changes until then."""

    since: datetime
    until: datetime
    events: int
    fates: Mapping[str, Mapping[str, Mapping[Fate, int]]]
    """Events by consumer, type and fate."""
    warnings: list[str]


def predict(
    stack: StackRef,
    since: datetime,
    until: datetime,
    *,
    looks: int = 10,
    report: Callable[[int], object] = lambda _: None,
) -> ReplayPlan:
    """Predict what a replay would do.

    After ``looks`` seconds without a message, all events have been read. ``report`` takes how many
    were read so far.
    """
    made = datetime.now(UTC)
    found = warnings(stack, since, until, made)
    replay = name_for(stack.region, made)
    predictions = {each.name: Prediction(stack, each, replay) for each in CONSUMERS}
    count = 0
    with closing(captured(stack, since, until, looks=looks)) as batches:
        for batch in batches:
            count += len(batch)
            report(count)
            for prediction in predictions.values():
                prediction.add(batch)
    fates = {name: prediction.fates for name, prediction in predictions.items()}
    return ReplayPlan(since, until, count, fates, found)


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
    name = _name(stack, now)
    with ExitStack() as removals:
        # Registered first: what is interrupted while it is made is removed too.
        removals.callback(_remove, stack, name)
        removals.callback(_quietly, stack.client("events").cancel_replay, ReplayName=name)
        rule, url = _make_route(stack, name)
        start(stack, name, since, until, [rule])
        seen = set[str]()
        new = list[dict[str, Any]]()
        empty = 0
        while empty < looks:
            # Asked before the queue is read: what comes later is found by the next read.
            state = describe(stack, name)
            events = _take(stack, url)
            # Queues may deliver twice.
            new += [event for event_id, event in events.items() if event_id not in seen]
            seen |= events.keys()
            if len(new) >= _AT_ONCE:
                yield new
                new = []
            is_empty = state.handed_over and not events and not _is_filled(stack, url)
            empty = empty + 1 if is_empty else 0
        state.check()
        yield new


def _make_route(stack: StackRef, name: str) -> tuple[str, str]:
    """Make a rule that takes a replay, and its queue; return the rule's ARN and the queue's URL."""
    events = stack.client("events")
    bus = stack.outputs["CarRideBusName"]
    rule = events.put_rule(
        Name=name,
        EventBusName=bus,
        EventPattern=json.dumps({"replay-name": [name]}),
        Description="./carride replay plan",
    )["RuleArn"]
    url, arn = _make_queue(stack, _queue(name), rule)
    target = {"Id": "queue", "Arn": arn}
    answer = events.put_targets(Rule=name, EventBusName=bus, Targets=[target])
    if answer["FailedEntryCount"]:
        raise OperatorError(f"EventBridge refused the target of {name}: {answer['FailedEntries']}")
    return rule, url


def _take(stack: StackRef, url: str) -> dict[str, dict[str, Any]]:
    """Take some messages out of a queue, and return their events by EventBridge's id."""
    sqs = stack.client("sqs")
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
    messages = answer.get("Messages", [])
    if messages:
        handles = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(messages)
        ]
        sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    events = [json.loads(message["Body"]) for message in messages]
    return {event["id"]: event for event in events}


def _is_filled(stack: StackRef, url: str) -> bool:
    return waiting(stack.client("sqs"), url, visible=True) > 0


def remove_leftovers(stack: StackRef, now: datetime) -> None:
    """Remove the rules and queues of captures that were killed.

    A younger one may be another operator's.
    """
    oldest = _name(stack, now - _LEFT_AFTER)
    pager = stack.client("events").get_paginator("list_rules")
    pages = pager.paginate(
        EventBusName=stack.outputs["CarRideBusName"], NamePrefix=f"{PLAN_PREFIX}{stack.region}."
    )
    names = [rule["Name"] for page in pages for rule in page["Rules"]]
    for name in names:
        if name < oldest:
            _remove(stack, name)


def _name(stack: StackRef, made: datetime) -> str:
    """Return the name of a capture's rule and replay; the names sort by time."""
    return f"{PLAN_PREFIX}{name_for(stack.region, made)}"


def _queue(name: str) -> str:
    """Return the name of the queue that belongs to a rule; SQS allows no dots."""
    return name.replace(".", "-")


def _make_queue(stack: StackRef, name: str, rule: str) -> tuple[str, str]:
    """Make a queue that takes a rule's messages; return its URL and its ARN."""
    sqs = stack.client("sqs")
    found = sqs.get_queue_attributes(
        QueueUrl=stack.outputs["RideHistoryDlqUrl"], AttributeNames=["QueueArn"]
    )
    arn = f"{found['Attributes']['QueueArn'].rpartition(':')[0]}:{name}"
    # The policy comes with the queue: a later one may take a minute to be in force, and what is
    # refused is lost.
    made = sqs.create_queue(QueueName=name, Attributes={"Policy": may_send("events", rule, arn)})
    return made["QueueUrl"], arn


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
    """Remove a rule and its queue. The rule is the last: leftovers are found by their rules."""
    sqs = stack.client("sqs")
    queue = _quietly(sqs.get_queue_url, QueueName=_queue(name))
    if queue is not None:
        _quietly(sqs.delete_queue, QueueUrl=queue["QueueUrl"])
    events = stack.client("events")
    bus = stack.outputs["CarRideBusName"]
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


def standing(stack: StackRef) -> list[ReplayState]:
    """Return the last replays of a stack, the newest first, with what is still delivered."""
    found = status(stack)
    if not found:
        return []
    running = work_left(stack)
    logged = _last_logged(stack, datetime.now(UTC) - _LATELY)
    return [each._replace(running=running, logged=logged) for each in found]


def _last_logged(stack: StackRef, since: datetime) -> datetime | None:
    """Return when a consumer last logged a delivery, or None if none has since then."""
    times = list[datetime]()
    for consumer in CONSUMERS:
        times += [delivery.time for delivery in deliveries(stack, consumer, since)]
    return max(times, default=None)


def watch(
    stack: StackRef, name: str, *, looks: int = 3, pause: float = PAUSE
) -> Iterator[Progress]:
    """Yield a replay's progress, each ``pause`` seconds.

    It ends when nothing was in flight or logged for ``looks`` looks.
    """
    begin = describe(stack, name).started
    logs = [_DeliveryLog(stack, consumer, begin) for consumer in CONSUMERS]
    before: dict[str, Counter[Fate]] = {}
    unchanged = 0
    while unchanged < looks:
        counts = {log.consumer.name: log.counts() for log in logs}
        progress = Progress(describe(stack, name), counts)
        is_quiet = progress.replay.ended and counts == before
        unchanged = unchanged + 1 if is_quiet else 0
        before = counts
        yield progress
        if unchanged < looks:
            time.sleep(pause)


class _DeliveryLog:
    """What a consumer has logged since a time."""

    def __init__(self, stack: StackRef, consumer: AuditedConsumer, since: datetime) -> None:
        self.consumer = consumer
        self._stack = stack
        self._since = since
        self._fates: dict[str | None, Fate] = {}

    def counts(self) -> Counter[Fate]:
        """Return its deliveries by the fate of their last attempt.

        Lines are read again: they may be late.
        """
        for delivery in deliveries(self._stack, self.consumer, self._since):
            self._since = max(self._since, delivery.time - _LATE)
            self._fates[delivery.delivery] = fate_of(delivery.outcome, delivery.reason)
        return Counter(self._fates.values())
