"""Watches a replay until nothing is in flight, as far as AWS can tell."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from ops.audit.evidence import CONSUMERS, AuditedConsumer
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
    quiet: bool
    """Whether the replay and the consumers' queues are done, and the logs of consumers stand still."""


class _Log:
    """The deliveries that one consumer has logged since a time."""

    def __init__(self, stack: StackRef, consumer: AuditedConsumer, since: datetime) -> None:
        self._read = partial(deliveries, stack, consumer)
        self._since = since
        self._fates: dict[str, Fate] = {}

    def read(self) -> Counter[Fate]:
        """Read the newest lines, and count the deliveries by the fate of their last attempt."""
        for found in self._read(self._since):
            self._since = max(self._since, found.time - _LATE)  # what is read again changes nothing
            self._fates[str(found.delivery)] = fate_of(found.outcome, found.reason)
        return Counter(self._fates.values())


def watch(
    stack: StackRef, name: str, *, looks: int = 3, pause: float = PAUSE, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Progress]:
    """Yield the progress of a replay until it is quiet.

    Args:
        stack: the stack.
        name: the replay's name.
        looks: how many looks in a row must show no change.
        pause: seconds between two looks.
        sleep: waits for some seconds.

    Raises:
        OperatorError: there is no such replay.
    """
    replay, unchanged = describe(stack, name), 0
    logs = {each.name: _Log(stack, each, replay.started) for each in CONSUMERS}
    fates: dict[str, Counter[Fate]] = {}
    while True:
        before, fates = fates, {consumer: log.read() for consumer, log in logs.items()}
        replay = describe(stack, name)
        unchanged = unchanged + 1 if replay.ended and fates == before else 0
        yield Progress(replay, fates, unchanged >= looks)
        if unchanged >= looks:
            return
        sleep(pause)
