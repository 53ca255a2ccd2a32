"""When a consumer fails: since when, how often and why, as its log shows it. No I/O."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from carride_idempotency import observation

_FAILURES: Final = 3
"""An outage has at least so many failures in a row, …"""
_EVENTS: Final = 2
"""… of at least so many events: one poisonous event is no outage."""
_QUIET_MS: Final = 4 * 60_000
"""A failure after so long begins another outage: Lambda tries again after 1 and 2 minutes, and a
queue after its visibility timeout of 3."""
_GIVEN_UP: Final = frozenset({observation.DEAD_LETTERED, observation.QUARANTINED})
_MOST_KEPT: Final = 50


@dataclass(slots=True)
class Outage:
    """Failures of one consumer in a row, without an effect between them."""

    consumer: str
    since_ms: int
    last_ms: int
    reason: str | None = None
    """Why the newest attempt failed."""
    failures: int = 0
    events: set[str] = field(default_factory=set)
    """The events that failed: not more than make an outage."""
    retried: set[str] = field(default_factory=set)
    """The events that failed and are tried again."""
    fresh: set[str] = field(default_factory=set)
    """Those of `events` that had not failed before the newest effect: an event that has, may be the
    cause itself."""
    until_ms: int | None = None
    """When the next effect was committed, or another outage followed after minutes; else None."""

    @property
    def is_real(self) -> bool:
        """Whether these are more than the failures of one event."""
        return self.failures >= _FAILURES and len(self.events) >= _EVENTS

    def is_on(self, now_ms: float) -> bool:
        """Return whether the consumer fails now: something that failed is tried again."""
        is_recent = now_ms - self.last_ms < _QUIET_MS
        return self.is_real and self.until_ms is None and is_recent and bool(self.retried)


class Outages:
    """The newest outages of all consumers."""

    def __init__(self) -> None:
        self._open: dict[str, Outage] = {}
        self._past = deque[Outage](maxlen=_MOST_KEPT)
        self._failed_before: dict[str, set[str]] = {}
        """The events of each consumer that failed before its newest effect, and are tried again."""

    def add(
        self, consumer: str, outcome: str, event: str | None, reason: str | None, time_ms: int
    ) -> None:
        """Add a delivery."""
        found = self._open.get(consumer)
        is_another = found is not None and time_ms - found.last_ms >= _QUIET_MS
        if found is not None and is_another and outcome == observation.FAILED:
            self._end(consumer, found.last_ms)
        if outcome in observation.COMMITTED:
            if consumer in self._open:
                self._failed_before[consumer] = self._open[consumer].retried
            self._end(consumer, time_ms)
        elif outcome in _GIVEN_UP:
            self._give_up(consumer, event, time_ms)
        elif outcome == observation.FAILED:
            found = self._open.setdefault(consumer, Outage(consumer, time_ms, time_ms))
            found.failures += 1
            found.last_ms = time_ms
            found.reason = reason
            if event is not None and len(found.events) < _EVENTS:
                found.events.add(event)
            if event is not None:
                found.retried.add(event)
                if (
                    event not in self._failed_before.get(consumer, ())
                    and len(found.fresh) < _EVENTS
                ):
                    found.fresh.add(event)

    def _give_up(self, consumer: str, event: str | None, time_ms: int) -> None:
        """Note that an event which failed is tried no more; one alone was no outage."""
        found = self._open.get(consumer)
        if found is None or event not in found.retried:
            return
        found.retried.discard(event)
        found.last_ms = time_ms
        if not found.retried and not found.is_real:
            del self._open[consumer]

    def _end(self, consumer: str, time_ms: int) -> None:
        found = self._open.pop(consumer, None)
        if found is not None and found.is_real:
            found.until_ms = time_ms
            self._past.append(found)

    def now(self, now_ms: float) -> list[Outage]:
        """Return the outages that are on, the oldest first."""
        found = [each for each in self._open.values() if each.is_on(now_ms)]
        return sorted(found, key=lambda each: each.since_ms)

    def of(self, consumer: str, since_ms: float) -> list[Outage]:
        """Return the outages of a consumer that were on after a time, the newest last."""
        found = [each for each in self._past if each.consumer == consumer]
        last = self._open.get(consumer)
        if last is not None and last.is_real and (last.retried or len(last.fresh) >= _EVENTS):
            found.append(last)
        return [each for each in found if each.until_ms is None or each.until_ms > since_ms]
