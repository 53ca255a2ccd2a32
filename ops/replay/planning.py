"""Predicts what a replay would do. The code of the deployed consumers decides, on copies of their records."""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import batched
from typing import Any, Final, NamedTuple

from carride.consumer import wired
from carride.events import RideEvent
from idempotency import IdempotencyError, Operation, dead_letters, observation
from idempotency.clock import epoch_ms
from idempotency.keys import record_key
from idempotency.observation import Observation
from idempotency.policy import DAY
from idempotency.record import Record
from idempotency.stores.dynamodb import record_of
from idempotency.stores.memory import MemoryStore
from idempotency.testing import DeadLetterBox, Invocation
from ops.audit.evidence import CONSUMERS, AuditedConsumer
from ops.audit.queues import fact_of
from ops.audit.reading import type_of
from ops.replay import name_for, warnings
from ops.replay.capture import captured
from ops.stack import OperatorError, StackRef

UNREADABLE: Final = "unreadable"
"""The type of an event that names none."""
_READ_AT_ONCE: Final = 100
"""The most keys of a BatchGetItem."""
_EVENTS_AT_ONCE: Final = 1_000
_LOOKS: Final = 10
"""Seconds without a message, after which the queue of a capture counts as empty."""

type Event = Mapping[str, Any]


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


class Pattern:
    """An event pattern. EventBridge is asked once about all events that are alike where the pattern looks.

    Args:
        events: a client for EventBridge.
        pattern: the pattern as JSON.
    """

    def __init__(self, events: Any, pattern: str) -> None:
        self._ask = partial(events.test_event_pattern, EventPattern=pattern)
        self._paths = sorted(set(_paths(json.loads(pattern))))
        self._answers: dict[tuple[str, ...], bool] = {}

    def takes(self, event: Event) -> bool:
        """Return whether the pattern matches an event."""
        alike = tuple(_at(event, path) for path in self._paths)
        if alike not in self._answers:
            self._answers[alike] = self._ask(Event=json.dumps(event))["Result"]
        return self._answers[alike]


