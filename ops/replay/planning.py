"""The plan of a replay: what it would do, from the archive's own events."""

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Final, NamedTuple

from ops.audit.evidence import CONSUMERS
from ops.replay.archive import name_for, partner_rules, warnings
from ops.replay.capture import captured
from ops.replay.prediction import Fate, Pattern, Prediction
from ops.stack import StackRef

_LOOKS: Final = 10
"""Seconds without a message, after which the queue of a capture counts as empty."""
_AT_ONCE: Final = 1_000


class ReplayPlan(NamedTuple):
    """What a replay of a window would do, if nothing changes until then."""

    since: datetime
    until: datetime
    made: datetime
    events: int
    """Events of the window in the archive."""
    fates: Mapping[str, Mapping[str, Mapping[Fate, int]]]
    """The number of events by consumer, type and fate."""
    partners: Mapping[str, int]
    """The number of events that each rule of partners would take, which a run leaves out by default."""
    warnings: list[str]


def plan(
    stack: StackRef,
    since: datetime,
    until: datetime,
    *,
    looks: int = _LOOKS,
    report: Callable[[int], None] = lambda _count: None,
) -> ReplayPlan:
    """Predict what a replay would do, per consumer and event type, and deliver nothing to anybody.

    Args:
        stack: the stack.
        since: time of the oldest event.
        until: time of the newest event.
        looks: after how many seconds without a message all events have been read.
        report: is called with the number of events read so far.

    Raises:
        OperatorError: the window is not in the archive, or EventBridge could not replay it.
    """
    made = datetime.now(UTC)
    found = warnings(stack, since, until, made)
    replay = name_for(stack.region, made)
    predictions = {each.name: Prediction(stack, each, replay) for each in CONSUMERS}
    events, bus = stack.client("events"), stack.outputs["CarRideBusName"]
    rules = {name: events.describe_rule(Name=name, EventBusName=bus) for name in partner_rules(stack)}
    patterns = {n: Pattern(events, rule["EventPattern"]) for n, rule in rules.items() if rule["State"] == "ENABLED"}
    partners, count = dict.fromkeys(sorted(patterns), 0), 0
    with closing(captured(stack, since, until, at_once=_AT_ONCE, looks=looks, report=report)) as batches:
        for batch in batches:
            count += len(batch)
            for prediction in predictions.values():
                prediction.add(batch)
            for name, pattern in patterns.items():
                partners[name] += sum(pattern.takes({**event, "replay-name": replay}) for event in batch)
    found += [each.takes_nothing for each in predictions.values() if each.takes_nothing is not None]
    fates = {name: each.fates for name, each in predictions.items()}
    return ReplayPlan(since, until, made, count, fates, partners, found)
