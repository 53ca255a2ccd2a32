"""Watches a replay until nothing is in flight, as far as AWS can tell."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from ops.audit.evidence import CONSUMERS
from ops.audit.reading import deliveries
from ops.replay import ReplayState, describe
from ops.replay.planning import Fate, fate_of
from ops.stack import StackRef

PAUSE: Final = 5.0
"""Seconds between two looks."""
_LATE: Final = timedelta(minutes=5)
"""How much later than others CloudWatch may show a line."""


class Progress(NamedTuple):
    """How far a replay is."""

    replay: ReplayState
    fates: Mapping[str, Mapping[Fate, int]]
    """What consumers have logged since the replay began: deliveries by consumer and by the fate of their last attempt.
    Deliveries of new events are among them."""


def watch(
    stack: StackRef, name: str, *, looks: int = 3, pause: float = PAUSE, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Progress]:
    """Yield the progress of a replay until replay and queues are done, and the logs of consumers stand still.

    They stand still when ``looks`` looks in a row, with ``pause`` seconds in between, show no change.

    Raises:
        OperatorError: there is no such replay.
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
            sleep(pause)