def _paths(pattern: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field that a pattern names."""
    for name, wanted in pattern.items():
        if name == "$or":
            for each in wanted:
                yield from _paths(each, path)
        elif isinstance(wanted, Mapping):
            yield from _paths(wanted, (*path, *name.split(".")))
        else:
            yield (*path, *name.split("."))


def _at(event: Any, path: Sequence[str]) -> str:
    """Return what an event has at a path, as text; to a pattern, an empty object is absent."""
    for name in path:
        event = event.get(name, {}) if isinstance(event, Mapping) else event
    return json.dumps(event, sort_keys=True)


class Prediction:
    """Counts what one consumer would do with events, in the order in which they are added.

    An event that would take effect is remembered, so that its later copies are recognised.

    Args:
        stack: the stack.
        consumer: one of its consumers.
        replay: the name of the replay that would deliver the events; the consumer's rule looks at it.

    Raises:
        OperatorError: the consumer's records are not in DynamoDB.

    Attributes:
        fates: the number of events of each fate, by the event's type.
        takes_nothing: why the consumer gets no event at all; None if it gets some.
    """

    def __init__(self, stack: StackRef, consumer: AuditedConsumer, replay: str) -> None:
        self.fates: defaultdict[str, Counter[Fate]] = defaultdict(Counter)
        self.takes_nothing: str | None = None
        self._name, self._replay = consumer.name, replay
        self._dynamodb = stack.client("dynamodb")
        events = stack.client("events")
        name = stack.named("AWS::Events::Rule")[f"{consumer.resources}Rule"]
        rule = events.describe_rule(Name=name, EventBusName=stack.outputs["CarRideBusName"])
        if rule["State"] != "ENABLED":
            self.takes_nothing = f"{consumer.resources}Rule is {rule['State']}"
        self._pattern = Pattern(events, rule["EventPattern"])
        function = stack.client("lambda").get_function_configuration(
            FunctionName=stack.outputs[f"{consumer.resources}FunctionName"]
        )
        variables = function["Environment"]["Variables"]
        kind, _, self._table = variables["IDEMPOTENCY_STORE"].partition(":")
        if kind != "dynamodb":
            raise OperatorError(f"{consumer.name} keeps its records in {kind}, which a plan cannot read")
        window = int(variables["IDEMPOTENCY_WINDOW_DAYS"]) * DAY
        self._invocation = partial(Invocation, epoch_ms, timeout_s=function["Timeout"])
        # A clock that stands at 0: the table may still have records whose window has ended, and so has this store.
        self._store = MemoryStore(capacity=sys.maxsize, apply=lambda _effects: None, clock=lambda: 0)
        self._known = set[str]()
        self._observed: list[Observation] = []
        self._handle = _handler(consumer, self._store, window, self._observed.append)

    def add(self, events: Collection[Event]) -> None:
        """Count what the consumer would do with more events."""
        taken = []
        for event in events:
            delivered = {**event, "replay-name": self._replay}
            if self.takes_nothing is None and self._pattern.takes(delivered):
                taken.append(delivered)
            else:
                self.fates[_type(event)][Fate.NOT_FOR_IT] += 1
        self._load({record_key(self._name, fact) for event in taken if (fact := fact_of(event)) is not None})
        for event in taken:
            with suppress(IdempotencyError):  # what it raises was observed
                self._handle(event, self._invocation())
            last = self._observed.pop()
            self.fates[_type(event)][fate_of(last.outcome, last.reason)] += 1

    def _load(self, keys: set[str]) -> None:
        """Copy the records under these keys, unless they were copied before."""
        for some in batched(keys - self._known, _READ_AT_ONCE, strict=False):
            for record in _records(self._dynamodb, self._table, some):
                self._store.put_if_absent(record)
        self._known |= keys


def _handler(
    consumer: AuditedConsumer, store: MemoryStore, window: int, observer: Callable[[Observation], None]
) -> Callable[[Any, Any], object]:
    policy = replace(consumer.policy, window=window, busy="raise", warm_cache=0)

    @wired(consumer.name, store, policy, DeadLetterBox(), observer).event_handler
    def handler(event: RideEvent, operation: Operation) -> None:
        """Do nothing: the prediction ends where the consumer's own work begins."""

    return handler


def _records(dynamodb: Any, table: str, keys: Iterable[str]) -> Iterator[Record]:
    wanted = [{"idempotencyKey": {"S": key}} for key in keys]
    request: dict[str, Any] = {table: {"Keys": wanted, "ConsistentRead": True}}
    while request:
        answer = dynamodb.batch_get_item(RequestItems=request)
        yield from map(record_of, answer["Responses"].get(table, ()))
        request = answer["UnprocessedKeys"]


def _type(event: Event) -> str:
    return type_of(event) or UNREADABLE


class ReplayPlan(NamedTuple):
    """What a replay of a window would do, if nothing changes until then."""

    since: datetime
    until: datetime
    made: datetime
    events: int
    """Events of the window in the archive."""
    fates: Mapping[str, Mapping[str, Mapping[Fate, int]]]
    """The number of events by consumer, type and fate."""
    warnings: list[str]


def plan(stack: StackRef, since: datetime, until: datetime, *, looks: int = _LOOKS) -> ReplayPlan:
    """Predict what a replay would do, per consumer and event type, and deliver nothing to anybody.

    Args:
        stack: the stack.
        since: time of the oldest event.
        until: time of the newest event.
        looks: after how many seconds without a message all events have been read.

    Raises:
        OperatorError: the window is not in the archive, or EventBridge could not replay it.
    """
    made = datetime.now(UTC)
    found = warnings(stack, since, until, made)
    replay = name_for(stack.region, made)
    predictions = {each.name: Prediction(stack, each, replay) for each in CONSUMERS}
    count = 0
    with closing(captured(stack, since, until, at_once=_EVENTS_AT_ONCE, looks=looks)) as batches:
        for batch in batches:
            count += len(batch)
            for prediction in predictions.values():
                prediction.add(batch)
    found += [each.takes_nothing for each in predictions.values() if each.takes_nothing is not None]
    fates = {name: each.fates for name, each in predictions.items()}
    return ReplayPlan(since, until, made, count, fates, found)
