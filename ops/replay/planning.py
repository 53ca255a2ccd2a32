"""Predicts what a replay would do, and watches what it does."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

import jmespath

from idempotency import dead_letters, observation
from idempotency.keys import record_key
from idempotency.stores.dynamodb import record_of
from ops.audit.evidence import CONSUMERS, AuditedConsumer
from ops.audit.queues import fact_of
from ops.audit.reading import deliveries, type_of
from ops.prediction import Predictor
from ops.records import read
from ops.replay import ReplayState, describe, name_for, warnings
from ops.replay.capture import captured
from ops.stack import StackRef

PAUSE: Final = 5.0
"""Seconds between two looks."""
_LATE: Final = timedelta(minutes=5)
"""How much later than others CloudWatch may show a line."""
_matter: Final = jmespath.compile('[source, "detail-type", region, detail.type, detail.attributes.type]')
"""Finds what the patterns of consumers' rules look at, besides the replay's name."""


class Fate(StrEnum):
    """What a consumer does with a delivery."""

    NEW = "new"
    """It runs: there is no record, or one that a run may replace. Whether the run succeeds is not predicted."""
    RECOGNISED = "recognised"
    """It took effect before, or earlier in the same replay."""
    IN_PROGRESS = "in progress"
    """Another attempt holds the key, or a failed attempt may not be repeated yet. Lambda or SQS tries again."""
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
    """Counts what one consumer would do with the events of a replay, in the order in which they are added.

    An event that would take effect is remembered, so that its later copies are recognised.
    """

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
        keys = {record_key(self._name, fact) for event in taken if (fact := fact_of(event)) is not None}
        for item in read(self._stack, keys):
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
            self._matched[alike] = self._is_enabled and self._match(Event=json.dumps(event))["Result"]
        return self._matched[alike]


class ReplayPlan(NamedTuple):
    """What a replay of a window would do, if nothing changes until then: events by consumer, type and fate."""

    since: datetime
    until: datetime
    events: int
    fates: Mapping[str, Mapping[str, Mapping[Fate, int]]]
    warnings: list[str]


def plan(stack: StackRef, since: datetime, until: datetime, *, looks: int = 10) -> ReplayPlan:
    """Predict what a replay would do, per consumer and event type, and deliver nothing to anybody.

    All events have been read after ``looks`` seconds without a message.
    """
    made = datetime.now(UTC)
    found = warnings(stack, since, until, made)
    replay = name_for(stack.region, made)
    predictions, count = {each.name: Prediction(stack, each, replay) for each in CONSUMERS}, 0
    with closing(captured(stack, since, until, looks=looks)) as batches:
        for batch in batches:
            count += len(batch)
            for prediction in predictions.values():
                prediction.add(batch)
    return ReplayPlan(since, until, count, {name: each.fates for name, each in predictions.items()}, found)


class Progress(NamedTuple):
    """How far a replay is."""

    replay: ReplayState
    fates: Mapping[str, Mapping[Fate, int]]
    """What consumers have logged since the replay began: deliveries by consumer and by the fate of their last attempt.
    Deliveries of new events are among them."""


def watch(stack: StackRef, name: str, *, looks: int = 3, pause: float = PAUSE) -> Iterator[Progress]:
    """Yield the progress of a replay until replay and queues are done, and the logs of consumers stand still.

    They stand still when ``looks`` looks in a row, with ``pause`` seconds in between, show no change.
    """
    since = dict.fromkeys((each.name for each in CONSUMERS), describe(stack, name).started)
    fates: dict[str, dict[str | None, Fate]] = {consumer: {} for consumer in since}
    before, unchanged = None, 0
    while unchanged < looks:
        for each in CONSUMERS:
            for found in deliveries(stack, each, since[each.name]):
                since[each.name] = max(since[each.name], found.time - _LATE)  # what is read again changes nothing
                fates[each.name][found.delivery] = fate_of(found.outcome, found.reason)
        counts = {consumer: Counter(fates[consumer].values()) for consumer in fates}
        progress = Progress(describe(stack, name), counts)
        unchanged = unchanged + 1 if progress.replay.ended and counts == before else 0
        before = counts
        yield progress
        if unchanged < looks:
            time.sleep(pause)
